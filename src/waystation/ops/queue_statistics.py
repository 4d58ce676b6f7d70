"""Statistics of a queue server: counter and daily files, events and metrics, and when each is due.

    queue-statistics/smp-server-stats.daily.log   a row for each day, in 96 columns
    queue-statistics/counters                     counters since the last row

Slot totals become events every ten seconds. A row is written at midnight (UTC), or at the next
start if the server did not run then. Counters are saved at a stop and every few minutes, so a kill
loses a few minutes of statistics. A file that cannot be read or written is logged; the server runs
on.
"""

import asyncio
import datetime as dt
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from structlog.typing import FilteringBoundLogger

from waystation.base.clock import Clock
from waystation.base.errors import WaystationError
from waystation.queue.daily_log import DailyLog
from waystation.queue.model import Slot
from waystation.queue.slot_totals import SlotTotals
from waystation.queue.statistics import Statistics
from waystation.queue.store import Counts, QueueStore
from waystation.telemetry.events import EventSink
from waystation.telemetry.hashes import EventHashes
from waystation.telemetry.metrics import Metrics

FOLDER: Final = "queue-statistics"
ROWS: Final = "smp-server-stats.daily.log"
COUNTERS: Final = "counters"
TELL_INTERVAL_S: Final = 10.0
KEEP_INTERVAL_S: Final = 300.0
LOOK_INTERVAL_S: Final = 60.0


class QueueStatistics:
    def __init__(
        self,
        directory: Path,
        *,
        metrics: Metrics,
        sink: EventSink,
        clock: Clock,
        log: FilteringBoundLogger,
        trace: EventHashes | None = None,
    ) -> None:
        self._directory = directory
        self._metrics = metrics
        self._clock = clock
        self._log = log
        self._totals = SlotTotals(sink, clock, trace=trace)
        self.observer = Statistics(metrics, self._totals)
        self._daily = DailyLog(self.observer, self._today())
        self._kept_at = self._looked_at = clock.mono()
        self._load()

    def watch(
        self,
        *,
        connections: Callable[[], int],
        subscriptions: Callable[[], tuple[int, int]],
        relay_links: Callable[[], int],
    ) -> None:
        """Register gauges that are computed on each read."""
        open_now = self._metrics.gauge("queue_connections")
        queues = self._metrics.gauge("queue_subscribed", kind="queue")
        notifiers = self._metrics.gauge("queue_subscribed", kind="notifier")
        links = self._metrics.gauge("queue_relay_links")

        def fill() -> None:
            open_now.value = connections()
            queues.value, notifiers.value = subscriptions()
            links.value = relay_links()

        self._metrics.on_read(fill)

    async def run(self, store: QueueStore, notifications: Callable[[], int]) -> None:
        await self.look(store, notifications())
        while True:
            await asyncio.sleep(TELL_INTERVAL_S)
            await self.tick(store, notifications())

    async def tick(self, store: QueueStore, notifications: int) -> None:
        """Run whatever is due."""
        self._totals.tell()
        mono = self._clock.mono()
        if self._today() > self._daily.began_on or mono - self._looked_at >= LOOK_INTERVAL_S:
            self._looked_at = mono
            await self.look(store, notifications)
        if mono - self._kept_at >= KEEP_INTERVAL_S:
            self._kept_at = mono
            self.keep()

    async def look(self, store: QueueStore, notifications: int) -> None:
        """Update the gauges of stored rows, and write the row of a finished day."""
        try:
            stored = await store.counts()
            await self._tell_loads(store)
        except WaystationError as exc:
            self._log.warning("queue.not_counted", reason=str(exc) or exc.label)
            return
        for kind, number in (
            ("queue", stored.queues),
            ("message", stored.messages),
            ("notifier", stored.notifiers),
            ("notification", notifications),
        ):
            self._metrics.gauge("queue_stored", kind=kind).value = number
        if self._today() > self._daily.began_on:
            self._write_row(stored, notifications)

    async def _tell_loads(self, store: QueueStore) -> None:
        """Emit the load of each changed slot, yielding to the event loop between slots."""
        for slot, operations in self._totals.take_changed().items():
            self._totals.emit_load(slot, await store.slot_load(Slot(slot)), operations)
            await asyncio.sleep(0)

    def lines(self) -> list[str]:
        """Counters since the last row, for the control port."""
        return [f"{name}: {self._daily.since(name)}" for name in self.observer.cells]

    def close(self) -> None:
        """Emit the last slot totals and save the counters for the next start."""
        self._totals.tell()
        self.keep()

    # Files

    def keep(self) -> None:
        fresh = self._directory / f".{COUNTERS}"
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            with open(fresh, "w", opener=_private) as file:
                file.write(self._daily.dump())
            fresh.replace(self._directory / COUNTERS)
        except OSError as exc:
            self._log.warning("queue.statistics_not_kept", reason=exc.strerror)

    def _write_row(self, stored: Counts, notifications: int) -> None:
        row = self._daily.row(self._today(), stored, notifications=notifications)
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            with open(self._directory / ROWS, "a", opener=_private) as file:
                file.write(row + "\n")
        except OSError as exc:
            self._log.warning("queue.row_not_written", reason=exc.strerror)
        self.keep()

    def _load(self) -> None:
        try:
            text = (self._directory / COUNTERS).read_text()
        except FileNotFoundError:
            return
        except (OSError, UnicodeDecodeError) as exc:
            self._log.warning("queue.statistics_not_read", reason=str(exc))
            return
        odd = self._daily.load(text)
        if odd:
            self._log.warning("queue.statistics_not_read", keys=len(odd))

    def _today(self) -> dt.date:
        return dt.datetime.fromtimestamp(self._clock.now_ms() / 1000, dt.UTC).date()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
