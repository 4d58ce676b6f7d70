"""Acknowledgements, the window and order, over real gRPC. What takes time is in tests/unit."""

import asyncio

import grpc

from tests.conformance.presence.conftest import NodeSetup
from tests.conformance.presence.kit import Node, PresenceClient, until
from waystation.presence.model import MessageType, Status
from waystation.presence.session.delivery import Delivery

ACK, JOIN, LEAVE, LIST = MessageType.ACK, MessageType.JOIN, MessageType.LEAVE, MessageType.LIST
PING = MessageType.PING


def delivery_of(node: Node, presence_client: PresenceClient) -> Delivery:
    return next(
        one.delivery
        for key, one in node.broker.registry.sessions.items()
        if key.client_id == presence_client.client
    )


async def visitors(
    node_setup: NodeSetup, node: Node, number: int, first: int = 100
) -> list[PresenceClient]:
    return [await node_setup.member(node, first + at, auto=True) for at in range(number)]


async def test_everything_that_needs_an_ack_waits_for_its_own(node_setup: NodeSetup) -> None:
    """P-036"""
    node = await node_setup.node()
    a = node_setup.presence_client(node, 1)
    await a.join()
    _, welcome = await a.get_many(2)
    b = await node_setup.member(node, 2)
    joined = await a.expect_kind(JOIN)
    await b.leave()
    left = await a.expect_kind(LEAVE)
    delivery = delivery_of(node, a)
    assert set(delivery.inflight) == {welcome.message_id, joined.message_id, left.message_id}

    await a.ack(joined.message_id)

    await until(lambda: len(delivery.inflight) == 2)
    assert set(delivery.inflight) == {welcome.message_id, left.message_id}


async def test_one_ack_may_name_many_and_a_repeated_one_does_nothing(node_setup: NodeSetup) -> None:
    """P-037 P-038"""
    node = await node_setup.node()
    a = await node_setup.member(node, 1)
    await visitors(node_setup, node, 25)
    told = await a.get_many(25)
    delivery = delivery_of(node, a)
    ids = [one.message_id for one in told]

    await a.ack(*ids)
    await until(lambda: not delivery.inflight)
    await a.ack(*ids)
    await a.ack(12345, 1 << 63 | 5)

    await a.expect_nothing()
    assert delivery.acked_n == 26


async def test_a_position_acknowledges_everything_up_to_it(node_setup: NodeSetup) -> None:
    """P-039 P-040"""
    node = await node_setup.node()
    a = await node_setup.member(node, 1)
    await visitors(node_setup, node, 3)
    told = await a.get_many(3)
    delivery = delivery_of(node, a)

    await a.say(ACK, party_seq=told[1].party_seq)
    await until(lambda: set(delivery.inflight) == {told[2].message_id})

    await a.say(ACK, party_seq=told[2].party_seq + 1)
    error = await a.expect_kind(MessageType.ERROR)
    assert error.status_code == Status.INVALID_FIELD
    assert set(delivery.inflight) == {told[2].message_id}


async def test_a_ping_may_carry_acks(node_setup: NodeSetup) -> None:
    """P-041"""
    node = await node_setup.node()
    a = await node_setup.member(node, 1)
    await visitors(node_setup, node, 2)
    told = await a.get_many(2)

    said = await a.say(PING, ack_message_ids=[one.message_id for one in told])

    assert list((await a.expect_kind(ACK)).ack_message_ids) == [said]
    assert not delivery_of(node, a).inflight


async def test_acks_are_not_answered(node_setup: NodeSetup) -> None:
    """P-042"""
    node = await node_setup.node()
    a = await node_setup.member(node, 1)
    await a.ack(5, message_id=90)
    await a.expect_nothing()


async def test_and_those_who_want_it_get_one_answer(node_setup: NodeSetup) -> None:
    """P-042"""
    node = await node_setup.node(answer_acks=True)
    b = await node_setup.member(node, 2)
    await b.expect_kind(ACK)  # the answer to the ack of its LIST
    await b.ack(5, message_id=91)

    assert list((await b.expect_kind(ACK)).ack_message_ids) == [91]
    await b.expect_nothing()


async def test_a_full_window_pauses_and_loses_nothing(node_setup: NodeSetup) -> None:
    """P-047"""
    node = await node_setup.node(client_sessions_max=400, join_burst=1000)
    a = await node_setup.member(node, 1)
    channel = grpc.aio.insecure_channel(node.target)
    crowd = [node_setup.presence_client(node, 2, session) for session in range(1, 301)]
    for one in crowd:
        await one.join(channel=channel, flags=8)
    await until(lambda: len(node.broker.registry.sessions) == 301)
    delivery = delivery_of(node, a)
    told = await a.get_many(256)

    await a.expect_nothing()
    assert len(delivery.inflight) == 256
    await a.ack(*(one.message_id for one in told[:100]))
    told += await a.get_many(44)
    await a.expect_nothing()
    assert [one.party_seq for one in told] == list(range(2, 302))
    assert len(delivery.inflight) == 200
    for one in crowd:
        await one.disconnect()
    await channel.close()


async def test_ten_pings_in_one_go_are_each_answered_once(node_setup: NodeSetup) -> None:
    """P-049"""
    node = await node_setup.node()
    a = await node_setup.member(node, 1)

    ids = await asyncio.gather(*(a.ping() for _ in range(10)))
    answered: list[int] = []
    while len(answered) < 10:
        answered += (await a.expect_kind(ACK)).ack_message_ids

    assert sorted(answered) == sorted(ids)
    await a.expect_nothing()
