"""The driver of the controller: keeps the lead, reads the map, commits proposals.

Rule 1: only the leader acts. The store decides which controller leads; a leader that could
        not renew its lead stops, and another begins within `LEAD_S`.
Rule 2: a proposal that was not applied is dropped: the next round begins from the map in force.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from waystation.base.clock import Clock
from waystation.base.errors import UnavailableError

from .cluster_store import ClusterStore
from .controller import Controller, Terms

LEAD_S = 4.0
POLL_S = 0.5
BUSY_POLL_S = 0.1  # while slots move: the next moves begin as soon as the limits allow
TROUBLE_S = 1.0


class ControllerLines(Protocol):
    """The log for operators."""

    def info(self, event: str, /, **fields: object) -> object: ...

    def warning(self, event: str, /, **fields: object) -> object: ...


class ControllerDriver:
    def __init__(
        self,
        store: ClusterStore,
        terms: Terms,
        *,
        holder: str,
        clock: Clock,
        lines: ControllerLines,
    ) -> None:
        self._store = store
        self._terms = terms
        self._holder = holder
        self._clock = clock
        self._lines = lines
        self.leads = False
        self.commits = 0
        self.lost = 0
        self._busy = False

    async def run(self) -> None:
        core = Controller(self._terms)
        while True:
            try:
                leads = await self._store.lead(self._holder, LEAD_S)
                if leads and not self.leads:
                    core = Controller(self._terms)
                    self._lines.info("controller.leads", holder=self._holder)
                self.leads = leads
                if leads:
                    await self.look(core)
            except UnavailableError as exc:
                self.leads = False
                self._lines.warning("controller.store", reason=str(exc) or exc.label)
                await asyncio.sleep(TROUBLE_S)
            await asyncio.sleep(BUSY_POLL_S if self._busy else POLL_S)

    async def look(self, core: Controller) -> Sequence[str]:
        """One round; returns what was changed."""
        slot_map = await self._store.read()
        self._busy = bool(slot_map.planned) or any(slot_map.moving())
        ages = await self._store.ages()
        proposal = core.decide(slot_map, ages, self._clock.mono())
        if proposal is None:
            return ()
        if not await self._store.commit(proposal.slot_map):
            self.lost += 1
            return ()
        self.commits += 1
        for reason in proposal.reasons:
            self._lines.info("controller.change", epoch=proposal.slot_map.epoch, what=reason)
        return proposal.reasons

    async def resign(self) -> None:
        if self.leads:
            self.leads = False
            await self._store.resign(self._holder)
