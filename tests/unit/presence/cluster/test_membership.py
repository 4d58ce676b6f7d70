"""A node among others: what it must not do to its sessions when it asks for them."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.unit.presence.broker_harness import HarnessClient, codes, kinds
from tests.unit.presence.shared_broker_harness import SharedStage
from waystation.base.errors import StoreUnavailableError
from waystation.net.http2.port import GrpcStatus
from waystation.presence.model import MessageType, SessionKey, Status
from waystation.presence.session import session_end
from waystation.presence.session.session import State


@pytest.fixture
async def harness() -> AsyncIterator[SharedStage]:
    harness = SharedStage(session_ttl_s=120.0)
    yield harness
    assert not harness.failures


def key_of(participant: HarnessClient) -> SessionKey:
    return SessionKey(participant.party, participant.client, participant.session)  # pyright: ignore[reportArgumentType]


def come_back(participant: HarnessClient) -> None:
    participant.resume()
    participant.take()


def lose_the_lease(harness: SharedStage) -> None:
    """Time passes, and the node could not renew."""
    harness.clock.advance(harness.settings.self_fence_s + 1)
    assert harness.membership.fenced()


async def test_a_session_that_came_back_to_us_while_we_asked_for_it_stays(
    harness: SharedStage,
) -> None:
    """The store has moved on, but not to somebody else; letting it go left a ghost."""
    participant = harness.member(1)
    harness.store.near.before["party_reclaim"] = lambda: come_back(participant)

    await harness.membership.beat()

    assert harness.broker.registry.sessions[key_of(participant)].fence == 2
    assert participant.status is None


async def test_a_session_that_waited_and_came_back_while_we_asked_for_it_stays(
    harness: SharedStage,
) -> None:
    participant = harness.member(1)
    participant.cut()
    lose_the_lease(harness)
    # A node without a lease takes no JOIN: this one it had taken before.
    harness.broker.node.fenced = lambda: False
    harness.store.near.before["party_detach"] = lambda: come_back(participant)

    await harness.membership.beat()

    assert harness.broker.registry.sessions[key_of(participant)].state is State.ACTIVE
    assert participant.status is None


async def test_a_session_taken_over_elsewhere_is_dropped(harness: SharedStage) -> None:
    """P-111"""
    participant, other = harness.member(1), harness.member(2)
    field = f"{participant.client:016x}{participant.session:016x}".encode()
    rows = harness.redis.table(b"pp:{%016x}:s" % participant.party)
    rows[field] = rows[field].replace(b"node.1|1|1", b"node.2|7|2")

    await harness.membership.beat()

    assert codes(participant.take())[-1] is Status.TAKEN_OVER
    assert participant.status is GrpcStatus.ABORTED
    assert list(harness.broker.registry.sessions) == [key_of(other)]


async def test_a_session_that_followed_a_hand_off_ends_its_stream_with_ok(
    harness: SharedStage,
) -> None:
    """P-117: also if the store tells of it before the notice does."""
    participant = harness.member(1)
    harness.broker.registry.sessions[key_of(participant)].handed_until = harness.clock.mono() + 60
    field = f"{participant.client:016x}{participant.session:016x}".encode()
    rows = harness.redis.table(b"pp:{%016x}:s" % participant.party)
    rows[field] = rows[field].replace(b"node.1|1|1", b"node.2|7|2")

    await harness.membership.beat()

    assert Status.TAKEN_OVER not in codes(participant.take())
    assert participant.status is GrpcStatus.OK


async def test_a_stream_lost_during_the_renewal_leaves_a_whole_ttl(
    harness: SharedStage,
) -> None:
    """Frozen time ends when the sessions are ours again, not when the asking began."""
    watcher, participant = harness.member(1), harness.member(2)
    lose_the_lease(harness)

    def happens() -> None:
        harness.clock.advance(3.0)
        participant.cut()

    harness.store.near.before["party_reclaim"] = happens
    await harness.membership.beat()
    for seconds in (4.9, *[5.0] * 23):
        harness.pass_time(seconds)
        watcher.ping()
        await harness.membership.beat()
    early = [one for one in watcher.seen if one.message_type == MessageType.LEAVE]
    harness.pass_time(0.5)

    assert not early
    left = [one for one in watcher.seen if one.message_type == MessageType.LEAVE]
    assert codes(left) == [Status.CLIENT_TIMEOUT]


async def test_a_leave_whose_answer_is_lost_is_confirmed_by_the_log(
    harness: SharedStage,
) -> None:
    participant = harness.member(1)
    harness.store.near.loses_answer.add("party_leave")

    participant.leave()

    assert kinds(participant.take()) == ["ACK"]
    assert participant.status is GrpcStatus.OK
    assert not harness.broker.registry.sessions


async def test_a_leave_seen_late_ends_the_call_without_an_error(
    harness: SharedStage,
) -> None:
    """The client was told to say it again; there is nobody any more to say it for."""
    participant = harness.member(1)
    harness.store.unsubscribe(participant.party)  # pyright: ignore[reportArgumentType]
    harness.store.near.loses_answer.add("party_leave")
    participant.leave()
    assert codes(participant.take()) == [Status.STORE_BUSY]

    await harness.membership.compare()

    assert participant.take() == []
    assert participant.status is GrpcStatus.OK


async def test_a_session_that_left_is_not_written_back_to_a_reset_store(
    harness: SharedStage,
) -> None:
    """The party was empty and is forgotten; our own session is still waiting for the answer."""
    participant, other = harness.member(1), harness.member(2)
    session = harness.broker.registry.sessions[key_of(participant)]
    session.leaving = True
    await harness.store.leave(session.key, session.fence, Status.OK)
    harness.redis.run(("FLUSHDB",))

    await harness.membership.compare()

    snapshot = await harness.store.snapshot(session.key.party_id)
    assert snapshot is not None
    assert [one.key for one in snapshot.sessions] == [key_of(other)]


async def test_an_unanswered_leave_is_not_undone_by_a_reset_store(
    harness: SharedStage,
) -> None:
    """It was recorded, and the party forgotten, before we could ask again."""
    participant, other = harness.member(1), harness.member(2)
    participant.take()
    harness.store.unsubscribe(participant.party)  # pyright: ignore[reportArgumentType]
    harness.store.near.loses_answer.add("party_leave")
    participant.leave()
    assert codes(participant.take()) == [Status.STORE_BUSY]
    harness.redis.run(("FLUSHDB",))

    await harness.membership.compare()

    assert participant.status is GrpcStatus.OK
    snapshot = await harness.store.snapshot(key_of(participant).party_id)
    assert snapshot is not None
    assert [one.key for one in snapshot.sessions] == [key_of(other)]


async def test_an_unanswered_leave_that_the_store_lost_is_detached_again(
    harness: SharedStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes from here, so the store must not keep it as somebody who is there."""
    monkeypatch.setattr(session_end, "TRY_AGAIN_S", 0.0)
    participant, other = harness.member(1), harness.member(2)
    rows = harness.redis.table(b"pp:{%016x}:s" % participant.party)
    before = dict(rows)
    harness.store.unsubscribe(participant.party)  # pyright: ignore[reportArgumentType]
    harness.store.near.loses_answer.add("party_leave")
    participant.leave()
    rows.update(before)
    harness.redis.table(b"pp:{%016x}:m" % participant.party)[b"seq"] = b"1"

    await harness.membership.compare()
    for _ in range(10):
        await asyncio.sleep(0)

    snapshot = await harness.store.snapshot(key_of(participant).party_id)
    assert snapshot is not None
    assert {one.key: one.active for one in snapshot.sessions} == {
        key_of(participant): False,
        key_of(other): True,
    }


async def test_a_session_whose_leave_failed_still_times_out(harness: SharedStage) -> None:
    """Its timer came out while the store was asked, which then failed."""
    asked = asyncio.Event()

    async def fail() -> None:
        await asked.wait()
        raise StoreUnavailableError("away")

    participant = harness.member(1)
    harness.store.near.before["party_leave"] = fail
    participant.leave()
    harness.pass_time(6.0)
    asked.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert codes(participant.take()) == [Status.STORE_BUSY]

    for _ in range(25):
        await harness.membership.beat()
        harness.pass_time(5.0)

    participant.take()
    assert codes(participant.seen[-1:]) == [Status.CLIENT_TIMEOUT]
    assert not harness.broker.registry.sessions


async def test_a_session_resumed_after_an_unanswered_leave_is_written_back(
    harness: SharedStage,
) -> None:
    """The store gave it to us again, so it has not left."""
    participant = harness.member(1)
    harness.store.unsubscribe(participant.party)  # pyright: ignore[reportArgumentType]
    harness.broker.registry.sessions[key_of(participant)].may_have_left = True
    participant.cut()
    come_back(participant)
    harness.redis.run(("FLUSHDB",))

    await harness.membership.compare()

    snapshot = await harness.store.snapshot(key_of(participant).party_id)
    assert snapshot is not None
    assert [one.key for one in snapshot.sessions] == [key_of(participant)]
