"""Removes references whose queue is gone or was never created.

An edge removes the references of a failed creation or a deleted queue. If it dies in between, they
remain: commands for them get AUTH, but an id that a client chose could not be used again.

Rule 1: the server of a reference's slot asks the server of the queue's slot whether it has the id.
        Only `NOT_FOUND` counts as no; a server that cannot be reached has not answered.
Rule 2: a reference is removed when two such answers are `lost_after_s` apart without any other
        between them: a queue that is being created is not known yet.
Rule 3: at most `SUSPECTS_MAX` are remembered; further ones wait for a later round.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from waystation.base.errors import UnavailableError
from waystation.queue.model import SLOTS, RefKind, Slot
from waystation.queue.store import Ref, RefStore

PAGE: Final = 200
SUSPECTS_MAX: Final = 100_000

_Key = tuple[RefKind, bytes, bytes]  # with the transaction: a new reference is another one


class Ownership(Protocol):
    def serves(self, slot: int) -> bool: ...

    def begin(self, slot: int) -> bool: ...

    def end(self, slot: int) -> None: ...


Knows = Callable[[RefKind, bytes, Slot], Awaitable[bool | None]]


class ReferenceSweep:
    def __init__(
        self,
        refs: RefStore,
        ownership: Ownership,
        *,
        knows: Knows,
        mono: Callable[[], float],
        lost_after_s: float,
    ) -> None:
        self._refs = refs
        self._ownership = ownership
        self._knows = knows
        self._mono = mono
        self._lost_after_s = lost_after_s
        self._suspects: dict[_Key, float] = {}  # since when
        self.removed = 0  # since the start

    async def run(self, interval_s: float, closed: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(interval_s)
            with contextlib.suppress(UnavailableError):  # the next round tries again
                await self.sweep()
            closed()

    async def sweep(self) -> None:
        """One round over all slots that are served here."""
        before, self._suspects = self._suspects, {}
        for slot in range(SLOTS):
            after: tuple[RefKind, bytes] | None = None
            while self._ownership.serves(slot):
                page = await self._refs.refs_of(Slot(slot), after=after, limit=PAGE)
                answers = await asyncio.gather(
                    *(self._knows(kind, entity_id, ref.home) for kind, entity_id, ref in page)
                )
                for (kind, entity_id, ref), known in zip(page, answers, strict=True):
                    await self._judge(Slot(slot), kind, entity_id, ref, known, before)
                if len(page) < PAGE:
                    break
                after = (page[-1][0], page[-1][1])

    async def _judge(  # noqa: PLR0917 the row, and what was found out about it
        self,
        slot: Slot,
        kind: RefKind,
        entity_id: bytes,
        ref: Ref,
        known: bool | None,
        before: dict[_Key, float],
    ) -> None:
        key = (kind, entity_id, ref.tx_id)
        since = before.get(key)
        if known is None:
            if since is not None:
                self._suspects[key] = since
        elif not known:
            mono = self._mono()
            if since is not None and mono - since >= self._lost_after_s:
                await self._remove(slot, kind, entity_id, ref)
            elif since is not None or len(self._suspects) < SUSPECTS_MAX:
                self._suspects[key] = mono if since is None else since

    async def _remove(self, slot: Slot, kind: RefKind, entity_id: bytes, ref: Ref) -> None:
        if self._ownership.begin(slot):
            try:
                self.removed += await self._refs.drop_ref(kind, entity_id, ref.tx_id)
            finally:
                self._ownership.end(slot)
