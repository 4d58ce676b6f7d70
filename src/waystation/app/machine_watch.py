"""Detects a second machine on the push store of a node whose relay address is loopback.

Each node writes the time under its machine id every `LOOK_S`. The store keeps these entries among
the broadcasts, under ids that are never sent. Another machine counts as present when its entry
changes between two looks: clocks of two machines are never compared, and entries of machines that
have left do not change. A node with a loopback relay address logs one error per other machine.
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
    """An id shared by all processes of one machine or container, and by no other."""
    try:
        installed = path.read_text().strip()
    except OSError:
        installed = ""
    text = f"{hostname or platform.node()}\n{installed}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class MachineWatch:
    """`loopback_url` is the relay URL to complain about; empty if it is not a loopback address."""

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
