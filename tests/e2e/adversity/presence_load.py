"""Members of one party that stay, and one that comes and goes.

Who stays must be there at the end, for all others too, and nobody sees a visitor whose goodbye was
answered. What one member was told, each was told, or its snapshot covers it (presence §6.6).
"""

import asyncio
import random
import time
from contextlib import AsyncExitStack, suppress
from typing import Any

from waystation.base.errors import WaystationError
from waystation.client.party.member import PartyMember
from waystation.client.party.model import Event, Joined, Left, Resynced, Snapshot

STAYING = 6
PARTY_ID = 7
TTL_MS = 300_000  # nobody times out, however long a round takes
SETTLE_S = 60.0
LEAVE_S = 5.0  # a leave without an answer ends then


class Staying:
    """What one who stays was told."""

    def __init__(self, address: str, client_id: int) -> None:
        self.client_id = client_id
        self.told: dict[int, str] = {}  # by position in the party
        self._covered = 0  # the position of the newest snapshot
        self.member = member_of(address, client_id, on_event=self._tell)

    @property
    def here(self) -> set[int]:
        return {one.client_id for one in self.member.participants} | {self.client_id}

    def missed(self, told: dict[int, str]) -> list[str]:
        return [
            what for at, what in told.items() if at > self._covered and self.told.get(at) != what
        ]

    def _tell(self, event: Event) -> None:
        match event:
            case Joined() | Left() if event.who.client_id > STAYING:
                self.told[event.party_seq] = f"{type(event).__name__} {event.who.client_id}"
            case Snapshot() | Resynced():
                self._covered = max(self._covered, event.party_seq)
            case _:
                pass


def member_of(address: str, client_id: int, **options: Any) -> PartyMember:
    return PartyMember(
        address, party_id=PARTY_ID, client_id=client_id, session_ttl_ms=TTL_MS, **options
    )


class PartyLoad:
    def __init__(self, address: str, chance: random.Random) -> None:
        self._address = address
        self._chance = chance
        self._staying = [Staying(address, number) for number in range(1, STAYING + 1)]
        self._went: set[int] = set()  # visitors whose goodbye was answered

    @property
    def visits(self) -> int:
        return len(self._went)

    async def join(self, stack: AsyncExitStack) -> None:
        for one in self._staying:
            await stack.enter_async_context(one.member)
            await one.member.joined(30)

    async def visit(self) -> None:
        """One more client comes and goes, over and over; while there is no room it may not come."""
        number = STAYING
        while True:
            number += 1
            client_session = member_of(self._address, number)
            with suppress(WaystationError):
                async with client_session:
                    await client_session.joined(10)
                    await asyncio.sleep(self._chance.uniform(0.02, 0.3))
                    began = time.monotonic()
                    await client_session.leave()
                    if time.monotonic() - began < LEAVE_S - 0.5:
                        self._went.add(number)

    async def broken_promises(self) -> list[str]:
        """Once all have been told what they were owed."""
        deadline = time.monotonic() + SETTLE_S
        while (broken := self._broken()) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        return broken

    def _broken(self) -> list[str]:
        found: list[str] = []
        everybody = {one.client_id for one in self._staying}
        told = {at: what for one in self._staying for at, what in one.told.items()}
        for one in self._staying:
            wrong = {
                "misses": sorted(everybody - one.here),
                "still sees": sorted(one.here & self._went),
                "was not told": one.missed(told),
            }
            found += [f"client {one.client_id} {what} {of}" for what, of in wrong.items() if of]
        return found
