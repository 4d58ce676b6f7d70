"""Conformance suite for races: of two concurrent claims of a session, exactly one succeeds."""

import asyncio

import pytest

from waystation.presence.model import Detached, SessionKey, Status
from waystation.presence.store import Attached, Joined, PresenceStore

from .presence_store import Heard, attach_spec, join_spec, new_party, session


class PresenceStoreRaces:
    """Complements `PresenceStoreConformance`, with the same `store`."""

    races = 1000
    """Number of races between the end and the return of a session; soak tests run more."""

    async def test_leaving_and_attaching_at_once_has_one_winner(
        self, store: PresenceStore, heard: Heard
    ) -> None:
        """P-116"""
        await self.check_races(store, self.races)

    @pytest.mark.soak
    async def test_leaving_and_attaching_at_once_has_one_winner_ten_thousand_times(
        self, store: PresenceStore, heard: Heard
    ) -> None:
        """P-116"""
        await self.check_races(store, 10_000)

    async def check_races(self, store: PresenceStore, races: int) -> None:
        """Fifty parties at a time; views agree with the winners."""

        async def race(key: SessionKey, *, leave_first: bool) -> bool:
            joined = await store.join(key, join_spec(client_sessions_max=1000))
            assert isinstance(joined, Joined)
            await store.detach(key, 1, cursor=1, cause=Detached.TRANSPORT)
            leaving = store.leave(key, 1, Status.CLIENT_TIMEOUT)
            attaching = store.attach(key, attach_spec())
            left: object
            if leave_first:
                left, attached = await asyncio.gather(leaving, attaching)
            else:
                attached, left = await asyncio.gather(attaching, leaving)
            assert (left is None) == isinstance(attached, Attached)
            return left is None

        parties = [new_party() for _ in range(50)]
        kept: set[SessionKey] = set()
        for number in range(1, races // len(parties) + 1):
            keys = [session(party, 1, number) for party in parties]
            stayed = await asyncio.gather(
                *(race(key, leave_first=bool(at % 2)) for at, key in enumerate(keys))
            )
            kept |= {key for key, stays in zip(keys, stayed, strict=True) if stays}

        seen: set[SessionKey] = set()
        for party in parties:
            snapshot = await store.snapshot(party)
            seen |= {one.key for one in snapshot.sessions} if snapshot is not None else set()
        assert seen == kept
        assert 0 < len(kept) < races
