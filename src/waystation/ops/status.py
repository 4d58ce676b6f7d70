"""Status of the whole server for the console: workers, rates, store size, addresses."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from waystation.app.data_dir import DataDir
from waystation.app.server_info import read_server_info
from waystation.app.version import build
from waystation.base.clock import Clock
from waystation.base.errors import WaystationError
from waystation.console.model import ServerStatus, WorkerStatus
from waystation.push.store import PushStore, published_broadcasts

from .health import StoreProbe
from .process_status import STATUS_SUFFIX

SERVE = "serve"
REPORT_AGE_MAX_S = 5.0
RATE_AGE_S_MIN = 1.0  # calls closer together get the previous rates


class Rates:
    """Computes rates from two successive readings of counters."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._totals: dict[str, int] = {}
        self._rates: dict[str, float] = {}

    def look(self, totals: Mapping[str, int], mono: float) -> dict[str, float]:
        if self._at is None:
            self._at, self._totals = mono, dict(totals)
        elif mono - self._at >= RATE_AGE_S_MIN:
            elapsed_s = mono - self._at
            self._rates = {
                # A restarted worker counts from zero again: avoid negative rates.
                name: max(0, count - self._totals.get(name, 0)) / elapsed_s
                for name, count in totals.items()
            }
            self._at, self._totals = mono, dict(totals)
        return dict(self._rates)


class ServerOverview:
    """Reads the reports of all workers on each request."""

    def __init__(
        self, data: DataDir, store_url: str, store: PushStore, probe: StoreProbe, clock: Clock
    ) -> None:
        self._data = data
        self._store_url = store_url
        self._store = store
        self._probe = probe
        self._clock = clock
        self._rates = Rates()
        self._started_at_ms = clock.now_ms()

    async def status(self) -> ServerStatus:
        now_ms = self._clock.now_ms()
        workers = await asyncio.to_thread(read_reports, self._data)
        totals: dict[str, int] = {}
        for worker in workers:
            for name, count in worker.counts.items():
                totals[name] = totals.get(name, 0) + count
        serving = read_server_info(self._data)
        try:
            broadcasts = len(await published_broadcasts(self._store))
        except WaystationError:
            broadcasts = 0
        return ServerStatus(
            version=build().version,
            now_ms=now_ms,
            started_at_ms=self._started_at_ms,
            workers=tuple(workers),
            missing=tuple(
                worker.name
                for worker in workers
                if now_ms - worker.reported_at_ms > REPORT_AGE_MAX_S * 1000
            ),
            rates=self._rates.look(totals, self._clock.mono()),
            store_url=without_password(self._store_url),
            store_bytes=bytes_on_disk(self._data.store),
            store_ok=self._probe.trouble is None,
            disk_free_bytes=shutil.disk_usage(self._data.root).free,
            addresses=tuple((row.what, row.url) for row in serving.listening) if serving else (),
            broadcasts=broadcasts,
        )


def read_reports(data: DataDir) -> list[WorkerStatus]:
    """The last status report of each worker."""
    found: list[WorkerStatus] = []
    for path in sorted(data.reports(SERVE).glob(f"*/*{STATUS_SUFFIX}")):
        with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
            found.append(msgspec.json.decode(path.read_bytes(), type=WorkerStatus))
    return found


def bytes_on_disk(directory: Path) -> int:
    """Allocated bytes: the store's file is sparse, so its length says nothing."""
    total = 0
    for folder, _, files in os.walk(directory):
        for file in files:
            try:
                total += (Path(folder) / file).stat().st_blocks * 512
            except FileNotFoundError:
                continue  # removed since the listing
    return total


def without_password(url: str) -> str:
    scheme, sep, rest = url.partition("://")
    if not sep or "@" not in rest:
        return url
    return f"{scheme}://…@{rest.rpartition('@')[2]}"
