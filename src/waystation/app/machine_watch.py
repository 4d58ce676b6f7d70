"""Which machines share a push store, so that a loopback relay address is noticed where it is wrong.

Rule 1: a node on a store that several machines can share writes down now and then that its machine
        uses it. The store keeps that among the broadcasts, under ids that are never sent.
Rule 2: another machine is there if what it wrote changes while we look: no clock of another
        machine is compared with ours, and machines that have left are no reason to complain.
Rule 3: a node whose relay address is a loopback address logs an error for each other machine, once.
"""

import asyncio
import hashlib
import platform
from pathlib import Path
from typing import Final

from structlog.typing import FilteringBoundLogger

from waystation.base.clock import Clock
from waystation.base.errors import WaystationError
from waystation.push.store import MACHINE_PREFIX, PushStore

LOOK_S: Final = 60.0


def machine_id(hostname: str | None = None, path: Path = Path("/etc/machine-id")) -> str:
    """The same for all processes of a machine or container, and for no others."""
    try:
        installed = path.read_text().strip()
    except OSError:
        installed = ""
    text = f"{hostname or platform.node()}\n{installed}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class MachineWatch:
    """`loopback_url` is the relay address that is wrong on several machines; empty: it is right."""

    def __init__(
        self,
        store: PushStore,
        own: str,
        clock: Clock,
        log: FilteringBoundLogger,
        *,
        loopback_url: str,
    ) -> None:
        self._store = store
        self._own = MACHINE_PREFIX + own
        self._clock = clock
        self._log = log
        self._loopback_url = loopback_url
        self._first_seen: dict[str, str] = {}
        self._told: set[str] = set()

    async def run(self) -> None:
        while True:
            try:
                await self.look()
            except WaystationError as exc:
                self._log.debug("machines.not_read", reason=str(exc) or exc.label)
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        await self._store.publish_broadcast(self._own, str(self._clock.now_ms()))
        if not self._loopback_url:
            return
        for name, seen in (await self._store.get_broadcasts()).items():
            if not name.startswith(MACHINE_PREFIX) or name == self._own or name in self._told:
                continue
            if self._first_seen.setdefault(name, seen) != seen:
                self._told.add(name)
                self._log.error(
                    "relay.second_machine",
                    relay_url=self._loopback_url,
                    note="another machine uses this store and looks for our user agents on itself;"
                    " set connect.relay_url to an address of this machine",
                )
