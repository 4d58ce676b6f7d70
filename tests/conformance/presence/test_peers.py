"""Nodes without a shared store: a party lives on one of them, can move, and is reached from all."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.conformance.presence.kit import (
    PEER_TOKEN,
    Node,
    PresenceClient,
    kinds,
    listed,
    open_store,
    until,
)
from tests.ports import free_ports
from tests.unit.presence.tokens import AUTH, Signer, key_set
from waystation.base.clock import SystemClock
from waystation.presence.auth import JwtAuthority
from waystation.presence.cluster.directory import ranked
from waystation.presence.jwk_set import JwkSet
from waystation.presence.model import MessageType, PartyId, Status
from waystation.presence.settings import Presence
from waystation.presence.store import PresenceNode, PresenceStore
from waystation.presence.transport import admin
from waystation.presence.wire import presence_cluster_pb2 as pb

ACK, JOIN, LEAVE, LIST = MessageType.ACK, MessageType.JOIN, MessageType.LEAVE, MessageType.LIST
HANDOFF, PING = MessageType.HANDOFF, MessageType.PING
Code = grpc.StatusCode


class Village:
    """Nodes that know each other by their settings."""

    def __init__(self, tmp_path: Path, store_kind: str) -> None:
        self._tmp_path = tmp_path
        self._store_kind = store_kind
        self.nodes: list[Node] = []
        self.presence_clients: list[PresenceClient] = []
        self.authority: JwtAuthority | None = None
        self._stores: list[PresenceStore] = []

    async def build(self, count: int, **settings: Any) -> list[Node]:
        base = free_ports(2 * count)
        ports = range(base, base + 2 * count)
        names = [f"node.{at + 1}" for at in range(count)]
        rows = [
            f"{name}=127.0.0.1:{ports[2 * at]}|127.0.0.1:{ports[2 * at + 1]}"
            for at, name in enumerate(names)
        ]
        for at, name in enumerate(names):
            presence = Presence(
                **{
                    "tick_s": 0.02,
                    "peers": tuple(row for row in rows if row != rows[at]),
                    **settings,
                }
            )
            store = await open_store(
                self._store_kind, presence, self._tmp_path / name, SystemClock()
            )
            self._stores.append(store)
            node = Node(
                presence,
                store,
                node_id=name,
                port=ports[2 * at],
                peer_port=ports[2 * at + 1],
                authority=self.authority,
            )
            self.nodes.append(await node.start())
        return self.nodes

    def home_of(self, party: int) -> Node:
        rows = [PresenceNode(node_id=one.broker.owner.node_id, incarnation=0) for one in self.nodes]
        best = ranked(rows, party)[0].node_id
        return next(one for one in self.nodes if one.broker.owner.node_id == best)

    def party_of(self, node: Node, beside: int = 0) -> int:
        """A party whose home is there."""
        return next(party for party in range(1 + beside, 10_000) if self.home_of(party) is node)

    async def member(self, node: Node, client: int, party: int, **fields: Any) -> PresenceClient:
        presence_client = PresenceClient(node.target, client, party=party)
        presence_client.auto = fields.pop("auto", True)
        self.presence_clients.append(presence_client)
        await presence_client.join(**fields)
        await presence_client.welcomed()
        return presence_client

    async def close(self) -> None:
        for presence_client in self.presence_clients:
            await presence_client.disconnect()
        for node in self.nodes:
            await node.stop()
        for store in self._stores:
            await store.close()


@pytest.fixture(params=["embedded", "memory"])
async def village(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Village]:
    village = Village(tmp_path, request.param)
    yield village
    await village.close()


def announced(*presence_clients: PresenceClient) -> list[int]:
    return sorted(
        {
            one.party_seq
            for presence_client in presence_clients
            for one in presence_client.seen
            if one.message_type in (JOIN, LEAVE)
        }
    )


async def test_a_party_moves_with_everybody_in_it(village: Village) -> None:
    """P-121"""
    first, second = await village.build(2)
    party = village.party_of(first)
    members = [await village.member(first, client, party) for client in range(1, 21)]
    before = await first.store.snapshot(PartyId(party))
    assert before is not None
    draining = asyncio.create_task(first.server.drain(30.0))
    heirs: list[PresenceClient] = []
    for member in members:
        await until(lambda one=member: any(m.message_type == HANDOFF for m in one.seen))
        where = next(one for one in member.seen if one.message_type == HANDOFF).handoff
        assert list(where.endpoints) == [second.target]
        heir = PresenceClient(second.target, member.client, party=party)
        heir.auto = True
        heir.ids = member.ids
        village.presence_clients.append(heir)
        await heir.join(resume_token=where.ticket)
        assert (await heir.expect_kind(ACK)).status_code == Status.SESSION_RESUMED
        heirs.append(heir)
        await member.disconnect()
    await asyncio.wait_for(draining, 20)
    late = PresenceClient(first.target, 100, party=party)
    village.presence_clients.append(late)
    await late.join()
    moved = await late.expect_end(Status.SESSION_MOVED, Code.UNAVAILABLE)
    assert list(moved.handoff.endpoints) == [second.target]
    await village.member(second, 100, party)
    await until(lambda: all(21 in announced(one) for one in heirs))

    after = await second.store.snapshot(PartyId(party))
    assert after is not None
    assert (after.epoch, after.seq) == (before.epoch, before.seq + 1)
    assert await first.store.snapshot(PartyId(party)) is None
    assert not first.broker.registry.sessions
    for member, heir in zip(members, heirs, strict=True):
        assert LEAVE not in {one.message_type for one in (*member.seen, *heir.seen)}
        assert announced(member, heir) == list(range(member.client + 1, 22))


async def test_a_leave_said_to_the_node_that_gave_the_party_away_is_not_lost(
    village: Village,
) -> None:
    """P-121: it is not acknowledged there; the client is told where to say it."""
    first, second = await village.build(2)
    party = village.party_of(first)
    a = await village.member(first, 1, party)
    b = await village.member(first, 2, party)
    draining = asyncio.create_task(first.server.drain(30.0))
    await until(lambda: any(one.message_type == HANDOFF for one in a.seen))
    await a.leave()
    await until(lambda: any(one.message_type == MessageType.ERROR for one in a.seen))
    refused = next(one for one in a.seen if one.message_type == MessageType.ERROR)
    assert refused.status_code == Status.SESSION_MOVED
    assert list(refused.handoff.endpoints) == [second.target]
    heir = PresenceClient(second.target, 1, party=party)
    heir.ids = a.ids
    village.presence_clients.append(heir)
    await heir.join(resume_token=a.token)
    assert (await heir.expect_kind(ACK)).status_code == Status.SESSION_RESUMED
    await heir.leave()
    assert await heir.status() is Code.OK
    await b.disconnect()
    await asyncio.wait_for(draining, 20)

    snapshot = await second.store.snapshot(PartyId(party))
    assert snapshot is not None
    assert [int(one.key.client_id) for one in snapshot.sessions] == [2]


async def test_a_party_that_nobody_takes_stays(village: Village) -> None:
    """P-121: its other node is gone; everybody resumes where they were."""
    first, second = await village.build(2)
    party = village.party_of(first)
    a = await village.member(first, 1, party)
    village.nodes.remove(second)
    await second.stop()
    await first.server.drain(1.0)
    assert await a.status() is Code.UNAVAILABLE
    await first.server.undo_drain()

    await a.resume()

    assert (await a.expect_kind(ACK)).status_code == Status.SESSION_RESUMED


# --- the relay ------------------------------------------------------------------------------------


async def test_a_client_on_another_node_is_served_as_on_the_home_node(village: Village) -> None:
    """P-130: join, be told, acknowledge, ping, be refused, be cut, resume, leave."""
    nodes = await village.build(3)
    party = village.party_of(nodes[0])
    near = await village.member(nodes[0], 1, party, auto=False)
    far = await village.member(nodes[1], 2, party, auto=False)
    told = await near.expect_kind(JOIN)
    assert (told.client_id, told.party_seq) == (2, 2)
    await near.ack(told.message_id)
    third = await village.member(nodes[2], 3, party, auto=False)
    for one in (near, far):
        told = await one.expect_kind(JOIN)
        assert told.client_id == 3
        await one.ack(told.message_id)
    assert near.raw[-1] == far.raw[-1]
    assert not nodes[1].broker.registry.parties

    asked = await far.ping()
    assert list((await far.expect_kind(ACK)).ack_message_ids) == [asked]
    await far.say(PING, timestamp=1)
    assert (await far.expect_kind(MessageType.ERROR)).status_code == Status.INVALID_FIELD
    await far.cut()
    registry = nodes[0].broker.registry
    await until(lambda: registry.numbers()["detached"] == 1)
    await near.expect_nothing()
    await far.resume()
    resumed, snapshot = await far.get_many(2)
    assert resumed.status_code == Status.SESSION_RESUMED
    assert (resumed.node_id, listed(snapshot)) == ("node.1", [(1, [101]), (3, [301])])
    await far.ack(snapshot.message_id)
    taking = PresenceClient(nodes[2].target, 2, party=party)
    taking.ids = far.ids
    village.presence_clients.append(taking)
    await taking.join(resume_token=far.token)
    assert (await taking.expect_kind(ACK)).status_code == Status.SESSION_RESUMED
    await far.expect_end(Status.TAKEN_OVER, Code.ABORTED)
    await third.say_bytes(b"\xff\xff\xff")
    await third.expect_end(Status.MALFORMED_MESSAGE, Code.INVALID_ARGUMENT)
    await taking.leave()
    while (last := await taking.get()).message_type != ACK:
        pass
    assert last.message_type == ACK
    assert await taking.status() is Code.OK
    left = await near.expect_kind(LEAVE)
    assert (left.client_id, left.status_code) == (2, Status.OK)
    assert kinds([left]) == ["LEAVE"]


async def test_many_messages_pass_both_ways_in_order(village: Village) -> None:
    """P-130: more than a channel's credit."""
    first, second = await village.build(2, rate_per_s=1e6, rate_burst=10_000)
    party = village.party_of(first)
    far = await village.member(second, 1, party, auto=False)
    asked = [await far.ping() for _ in range(900)]

    answers = [await far.expect_kind(ACK) for _ in range(900)]

    assert [one.ack_message_ids[0] for one in answers] == asked


async def test_a_home_that_goes_is_seen_as_unavailable(village: Village) -> None:
    """P-130: and a client that is lost at the edge is detached at home."""
    first, second = await village.build(2)
    party = village.party_of(first)
    a, b = await village.member(second, 1, party), await village.member(second, 2, party)
    await b.cut()
    await until(lambda: first.broker.registry.numbers()["detached"] == 1)
    village.nodes.remove(first)
    await first.kill()

    assert await a.status() is Code.UNAVAILABLE


async def test_where_clients_are_sent_instead(village: Village) -> None:
    """P-130: `peer_redirect`."""
    first, second = await village.build(2, peer_redirect=True)
    party = village.party_of(first)
    a = PresenceClient(second.target, 1, party=party)
    village.presence_clients.append(a)

    await a.join()
    moved = await a.expect_end(Status.SESSION_MOVED, Code.UNAVAILABLE)

    assert list(moved.handoff.endpoints) == [first.target]
    await village.member(first, 1, party)


# --- operators ------------------------------------------------------------------------------------


def ask(channel: grpc.aio.Channel, name: str, answer: Any) -> Any:
    return channel.unary_unary(
        f"/{admin.SERVICE}/{name}",
        request_serializer=_serialized,
        response_deserializer=answer.FromString,
    )


def _serialized(request: Any) -> bytes:
    return request.SerializeToString()


OPERATOR = (("authorization", f"Bearer {PEER_TOKEN}"),)


async def test_an_operator_sees_a_party_removes_sessions_and_closes_it(village: Village) -> None:
    (node,) = await village.build(1)
    a, b = await village.member(node, 1, 7), await village.member(node, 2, 7)
    second = PresenceClient(node.target, 2, session=999, party=7)
    village.presence_clients.append(second)
    second.auto = True
    await second.join()
    await second.welcomed()
    async with grpc.aio.insecure_channel(node.peer_target) as channel:
        view = await ask(channel, "GetParty", pb.PartyView)(
            pb.PartyRequest(party_id=7), metadata=OPERATOR
        )
        assert (view.seq, len(view.sessions)) == (3, 3)
        assert {one.state for one in view.sessions} == {"active"}
        assert {one.owner for one in view.sessions} == {"node.1"}
        kick = ask(channel, "Kick", pb.Count)
        nobody = pb.KickRequest(key=pb.SessionKey(party_id=7, client_id=2, session_id=5))
        assert (await kick(nobody, metadata=OPERATOR)).affected == 0
        both = pb.KickRequest(
            key=pb.SessionKey(party_id=7, client_id=2), all_sessions_of_client=True
        )
        assert (await kick(both, metadata=OPERATOR)).affected == 2
        for one in (b, second):
            assert await one.status() is Code.ABORTED
            assert one.seen[-1].status_code == Status.REMOVED_BY_ADMIN
        await until(lambda: sum(one.message_type == LEAVE for one in a.seen) == 2)
        codes = {one.status_code for one in a.seen if one.message_type == LEAVE}
        assert codes == {Status.REMOVED_BY_ADMIN}
        closed = await ask(channel, "CloseParty", pb.Count)(
            pb.PartyRequest(party_id=7), metadata=OPERATOR
        )
        assert closed.affected == 1
        assert await a.status() is Code.ABORTED
        assert a.seen[-1].status_code == Status.PARTY_CLOSED
        with pytest.raises(grpc.aio.AioRpcError) as missing:
            await ask(channel, "GetParty", pb.PartyView)(
                pb.PartyRequest(party_id=8), metadata=OPERATOR
            )
        assert missing.value.code() is Code.NOT_FOUND


async def test_an_operator_drains_a_node_and_thinks_better_of_it(village: Village) -> None:
    (node,) = await village.build(1)
    async with grpc.aio.insecure_channel(node.peer_target) as channel:
        drain = ask(channel, "Drain", pb.Node)
        row = await drain(pb.DrainRequest(timeout_ms=60_000), metadata=OPERATOR)
        await until(lambda: node.broker.node.draining)
        assert not node.server.health.serving
        row = await drain(pb.DrainRequest(node_id="node.1", undo=True), metadata=OPERATOR)
        assert (row.node_id, row.state) == ("node.1", pb.READY)
        assert node.server.health.serving
        with pytest.raises(grpc.aio.AioRpcError) as other:
            await drain(pb.DrainRequest(node_id="node.9"), metadata=OPERATOR)

    assert other.value.code() is Code.NOT_FOUND
    await village.member(node, 1, 7)


async def test_tokens_of_operators(village: Village) -> None:
    """A JWT with the admin grant may ask everything; `kick` in a party is for that party."""
    signer, clock = Signer("a"), SystemClock()

    async def fetch() -> bytes:
        return key_set(signer)

    village.authority = JwtAuthority(AUTH, clock, JwkSet(AUTH, clock, fetch))
    (node,) = await village.build(1, auth=AUTH)
    now_s = clock.now_ms() / 1000

    def shown(**claims: Any) -> list[tuple[str, str]]:
        return [("authorization", "Bearer " + signer.token(now_s, **claims))]

    a = await village.member(node, 1, 7, metadata=shown(client=1))
    kicker = [{"id": "7", "perm": ["kick"]}]
    async with grpc.aio.insecure_channel(node.peer_target) as channel:
        get, close = ask(channel, "GetParty", pb.PartyView), ask(channel, "CloseParty", pb.Count)
        request = pb.PartyRequest(party_id=7)
        for call, metadata in (
            (get, shown(client=5)),
            (close, shown(client=5, parties=kicker)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(request, metadata=metadata)
            assert refused.value.code() is Code.PERMISSION_DENIED
        view = await get(request, metadata=shown(client=5, parties=kicker))
        assert len(view.sessions) == 1
        assert (await close(request, metadata=shown(client=9, adm=True))).affected == 1

    assert await a.status() is Code.ABORTED


async def test_nobody_else_may_ask(village: Village) -> None:
    (node,) = await village.build(1)
    a = await village.member(node, 1, 7)
    async with grpc.aio.insecure_channel(node.peer_target) as channel:
        for metadata in ((), (("authorization", "Bearer guessed"),)):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await ask(channel, "CloseParty", pb.Count)(
                    pb.PartyRequest(party_id=7), metadata=metadata
                )
            assert refused.value.code() is Code.UNAUTHENTICATED

    asked = await a.ping()
    await until(lambda: any(asked in one.ack_message_ids for one in a.seen))
