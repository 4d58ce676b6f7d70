"""Sessions that are handed from node to node: drains, tickets, shedding, who does not move."""

import asyncio
import random
from typing import Any

import grpc
import pytest

from tests.conformance.presence.kit import PEER_TOKEN, Node, PresenceClient, until
from tests.conformance.presence.test_nodes import Town, own_redis, town
from waystation.client.party.member import PartyMember
from waystation.presence.cluster.peer_clients import PeerClients
from waystation.presence.cluster.session_handover import excess
from waystation.presence.model import MessageType, Status
from waystation.presence.store import PresenceNode
from waystation.presence.wire.party_presence_pb2 import ClientMessage
from waystation.presence.wire.presence_cluster_pb2 import HandoffOffer, HandoffRequest, SessionKey

__all__ = ["own_redis", "town"]

pytestmark = pytest.mark.redis

ACK, JOIN, LEAVE, LIST = MessageType.ACK, MessageType.JOIN, MessageType.LEAVE, MessageType.LIST
DRAIN, HANDOFF = MessageType.DRAIN, MessageType.HANDOFF


class Mover(PresenceClient):
    """Acknowledges everything, and goes where it is sent while it still reads the old stream.

    From then on it says nothing there, so that it sees the status with which the call ends.
    """

    def __init__(self, target: str, client: int, **more: Any) -> None:
        super().__init__(target, client, **more)
        self.auto = True
        self.next: PresenceClient | None = None

    async def move(self, channels: dict[str, grpc.aio.Channel]) -> PresenceClient:
        while (told := await self.get()).message_type != HANDOFF:
            pass
        await self.stop_acks()
        where = told.handoff
        heir = PresenceClient(where.endpoints[0], self.client, self.session, self.party)
        heir.auto = True
        heir.ids = self.ids
        self.next = heir
        channel = channels.get(heir.target)
        opening: dict[str, Any] = {"channel": channel} if channel else {}
        await heir.join(resume_token=where.ticket, **opening)
        assert (await heir.expect_kind(ACK)).status_code == Status.SESSION_RESUMED
        return heir


def announced(*streams: PresenceClient) -> list[tuple[int, int]]:
    """Party messages of a session over all its streams, each id once, in order of position."""
    rows = {
        (one.party_seq, one.message_id)
        for stream in streams
        for one in stream.seen
        if one.message_type in (JOIN, LEAVE)
    }
    return sorted(rows)


def kinds_seen(presence_client: PresenceClient) -> set[int]:
    return {one.message_type for one in presence_client.seen}


async def beat(*nodes: Node) -> None:
    """Everybody knows of everybody."""
    for _ in range(2):
        for node in nodes:
            assert node.server.membership is not None
            await node.server.membership.beat()


@pytest.mark.parametrize("crowd", [100, pytest.param(500, marks=pytest.mark.soak)])
async def test_a_drained_node_hands_everybody_over(town: Town, crowd: int) -> None:
    """P-117: 500 sessions in full, with somebody coming and going on the other node meanwhile."""
    # Nobody dies here; and who starts many streams on a busy machine may be late with a lease.
    patient = {"lease_s": 30.0, "self_fence_s": 25.0}
    fast = {"join_rate_per_min": 1e6, "join_burst": 1000, **patient}
    first, second = await town.node(**fast), await town.node(**fast)
    await beat(first, second)
    channels = {node.target: grpc.aio.insecure_channel(node.target) for node in (first, second)}
    movers = [Mover(first.target, client, party=1 + client % 25) for client in range(1, crowd + 1)]
    town.presence_clients += movers

    async def come(mover: Mover) -> None:
        await mover.join(channel=channels[first.target])
        await mover.welcomed()

    for at in range(0, crowd, 50):
        await asyncio.gather(*(come(one) for one in movers[at : at + 50]))
    witnesses = [PresenceClient(second.target, 9000 + party, party=party) for party in range(1, 26)]
    for witness in witnesses:
        witness.auto = True
        await witness.join(channel=channels[second.target])
        await witness.welcomed()
    town.presence_clients += witnesses

    moved = asyncio.Event()

    async def churn() -> None:
        for count in range(10_000):
            if moved.is_set():
                return
            visitor = PresenceClient(second.target, 10_000 + count, party=1 + count % 25)
            await visitor.join(channel=channels[second.target])
            await visitor.welcomed()
            await visitor.leave()
            await visitor.status()
            await visitor.disconnect()

    churning = asyncio.create_task(churn())
    began = asyncio.get_running_loop().time()
    draining = asyncio.create_task(first.server.drain(60.0))
    late = PresenceClient(first.target, 5000)
    town.presence_clients.append(late)
    await until(lambda: first.broker.node.draining)
    assert not first.server.health.serving
    await late.join()
    refused = await late.expect_end(Status.DRAINING, grpc.StatusCode.UNAVAILABLE)
    assert list(refused.handoff.endpoints) == [second.target]
    heirs = await asyncio.gather(*(mover.move(channels) for mover in movers))
    took_s = asyncio.get_running_loop().time() - began
    await asyncio.wait_for(draining, 20)
    moved.set()
    await asyncio.wait_for(churning, 20)
    town.presence_clients += heirs

    # At 200 a second it is 2.5 s; the bar of the specification is 10 s, on a quiet machine.
    assert took_s < 30
    for mover in movers:
        order: list[int] = [one.message_type for one in mover.seen]
        assert order.index(DRAIN) < order.index(HANDOFF)
        assert await mover.status() is grpc.StatusCode.OK
    assert not first.broker.registry.sessions
    await until(lambda: len(second.broker.registry.sessions) >= crowd + 25)
    residents = set(range(1, crowd + 1))
    for witness in witnesses:
        gone = {one.client_id for one in witness.seen if one.message_type == LEAVE}
        assert not gone & residents
    for mover, heir in zip(movers, heirs, strict=True):
        witness = witnesses[mover.party - 1]
        mine, theirs = announced(mover, heir), announced(witness)
        common = {row for row in theirs if row[0] <= mine[-1][0]} if mine else set()
        assert common <= set(mine), "nothing is lost"
        assert len({seq for seq, _ in mine}) == len(mine), "one id for one position"
    for channel in channels.values():
        await channel.close()


async def test_an_old_client_is_sent_away_at_the_deadline_and_resumes_by_its_ids(
    town: Town,
) -> None:
    """P-118"""
    first, second = await town.node(), await town.node()
    await beat(first, second)
    witness = await town.member(second, 1000)
    old = await town.member(first, 2, extended=False)
    await until(lambda: len(announced(witness)) == 1)

    await first.server.drain(0.5)

    last = await old.expect_kind(MessageType.ERROR)
    assert last.status_code == Status.DRAINING
    assert await old.status() is grpc.StatusCode.UNAVAILABLE
    old.target = second.target
    await old.join(extended=False)
    assert (await old.expect_kind(ACK)).status_code == Status.SESSION_RESUMED
    assert max(kinds_seen(old)) <= MessageType.PING
    assert LEAVE not in kinds_seen(witness)
    assert len(announced(witness)) == 1


def request_for(*keys: tuple[int, int, int]) -> HandoffRequest:
    offers = [
        HandoffOffer(key=SessionKey(party_id=party, client_id=client, session_id=session), fence=1)
        for party, client, session in keys
    ]
    return HandoffRequest(from_node="node.1", from_incarnation=1, offers=offers)


async def ticket_for(node: Node, presence_client: PresenceClient) -> bytes:
    peer_clients = PeerClients(PEER_TOKEN)
    try:
        reply = await peer_clients.prepare(
            node.server.describe(),
            request_for((presence_client.party, presence_client.client, presence_client.session)),
        )
    finally:
        await peer_clients.close()
    (grant,) = reply.grants
    assert grant.accepted
    assert len(grant.ticket) == 16
    return grant.ticket


async def test_a_ticket_works_once_for_one_session_and_for_a_while(town: Town) -> None:
    """P-119"""
    first, second = await town.node(), await town.node(ticket_s=0.6)
    a, b = await town.member(first, 1), await town.member(first, 2)
    ticket = await ticket_for(second, a)

    other = PresenceClient(second.target, b.client, b.session)
    heir, again = (
        PresenceClient(second.target, a.client, a.session),
        PresenceClient(second.target, a.client),
    )
    late = PresenceClient(second.target, b.client, b.session)
    town.presence_clients += [other, heir, again, late]
    await other.join(resume_token=ticket)
    await other.expect_end(Status.RESUME_REJECTED, grpc.StatusCode.PERMISSION_DENIED)
    await heir.join(resume_token=ticket)
    assert (await heir.expect_kind(ACK)).status_code == Status.SESSION_RESUMED
    await again.join(resume_token=ticket)
    await again.expect_end(Status.RESUME_REJECTED, grpc.StatusCode.PERMISSION_DENIED)
    expiring = await ticket_for(second, b)
    mono = second.broker.registry.now().mono
    await until(lambda: second.broker.registry.now().mono > mono + 0.7)
    await late.join(resume_token=expiring)
    await late.expect_end(Status.RESUME_REJECTED, grpc.StatusCode.PERMISSION_DENIED)

    asked = await b.ping()  # nobody's trouble was b's
    await until(lambda: any(asked in one.ack_message_ids for one in b.seen))


async def test_a_ticket_survives_a_store_that_is_busy(town: Town) -> None:
    """P-119: it was right, and nothing was done with it."""
    first, second = await town.node(), await town.node()
    a = await town.member(first, 1)
    ticket = await ticket_for(second, a)
    tickets, now = second.broker.tickets, second.broker.registry.now()
    key = next(iter(first.broker.registry.sessions))

    assert tickets.redeem(key, ticket, now.mono)
    assert not tickets.redeem(key, ticket, now.mono)
    tickets.give_back(key, ticket, now.mono)
    assert tickets.redeem(key, ticket, now.mono)


async def test_nobody_without_the_clusters_token_gets_a_ticket(town: Town) -> None:
    node = await town.node()
    stranger = PeerClients("of another cluster")
    try:
        with pytest.raises(Exception, match="unauthenticated"):
            await stranger.prepare(node.server.describe(), request_for((1, 2, 3)))
    finally:
        await stranger.close()

    assert not len(node.broker.tickets)


async def test_a_node_that_takes_nobody_gives_no_ticket(town: Town) -> None:
    node = await town.node(node_sessions_max=1)
    await town.member(node, 1)
    peer_clients = PeerClients(PEER_TOKEN)
    try:
        reply = await peer_clients.prepare(
            node.server.describe(), request_for((1, 2, 3), (0, 2, 3))
        )
    finally:
        await peer_clients.close()

    assert [grant.accepted for grant in reply.grants] == [False, False]


async def test_who_ignores_a_hand_off_is_detached_at_the_deadline(town: Town) -> None:
    """P-120"""
    first, second = await town.node(), await town.node()
    await beat(first, second)
    witness = await town.member(second, 1000)
    idler = await town.member(first, 1)

    await first.server.drain(1.0)

    assert HANDOFF in kinds_seen(idler)
    assert await idler.status() is grpc.StatusCode.UNAVAILABLE
    idler.target = second.target
    await idler.resume()
    assert (await idler.expect_kind(ACK)).status_code == Status.SESSION_RESUMED
    assert LEAVE not in kinds_seen(witness)


async def test_a_target_that_dies_after_its_ticket_is_no_harm(town: Town) -> None:
    """P-120: the normal resume, on a third node."""
    first, second = await town.node(), await town.node(zone="")
    await beat(first, second)
    mover = await town.member(first, 1)
    draining = asyncio.create_task(first.server.drain(3.0))
    await until(lambda: HANDOFF in kinds_seen(mover))
    third = await town.node()
    await town.kill(second)
    await draining

    mover.target = third.target
    await mover.resume()
    assert (await mover.expect_kind(ACK)).status_code == Status.SESSION_RESUMED


async def test_a_drain_that_is_undone_keeps_who_has_not_moved(town: Town) -> None:
    """P-120"""
    first, second = await town.node(handoff_rate_per_s=10.0), await town.node()
    await beat(first, second)
    presence_clients = [await town.member(first, client) for client in range(1, 13)]
    draining = asyncio.create_task(first.server.drain(30.0))
    await until(lambda: any(HANDOFF in kinds_seen(one) for one in presence_clients))
    told = [one for one in presence_clients if HANDOFF in kinds_seen(one)]
    await first.server.undo_drain()
    await asyncio.wait_for(draining, 20)

    assert first.server.health.serving
    late = await town.member(first, 500)
    asked = await late.ping()
    await until(lambda: any(asked in one.ack_message_ids for one in late.seen))
    assert len(told) < len(presence_clients)
    for one in presence_clients:
        asked = await one.ping()
        await until(lambda one=one, asked=asked: any(asked in m.ack_message_ids for m in one.seen))
    assert sum(HANDOFF in kinds_seen(one) for one in presence_clients) < len(presence_clients)


async def test_what_was_acknowledged_before_a_move_does_not_come_again(town: Town) -> None:
    """P-070 P-117: not even what lies above something that was not acknowledged."""
    first, second = await town.node(), await town.node()
    await beat(first, second)
    a = PresenceClient(first.target, 1)
    town.presence_clients.append(a)
    await a.join()
    await a.welcomed()
    for client in (2, 3, 4):
        await town.member(second, client)
    two, three, four = await a.get_many(3)
    assert [one.client_id for one in (two, three, four)] == [2, 3, 4]
    await a.ack(three.message_id)
    session = next(iter(first.broker.registry.sessions.values()))
    await until(lambda: len(session.delivery.inflight) == 2)
    draining = asyncio.create_task(first.server.drain(20.0))
    moved: list[ClientMessage] = []
    while not moved or moved[-1].message_type != HANDOFF:
        moved.append(await a.get())
    where = moved[-1].handoff
    heir = PresenceClient(where.endpoints[0], 1)
    heir.ids = a.ids
    town.presence_clients.append(heir)
    await heir.join(resume_token=where.ticket, ack_message_ids=[four.message_id])
    resumed, _snapshot, again, closing = await heir.get_many(4)

    assert resumed.status_code == Status.SESSION_RESUMED
    assert again.message_id == two.message_id
    assert closing.message_type == LIST
    await heir.expect_nothing()
    assert await a.status() is grpc.StatusCode.OK
    await draining


async def test_our_client_moves_with_its_node_and_tells_nobody(town: Town) -> None:
    """P-117: `client/party`, whose application sees neither a gap nor anything twice."""
    first, second = await town.node(), await town.node()
    await beat(first, second)
    witness = await town.member(second, 1000)
    told: list[Any] = []
    member = PartyMember(first.target, party_id=witness.party, client_id=7, on_event=told.append)
    member.start()
    await member.joined()
    before = await town.member(second, 1001)
    await until(lambda: len(member.participants) == 2)
    await first.server.drain(20.0)
    after = await town.member(second, 1002)
    await until(lambda: len(member.participants) == 3)

    assert {one.client_id for one in member.participants} == {1000, 1001, 1002}
    assert member.resumes == 1
    comings = [one.who.client_id for one in told if type(one).__name__ == "Joined"]
    assert comings == [before.client, after.client]
    assert LEAVE not in kinds_seen(witness)
    await member.leave()
    await member.close()
    await until(lambda: LEAVE in kinds_seen(witness))


# --- too many -------------------------------------------------------------------------------------


def test_what_a_node_has_too_many() -> None:
    """P-129: two nodes with a thousand each, and a third one that comes empty."""

    def node(name: str, sessions: int, state: str = "ready") -> PresenceNode:
        return PresenceNode(node_id=name, incarnation=1, sessions=sessions, state=state)

    three = [node("a", 1000), node("b", 1000), node("c", 0)]
    assert excess(1000, three, "a", share=0.25) == 333
    assert excess(0, three, "c", share=0.25) == 0
    assert excess(700, [node("a", 700), node("b", 600)], "a", share=0.25) == 0
    assert excess(1000, [node("a", 1000), node("c", 0, "draining")], "a", share=0.25) == 0
    assert excess(1000, [node("a", 1000)], "a", share=0.25) == 0


async def test_a_node_that_comes_gets_its_share(town: Town) -> None:
    """P-129: 60 sessions on two nodes; a third comes, and each has a third of them."""
    quick = {"shed_check_s": 0.3, "shed_rate_per_s": 200.0}
    first, second = await town.node(**quick), await town.node(**quick)
    await beat(first, second)
    witness = await town.member(second, 1000)
    members = [
        PartyMember(
            (first, second)[client % 2].target,
            party_id=witness.party,
            client_id=client,
            chance=random.Random(client),
        )
        for client in range(1, 61)
    ]
    for member in members:
        member.start()
    await asyncio.gather(*(member.joined(30) for member in members))
    third = await town.node(**quick)
    nodes = (first, second, third)

    def counts() -> list[int]:
        return [len(node.broker.registry.sessions) for node in nodes]

    await until(lambda: sum(counts()) == 61 and all(15 <= count <= 26 for count in counts()), 40)

    assert LEAVE not in kinds_seen(witness)
    assert {one.client_id for one in witness.seen if one.message_type == JOIN} == set(range(1, 61))
    assert sum(member.resumes for member in members) >= 15
    for member in members:
        await member.close()
