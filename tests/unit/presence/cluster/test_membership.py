"""A node among others: what it must not do to its sessions when it asks for them."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.unit.presence.broker_harness import Actor, codes, kinds
from tests.unit.presence.shared_broker_harness import SharedStage
from waystation.base.errors import StoreUnavailableError
from waystation.net.http2.port import GrpcStatus
from waystation.presence.model import MessageType, SessionKey, Status
from waystation.presence.session import session_end
from waystation.presence.session.session import State


@pytest.fixture
async def stage() -> AsyncIterator[SharedStage]:
    stage = SharedStage(session_ttl_s=120.0)
    yield stage
    assert not stage.failures


def key_of(actor: Actor) -> SessionKey:
    return SessionKey(actor.party, actor.client, actor.session)  # pyright: ignore[reportArgumentType]


def come_back(actor: Actor) -> None:
    actor.resume()
    actor.take()


def lose_the_lease(stage: SharedStage) -> None:
    """Time passes, and the node could not renew."""
    stage.clock.advance(stage.settings.self_fence_s + 1)
    assert stage.membership.fenced()


async def test_a_session_that_came_back_to_us_while_we_asked_for_it_stays(
    stage: SharedStage,
) -> None:
    """The store has moved on, but not to somebody else; letting it go left a ghost."""
    actor = stage.member(1)
    stage.store.near.before["party_reclaim"] = lambda: come_back(actor)

    await stage.membership.beat()

    assert stage.broker.registry.sessions[key_of(actor)].fence == 2
    assert actor.status is None


async def test_a_session_that_waited_and_came_back_while_we_asked_for_it_stays(
    stage: SharedStage,
) -> None:
    actor = stage.member(1)
    actor.cut()
    lose_the_lease(stage)
    # A node without a lease takes no JOIN: this one it had taken before.
    stage.broker.node.fenced = lambda: False
    stage.store.near.before["party_detach"] = lambda: come_back(actor)

    await stage.membership.beat()

    assert stage.broker.registry.sessions[key_of(actor)].state is State.ACTIVE
    assert actor.status is None


async def test_a_session_taken_over_elsewhere_is_dropped(stage: SharedStage) -> None:
    """P-111"""
    actor, other = stage.member(1), stage.member(2)
    field = f"{actor.client:016x}{actor.session:016x}".encode()
    rows = stage.redis.table(b"pp:{%016x}:s" % actor.party)
    rows[field] = rows[field].replace(b"node.1|1|1", b"node.2|7|2")

    await stage.membership.beat()

    assert codes(actor.take())[-1] is Status.TAKEN_OVER
    assert actor.status is GrpcStatus.ABORTED
    assert list(stage.broker.registry.sessions) == [key_of(other)]


async def test_a_session_that_followed_a_hand_off_ends_its_stream_with_ok(
    stage: SharedStage,
) -> None:
    """P-117: also if the store tells of it before the notice does."""
    actor = stage.member(1)
    stage.broker.registry.sessions[key_of(actor)].handed_until = stage.clock.mono() + 60
    field = f"{actor.client:016x}{actor.session:016x}".encode()
    rows = stage.redis.table(b"pp:{%016x}:s" % actor.party)
    rows[field] = rows[field].replace(b"node.1|1|1", b"node.2|7|2")

    await stage.membership.beat()

    assert Status.TAKEN_OVER not in codes(actor.take())
    assert actor.status is GrpcStatus.OK


async def test_a_stream_lost_during_the_renewal_leaves_a_whole_ttl(
    stage: SharedStage,
) -> None:
    """Frozen time ends when the sessions are ours again, not when the asking began."""
    watcher, actor = stage.member(1), stage.member(2)
    lose_the_lease(stage)

    def happens() -> None:
        stage.clock.advance(3.0)
        actor.cut()

    stage.store.near.before["party_reclaim"] = happens
    await stage.membership.beat()
    for seconds in (4.9, *[5.0] * 23):
        stage.pass_time(seconds)
        watcher.ping()
        await stage.membership.beat()
    early = [one for one in watcher.seen if one.message_type == MessageType.LEAVE]
    stage.pass_time(0.5)

    assert not early
    left = [one for one in watcher.seen if one.message_type == MessageType.LEAVE]
    assert codes(left) == [Status.CLIENT_TIMEOUT]


async def test_a_leave_whose_answer_is_lost_is_confirmed_by_the_log(
    stage: SharedStage,
) -> None:
    actor = stage.member(1)
    stage.store.near.loses_answer.add("party_leave")

    actor.leave()

    assert kinds(actor.take()) == ["ACK"]
    assert actor.status is GrpcStatus.OK
    assert not stage.broker.registry.sessions


async def test_a_leave_seen_late_ends_the_call_without_an_error(
    stage: SharedStage,
) -> None:
    """The client was told to say it again; there is nobody any more to say it for."""
    actor = stage.member(1)
    stage.store.unsubscribe(actor.party)  # pyright: ignore[reportArgumentType]
    stage.store.near.loses_answer.add("party_leave")
    actor.leave()
    assert codes(actor.take()) == [Status.STORE_BUSY]

    await stage.membership.compare()

    assert actor.take() == []
    assert actor.status is GrpcStatus.OK


async def test_a_session_that_left_is_not_written_back_to_a_reset_store(
    stage: SharedStage,
) -> None:
    """The party was empty and is forgotten; our own session is still waiting for the answer."""
    actor, other = stage.member(1), stage.member(2)
    session = stage.broker.registry.sessions[key_of(actor)]
    session.leaving = True
    await stage.store.leave(session.key, session.fence, Status.OK)
    stage.redis.run(("FLUSHDB",))

    await stage.membership.compare()

    snapshot = await stage.store.snapshot(session.key.party_id)
    assert snapshot is not None
    assert [one.key for one in snapshot.sessions] == [key_of(other)]


async def test_an_unanswered_leave_is_not_undone_by_a_reset_store(
    stage: SharedStage,
) -> None:
    """It was recorded, and the party forgotten, before we could ask again."""
    actor, other = stage.member(1), stage.member(2)
    actor.take()
    stage.store.unsubscribe(actor.party)  # pyright: ignore[reportArgumentType]
    stage.store.near.loses_answer.add("party_leave")
    actor.leave()
    assert codes(actor.take()) == [Status.STORE_BUSY]
    stage.redis.run(("FLUSHDB",))

    await stage.membership.compare()

    assert actor.status is GrpcStatus.OK
    snapshot = await stage.store.snapshot(key_of(actor).party_id)
    assert snapshot is not None
    assert [one.key for one in snapshot.sessions] == [key_of(other)]


async def test_an_unanswered_leave_that_the_store_lost_is_detached_again(
    stage: SharedStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes from here, so the store must not keep it as somebody who is there."""
    monkeypatch.setattr(session_end, "TRY_AGAIN_S", 0.0)
    actor, other = stage.member(1), stage.member(2)
    rows = stage.redis.table(b"pp:{%016x}:s" % actor.party)
    before = dict(rows)
    stage.store.unsubscribe(actor.party)  # pyright: ignore[reportArgumentType]
    stage.store.near.loses_answer.add("party_leave")
    actor.leave()
    rows.update(before)
    stage.redis.table(b"pp:{%016x}:m" % actor.party)[b"seq"] = b"1"

    await stage.membership.compare()
    for _ in range(10):
        await asyncio.sleep(0)

    snapshot = await stage.store.snapshot(key_of(actor).party_id)
    assert snapshot is not None
    assert {one.key: one.active for one in snapshot.sessions} == {
        key_of(actor): False,
        key_of(other): True,
    }


async def test_a_session_whose_leave_failed_still_times_out(stage: SharedStage) -> None:
    """Its timer came out while the store was asked, which then failed."""
    asked = asyncio.Event()

    async def fail() -> None:
        await asked.wait()
        raise StoreUnavailableError("away")

    actor = stage.member(1)
    stage.store.near.before["party_leave"] = fail
    actor.leave()
    stage.pass_time(6.0)
    asked.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert codes(actor.take()) == [Status.STORE_BUSY]

    for _ in range(25):
        await stage.membership.beat()
        stage.pass_time(5.0)

    actor.take()
    assert codes(actor.seen[-1:]) == [Status.CLIENT_TIMEOUT]
    assert not stage.broker.registry.sessions


async def test_a_session_resumed_after_an_unanswered_leave_is_written_back(
    stage: SharedStage,
) -> None:
    """The store gave it to us again, so it has not left."""
    actor = stage.member(1)
    stage.store.unsubscribe(actor.party)  # pyright: ignore[reportArgumentType]
    stage.broker.registry.sessions[key_of(actor)].may_have_left = True
    actor.cut()
    come_back(actor)
    stage.redis.run(("FLUSHDB",))

    await stage.membership.compare()

    snapshot = await stage.store.snapshot(key_of(actor).party_id)
    assert snapshot is not None
    assert [one.key for one in snapshot.sessions] == [key_of(actor)]
