"""Conformance suite for presence stores: the contract of `waystation.presence.store`.

A backend writes a subclass with the fixture `store`, not yet started:

    class TestRedis(PresenceStoreConformance):
        @pytest.fixture
        async def store(self, clock: ManualClock) -> AsyncIterator[PresenceStore]: ...

Ids are random in every test, so tests may share a store.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from waystation.base.clock import ManualClock
from waystation.presence.model import (
    EXTENDED,
    WANT_UPDATES,
    ClientId,
    Detached,
    Entry,
    MessageType,
    PartyId,
    SessionId,
    SessionKey,
    Status,
)
from waystation.presence.store import (
    Attached,
    AttachSpec,
    CursorRow,
    Duplicate,
    Exists,
    Joined,
    JoinSpec,
    Left,
    Missing,
    Notice,
    Owner,
    PresenceStore,
    Proof,
    Rejected,
    Signalled,
)

OWNER = Owner("node.1", 7)
_chance = random.SystemRandom()


class Heard:
    """A listener that records its calls."""

    def __init__(self) -> None:
        self.entries: list[tuple[PartyId, Entry]] = []
        self.notices: list[Notice] = []

    def entry(self, party_id: PartyId, entry: Entry) -> None:
        self.entries.append((party_id, entry))

    def notice(self, notice: Notice) -> None:
        self.notices.append(notice)

    def of(self, party_id: PartyId) -> list[Entry]:
        return [entry for party, entry in self.entries if party == party_id]

    async def wait(self, condition: Callable[[], Any], patience_s: float = 10.0) -> None:
        """Stores may notify listeners slightly after they answer."""
        async with asyncio.timeout(patience_s):
            while not condition():  # noqa: ASYNC110 whatever it is, it has no event
                await asyncio.sleep(0.002)


def new_party() -> PartyId:
    return PartyId(_chance.getrandbits(64) or 1)


def session(party_id: PartyId, client: int, number: int = 1) -> SessionKey:
    return SessionKey(party_id, ClientId(client), SessionId(number))


def join_spec(**changes: Any) -> JoinSpec:
    fields: dict[str, Any] = {
        "ttl_ms": 120_000,
        "flags": EXTENDED,
        "token_hash": b"1" * 32,
        "party_max": 1000,
        "client_sessions_max": 8,
    }
    return JoinSpec(**{**fields, **changes})


def attach_spec(token_hash: bytes | None = None, **changes: Any) -> AttachSpec:
    fields: dict[str, Any] = {"proof": Proof(token_hash=token_hash), "new_hash": b"2" * 32}
    return AttachSpec(**{**fields, **changes})


class PresenceStoreConformance:
    """The whole contract."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock(now_ms=1_800_000_000_000)

    @pytest.fixture
    async def heard(self, store: PresenceStore) -> Heard:
        heard = Heard()
        await store.start(OWNER, heard)
        return heard

    async def joined(self, store: PresenceStore, key: SessionKey, **changes: Any) -> Joined:
        result = await store.join(key, join_spec(**changes))
        assert isinstance(result, Joined), result
        return result

    async def test_a_join_gives_a_position_and_everybody_there(
        self, store: PresenceStore, heard: Heard
    ) -> None:
        party = new_party()
        await store.subscribe(party)
        first = await self.joined(store, session(party, 1))
        second = await self.joined(store, session(party, 2))
        third = await self.joined(store, session(party, 1, 9))

        assert (first.seq, second.seq, third.seq) == (1, 2, 3)
        assert first.epoch == second.epoch != 0
        assert (first.opened, second.opened) == (True, False)
        assert (third.device_sessions, third.party_size, third.fence) == (2, 3, 1)
        assert third.members is not None
        assert sorted(third.members) == [(1, 1, False), (1, 9, False), (2, 1, False)]
        await heard.wait(lambda: len(heard.of(party)) == 3)
        entries = heard.of(party)
        assert [(one.seq, one.kind, one.client_id, one.count) for one in entries] == [
            (1, MessageType.JOIN, 1, 1),
            (2, MessageType.JOIN, 2, 1),
            (3, MessageType.JOIN, 1, 2),
        ]
        assert entries[0].message_id < entries[1].message_id < entries[2].message_id
        assert entries[0].at_ms <= entries[2].at_ms

    async def test_a_session_is_joined_once(self, store: PresenceStore, heard: Heard) -> None:
        key = session(new_party(), 1)
        await self.joined(store, key)
        again = await store.join(key, join_spec())

        assert isinstance(again, Exists)
        assert (again.record.key, again.record.active, again.record.fence) == (key, True, 1)
        assert again.record.owner == OWNER.node_id

    async def test_limits_are_kept(self, store: PresenceStore, heard: Heard) -> None:
        """P-083 P-084"""
        party = new_party()
        await self.joined(store, session(party, 1, 1))
        await self.joined(store, session(party, 1, 2))
        ninth = await store.join(session(party, 1, 3), join_spec(client_sessions_max=2))
        full = await store.join(session(party, 2), join_spec(party_max=2))

        assert ninth == Rejected(Status.SESSION_LIMIT)
        assert full == Rejected(Status.PARTY_FULL)
        snapshot = await store.snapshot(party)
        assert snapshot is not None
        assert snapshot.seq == 2

    async def test_a_session_id_is_unique_in_the_party_where_that_is_asked_for(
        self, store: PresenceStore, heard: Heard
    ) -> None:
        party = new_party()
        await self.joined(store, session(party, 1, 7), id_unique_in_party=True)
        same = await store.join(session(party, 2, 7), join_spec(id_unique_in_party=True))
        own = await store.join(session(party, 1, 7), join_spec(id_unique_in_party=True))

        assert same == Rejected(Status.SESSION_ID_IN_USE)
        assert isinstance(own, Exists)
        await self.joined(store, session(party, 2, 8), id_unique_in_party=True)
        await self.joined(store, session(new_party(), 2, 7), id_unique_in_party=True)
        await self.joined(store, session(party, 2, 7))  # without the condition
        snapshot = await store.snapshot(party)
        assert snapshot is not None
        assert snapshot.seq == 3

    async def test_the_oldest_makes_room_where_that_is_the_policy(
        self, store: PresenceStore, heard: Heard
    ) -> None:
        """P-084"""
        party = new_party()
        await store.subscribe(party)
        for number in (1, 2):
            await self.joined(store, session(party, 1, number))
        await store.detach(session(party, 1, 2), 1, cursor=2, cause=Detached.TRANSPORT)
        await self.joined(store, session(party, 1, 3), client_sessions_max=2, evict_oldest=True)
        await self.joined(store, session(party, 1, 4), client_sessions_max=2, evict_oldest=True)

        await heard.wait(lambda: len(heard.of(party)) == 6)
        left = [one for one in heard.of(party) if one.kind is MessageType.LEAVE]
        assert [(one.session_id, one.code) for one in left] == [(2, 22), (1, 22)]

    async def test_a_leave_is_recorded_once(self, store: PresenceStore, heard: Heard) -> None:
        party = new_party()
        key = session(party, 1)
        await store.subscribe(party)
        await self.joined(store, key)
        await self.joined(store, session(party, 1, 2))

        wrong_fence = await store.leave(key, 5, Status.OK)
        left = await store.leave(key, 1, Status.ACK_TIMEOUT)
        again = await store.leave(key, 0, Status.OK)

        assert wrong_fence is None
        assert left == Left(3, 1, 1)
        assert again is None
        await heard.wait(lambda: len(heard.of(party)) == 3)
        last = heard.of(party)[-1]
        assert (last.kind, last.code, last.count) == (MessageType.LEAVE, Status.ACK_TIMEOUT, 1)

    async def test_an_administrator_needs_no_fence(
        self, store: PresenceStore, heard: Heard
    ) -> None:
        key = session(new_party(), 1)
        await self.joined(store, key)

        assert await store.leave(key, 0, Status.REMOVED_BY_ADMIN) == Left(2, 0, 0)

    async def test_numbers_go_on_in_a_party_that_was_empty_for_a_moment(
        self, store: PresenceStore, heard: Heard
    ) -> None:
        """P-015"""
        key = session(new_party(), 1)
        first = await self.joined(store, key)
        await store.leave(key, 1, Status.OK)
        second = await self.joined(store, key)

        assert (second.epoch, second.seq, second.fence) == (first.epoch, 3, 1)
        assert second.opened

    async def test_a_detached_session_is_attached_with_its_token_or_without(
        self, store: PresenceStore, heard: Heard
    ) -> None:
        key = session(new_party(), 1)
        await self.joined(store, key)
        assert await store.detach(key, 1, cursor=1, cause=Detached.EOF)

        attached = await store.attach(key, attach_spec(b"1" * 32))

        assert isinstance(attached, Attached)
        assert (attached.record.fence, attached.record.active) == (2, True)
        assert not attached.was_active
        assert attached.previous_owner == OWNER
        assert attached.members == [(1, 1, False)]
        await store.detach(key, 2, cursor=1, cause=Detached.EOF)
        assert isinstance(await store.attach(key, attach_spec()), Attached)

    async def test_an_active_session_needs_proof(self, store: PresenceStore, heard: Heard) -> None:
        """P-071 P-072 P-073"""
        key = session(new_party(), 1)
        await self.joined(store, key)

        assert await store.attach(key, attach_spec()) == Rejected(Status.SESSION_ID_IN_USE)
        assert await store.attach(key, attach_spec(b"x" * 32)) == Rejected(Status.RESUME_REJECTED)
        taken = await store.attach(key, attach_spec(b"1" * 32))
        assert isinstance(taken, Attached)
        assert taken.was_active
        trusted = await store.attach(key, attach_spec(proof=Proof(trusted=True)))
        assert isinstance(trusted, Attached)
        assert trusted.record.fence == 3

    async def test_a_token_may_be_required(self, store: PresenceStore, heard: Heard) -> None:
        key = session(new_party(), 1)
        await self.joined(store, key)
        await store.detach(key, 1, cursor=1, cause=Detached.EOF)

        required = attach_spec(proof=Proof(token_required=True))
        assert await store.attach(key, required) == Rejected(Status.RESUME_REJECTED)

    async def test_the_token_before_is_good_for_a_while(
        self, store: PresenceStore, heard: Heard
    ) -> None:
        """P-074"""
        key = session(new_party(), 1)
        await self.joined(store, key)
        await store.attach(key, attach_spec(b"1" * 32))

        assert isinstance(await store.attach(key, attach_spec(b"1" * 32)), Attached)
        short = Proof(token_hash=b"2" * 32, grace_ms=0)
        assert isinstance(await store.attach(key, attach_spec(proof=short)), Attached)

    async def test_answers_that_are_lost_twice_lock_nobody_out(
        self, store: PresenceStore, heard: Heard
    ) -> None:
        """The token that a client has shown stays good, however many new ones never reached it."""
        key = session(new_party(), 1)
        await self.joined(store, key)
        for number in (2, 3, 4):
            spec = attach_spec(b"1" * 32, new_hash=bytes([number]) * 32)
            assert isinstance(await store.attach(key, spec), Attached), number

        newest = await store.attach(key, attach_spec(bytes([4]) * 32))
        assert isinstance(newest, Attached)
        assert isinstance(await store.attach(key, attach_spec(b"1" * 32)), Rejected)

    async def test_nobody_attaches_what_is_not_there(
        self, store: PresenceStore, heard: Heard
    ) -> None:
        """P-075"""
        party = new_party()
        assert await store.attach(session(party, 1), attach_spec()) == Missing()
        assert await store.snapshot(party) is None or (await store.snapshot(party)).sessions == []  # pyright: ignore[reportOptionalMemberAccess]

    async def test_wishes_are_kept_until_there_are_new_ones(
        self, store: PresenceStore, heard: Heard
    ) -> None:
        key = session(new_party(), 1)
        await self.joined(store, key, flags=EXTENDED | WANT_UPDATES)
        same = await store.attach(key, attach_spec(b"1" * 32))
        other = await store.attach(key, attach_spec(b"2" * 32, flags=8, ttl_ms=30_000))

        assert isinstance(same, Attached)
        assert isinstance(other, Attached)
        assert (same.record.flags, same.record.ttl_ms) == (EXTENDED | WANT_UPDATES, 120_000)
        assert (other.record.flags, other.record.ttl_ms) == (EXTENDED | 8, 30_000)

    async def test_an_older_fence_changes_nothing(self, store: PresenceStore, heard: Heard) -> None:
        key = session(new_party(), 1)
        await self.joined(store, key)
        await store.attach(key, attach_spec(b"1" * 32))

        assert not await store.detach(key, 1, cursor=1, cause=Detached.EOF)
        assert await store.leave(key, 1, Status.CLIENT_TIMEOUT) is None
        assert await store.signal(key, 1, origin_id=5, payload=b"x") is None
        await store.save_cursors([CursorRow(key, 1, 99)])
        found = await store.join(key, join_spec())
        assert isinstance(found, Exists)
        assert (found.record.active, found.record.fence, found.record.cursor) == (True, 2, 1)

    async def test_cursors_only_go_forward(self, store: PresenceStore, heard: Heard) -> None:
        key = session(new_party(), 1)
        await self.joined(store, key)
        for cursor in (5, 3):
            await store.save_cursors([CursorRow(key, 1, cursor)])
        await store.detach(key, 1, cursor=4, cause=Detached.EOF)

        attached = await store.attach(key, attach_spec())
        assert isinstance(attached, Attached)
        assert attached.record.cursor == 5

    async def test_a_signal_is_appended_once(self, store: PresenceStore, heard: Heard) -> None:
        """P-031"""
        party = new_party()
        key = session(party, 1)
        await store.subscribe(party)
        await self.joined(store, key)

        assert await store.signal(key, 1, origin_id=5, payload=b"hi") == Signalled(2)
        assert await store.signal(key, 1, origin_id=5, payload=b"hi") == Duplicate()
        assert await store.signal(key, 1, origin_id=4, payload=b"hi") == Duplicate()
        assert await store.signal(key, 1, origin_id=6, payload=b"ho") == Signalled(3)
        await heard.wait(lambda: len(heard.of(party)) == 3)
        assert [one.payload for one in heard.of(party)] == [b"", b"hi", b"ho"]

    async def test_the_log_is_read_in_order_and_within_limits(
        self, store: PresenceStore, heard: Heard
    ) -> None:
        party = new_party()
        for client in range(1, 8):
            await self.joined(store, session(party, client))

        some = await store.read_log(party, after_seq=2, limit=3)
        rest = await store.read_log(party, after_seq=5, limit=100)
        none = await store.read_log(party, after_seq=7, limit=100)

        assert some is not None
        assert [one.seq for one in some] == [3, 4, 5]
        assert rest is not None
        assert [one.client_id for one in rest] == [6, 7]
        assert list(none or ()) == []

    async def test_a_log_that_was_cut_off_says_so(self, store: PresenceStore, heard: Heard) -> None:
        """P-076"""
        party = new_party()
        key = session(party, 1)
        for _ in range(60):
            await self.joined(store, key)
            await store.leave(key, 1, Status.OK)

        assert await store.read_log(party, after_seq=1, limit=10) is None

    async def test_a_notice_reaches_those_who_follow_the_party(
        self, store: PresenceStore, heard: Heard
    ) -> None:
        party, other = new_party(), new_party()
        await store.subscribe(party)
        told = Notice(key=session(party, 1), status=Status.PARTICIPANT_DETACHED, node_id="n")
        await store.tell(Notice(key=session(other, 1), status=Status.PARTICIPANT_DETACHED))
        await store.tell(told)

        await heard.wait(lambda: told in heard.notices)
        assert all(one.key.party_id == party for one in heard.notices)

    async def test_nothing_is_heard_of_a_party_that_is_no_longer_followed(
        self, store: PresenceStore, heard: Heard
    ) -> None:
        party, other = new_party(), new_party()
        await store.subscribe(party)
        await store.subscribe(other)
        store.unsubscribe(party)
        await asyncio.sleep(0)
        await self.joined(store, session(party, 1))
        await self.joined(store, session(other, 1))

        await heard.wait(lambda: heard.of(other))
        assert heard.of(party) == []

    async def test_many_at_once_get_one_order(self, store: PresenceStore, heard: Heard) -> None:
        """P-107, on one node"""
        party = new_party()
        await store.subscribe(party)
        results = await asyncio.gather(
            *(store.join(session(party, client), join_spec()) for client in range(1, 51))
        )

        seqs = [one.seq for one in results if isinstance(one, Joined)]
        assert sorted(seqs) == list(range(1, 51))
        await heard.wait(lambda: len(heard.of(party)) == 50)
        assert [one.seq for one in heard.of(party)] == list(range(1, 51))
