"""Streams that break, and sessions that go on: over real gRPC."""

import asyncio

import grpc

from tests.conformance.presence.conftest import NodeSetup
from tests.conformance.presence.kit import Node, PresenceClient, kinds, listed, until
from waystation.presence.model import Flags, MessageType, SessionKey, Status
from waystation.presence.session.session import Session, State

ACK, JOIN, LEAVE, LIST = MessageType.ACK, MessageType.JOIN, MessageType.LEAVE, MessageType.LIST
Code = grpc.StatusCode


def session_of(node: Node, presence_client: PresenceClient) -> Session:
    key = SessionKey(presence_client.party, presence_client.client, presence_client.session)  # pyright: ignore[reportArgumentType]
    return node.server.broker.registry.sessions[key]


async def cut(node: Node, presence_client: PresenceClient) -> None:
    session = session_of(node, presence_client)
    await presence_client.cut()
    await until(lambda: session.state is State.DETACHED)


async def test_a_lost_stream_is_not_announced(node_setup: NodeSetup) -> None:
    """P-065"""
    node = await node_setup.node()
    a, b = await node_setup.member(node, 1), await node_setup.member(node, 2)
    await a.expect_kind(JOIN)

    await cut(node, b)
    await a.expect_nothing()
    c = node_setup.presence_client(node, 3)
    await c.join()
    _, welcome = await c.get_many(2)

    assert listed(welcome) == [(1, [a.session]), (2, [b.session])]


async def test_a_half_close_without_a_leave_detaches_the_session(node_setup: NodeSetup) -> None:
    """P-066"""
    node = await node_setup.node()
    a, b = await node_setup.member(node, 1), await node_setup.member(node, 2)
    await a.expect_kind(JOIN)
    session = session_of(node, b)

    await b.call.done_writing()

    await until(lambda: session.state is State.DETACHED)
    assert await b.status() is Code.OK
    await a.expect_nothing()


async def test_a_leave_followed_by_half_a_close_is_acknowledged(node_setup: NodeSetup) -> None:
    node = await node_setup.node()
    a = await node_setup.member(node, 1)

    await a.leave()
    await a.call.done_writing()

    await a.expect_kind(ACK)
    assert await a.status() is Code.OK
    assert not node.broker.registry.sessions


async def test_a_resumed_session_gets_what_it_missed_between_two_lists(
    node_setup: NodeSetup,
) -> None:
    """P-067"""
    node = await node_setup.node()
    a, b = await node_setup.member(node, 1), await node_setup.member(node, 2, auto=True)
    first = await a.expect_kind(JOIN)
    await cut(node, a)
    c = await node_setup.member(node, 3, auto=True)
    await b.leave()
    await b.status()

    await a.resume()
    ack, snapshot, *missed, closing = await a.get_many(6)

    assert (ack.message_type, ack.status_code) == (ACK, Status.SESSION_RESUMED)
    assert ack.resume_token
    assert (snapshot.message_type, snapshot.status_code) == (LIST, Status.OK)
    assert listed(snapshot) == listed(closing) == [(3, [c.session])]
    assert kinds(missed) == ["JOIN", "JOIN", "LEAVE"]
    assert [one.party_seq for one in missed] == [2, 3, 4]
    assert missed[0].message_id == first.message_id
    assert missed[0].delivery_attempt == 2
    assert [one.delivery_attempt for one in missed[1:]] == [0, 0]
    assert snapshot.party_seq == closing.party_seq == 4
    told = [one for one in c.seen if one.message_type in (JOIN, LEAVE)]
    assert kinds(told) == ["LEAVE"]
    d = await node_setup.member(node, 4)
    assert (await a.expect_kind(JOIN)).client_id == d.client


async def test_nothing_missed_needs_no_closing_list(node_setup: NodeSetup) -> None:
    """P-067 P-077 P-078"""
    node = await node_setup.node()
    a = await node_setup.member(node, 1)
    for _ in range(3):
        await until(lambda: not session_of(node, a).delivery.inflight)
        await cut(node, a)
        await a.resume()
        ack, welcome = await a.get_many(2)
        assert (ack.status_code, kinds([welcome])) == (Status.SESSION_RESUMED, ["LIST"])
        await a.expect_nothing()
        await a.ack(welcome.message_id)


async def test_a_resume_may_acknowledge(node_setup: NodeSetup) -> None:
    """P-070"""
    node = await node_setup.node()
    a = await node_setup.member(node, 1)
    others = [await node_setup.member(node, client) for client in (2, 3, 4)]
    told = await a.get_many(3)
    await cut(node, a)

    await a.resume(party_seq=told[0].party_seq, ack_message_ids=[told[2].message_id])
    _, _, missed, closing = await a.get_many(4)

    assert missed.message_id == told[1].message_id
    assert closing.message_type == LIST
    await a.expect_nothing()
    assert len(others) == 3


async def test_an_active_session_is_not_taken_over_without_a_token(node_setup: NodeSetup) -> None:
    """P-071 P-072 P-073"""
    node = await node_setup.node()
    a, witness = await node_setup.member(node, 1), await node_setup.member(node, 2)
    await a.expect_kind(JOIN)
    thief = node_setup.presence_client(node, 1, a.session)

    await thief.join()
    await thief.expect_end(Status.SESSION_ID_IN_USE, Code.ALREADY_EXISTS)
    await thief.join(resume_token=b"0123456789abcdef")
    await thief.expect_end(Status.RESUME_REJECTED, Code.PERMISSION_DENIED)
    await a.ping()
    await a.expect_kind(ACK)

    heir = node_setup.presence_client(node, 1, a.session)
    await heir.join(resume_token=a.token)
    ack = await heir.expect_kind(ACK)
    assert ack.status_code == Status.SESSION_RESUMED
    await a.expect_end(Status.TAKEN_OVER, Code.ABORTED)
    await witness.expect_nothing()


async def test_a_wrong_token_changes_nothing(node_setup: NodeSetup) -> None:
    """P-073: neither the deadline nor the right token."""
    node = await node_setup.node()
    a = await node_setup.member(node, 1)
    await cut(node, a)
    session = session_of(node, a)
    deadline, fence = session.deadline(), session.fence
    wrong = node_setup.presence_client(node, 1, a.session)

    await wrong.join(resume_token=b"wrong")
    await wrong.expect_end(Status.RESUME_REJECTED, Code.PERMISSION_DENIED)

    assert (session.deadline(), session.fence) == (deadline, fence)
    await a.resume()
    assert (await a.expect_kind(ACK)).status_code == Status.SESSION_RESUMED


async def test_the_previous_token_is_valid_after_a_lost_ack(node_setup: NodeSetup) -> None:
    """P-074: within its grace."""
    node = await node_setup.node(resume_token_grace_s=30.0)
    a = await node_setup.member(node, 1)
    before = a.token
    await cut(node, a)
    await a.resume()
    await a.get_many(2)
    await cut(node, a)

    await a.resume(resume_token=before)

    assert (await a.expect_kind(ACK)).status_code == Status.SESSION_RESUMED


async def test_the_previous_token_expires(node_setup: NodeSetup) -> None:
    """P-074: after its grace."""
    node = await node_setup.node(resume_token_grace_s=0.01)
    a = await node_setup.member(node, 1)
    before = a.token
    await cut(node, a)
    await a.resume()
    await a.get_many(2)
    await cut(node, a)
    await asyncio.sleep(0.03)

    await a.resume(resume_token=before)

    await a.expect_end(Status.RESUME_REJECTED, Code.PERMISSION_DENIED)


async def test_resume_only_creates_nothing(node_setup: NodeSetup) -> None:
    """P-075"""
    node = await node_setup.node()
    a = node_setup.presence_client(node, 1)

    await a.join(flags=Flags.RESUME_ONLY)

    await a.expect_end(Status.SESSION_NOT_FOUND, Code.NOT_FOUND)
    assert not node.broker.registry.sessions
    assert not node.broker.registry.parties


async def test_open_deployments_may_ask_for_the_token(node_setup: NodeSetup) -> None:
    node = await node_setup.node(resume_requires_token=True)
    a = await node_setup.member(node, 1)
    token = a.token
    await cut(node, a)

    await a.join()
    await a.expect_end(Status.RESUME_REJECTED, Code.PERMISSION_DENIED)
    await a.resume(resume_token=token)

    assert (await a.expect_kind(ACK)).status_code == Status.SESSION_RESUMED


async def test_a_client_may_reconnect_before_its_loss_is_noticed(node_setup: NodeSetup) -> None:
    """P-079"""
    node = await node_setup.node()
    a = await node_setup.member(node, 1)
    token = a.token
    back = node_setup.presence_client(node, 1, a.session)

    await back.join(extended=False)
    await back.expect_end(Status.SESSION_ID_IN_USE, Code.ALREADY_EXISTS)
    await back.join(resume_token=token)
    assert (await back.expect_kind(ACK)).status_code == Status.SESSION_RESUMED
    await a.expect_end(Status.TAKEN_OVER, Code.ABORTED)
    await cut(node, back)
    old = node_setup.presence_client(node, 1, a.session)
    await old.join(extended=False)

    assert (await old.expect_kind(ACK)).status_code == Status.SESSION_RESUMED


async def test_a_hundred_cut_and_resumed_at_once(node_setup: NodeSetup) -> None:
    """P-080, a tenth of it over sockets; a thousand in tests/unit."""
    node = await node_setup.node(join_burst=1000)
    watcher = await node_setup.member(node, 9999, auto=True)  # else it is told again after 5 s
    channel = grpc.aio.insecure_channel(node.target)
    crowd = [node_setup.presence_client(node, client) for client in range(1, 101)]
    for one in crowd:
        await one.join(channel=channel)
        await one.get_many(2)
    await watcher.get_many(100)
    await channel.close()
    registry = node.broker.registry
    await until(
        lambda: sum(one.state is State.DETACHED for one in registry.sessions.values()) == 100
    )
    timers = len(registry.wheel)

    again = grpc.aio.insecure_channel(node.target)
    for one in crowd:
        await one.resume(channel=again)
    for one in crowd:
        assert (await one.expect_kind(ACK)).status_code == Status.SESSION_RESUMED
    await watcher.expect_nothing()
    assert len(registry.wheel) <= timers + 100
    for one in crowd:
        await one.disconnect()
    await again.close()


async def test_those_who_asked_are_told_who_lost_the_stream(node_setup: NodeSetup) -> None:
    """P-081: the times are in tests/unit."""
    node = await node_setup.node(update_after_s=0.2, tick_s=0.02)
    a = await node_setup.member(node, 1, flags=Flags.WANT_UPDATES)
    plain = await node_setup.member(node, 2)
    b = await node_setup.member(node, 3)
    await a.get_many(2)
    await plain.expect_kind(JOIN)

    await cut(node, b)
    lost = await a.expect_kind(MessageType.UPDATE)
    await a.say(LIST)
    _, now = await a.get_many(2)
    await b.resume()
    back = await a.expect_kind(MessageType.UPDATE)

    assert (lost.status_code, lost.session_id) == (Status.PARTICIPANT_DETACHED, b.session)
    marks = {one.client_id: list(one.detached_session_id) for one in now.participant_client_ids}
    assert marks == {2: [], 3: [b.session]}
    assert (back.status_code, back.session_id) == (Status.PARTICIPANT_REATTACHED, b.session)
    await plain.expect_nothing()
