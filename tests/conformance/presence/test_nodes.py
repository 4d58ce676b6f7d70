"""Several nodes on one Redis: one order, nobody lost, nobody doubled."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest

from tests.conformance.presence.kit import (
    PARTY,
    Node,
    PresenceClient,
    kinds,
    listed,
    open_store,
    until,
)
from tests.servers.redis import RedisServer, running_redis
from waystation.base.clock import SystemClock
from waystation.presence.cluster import directory
from waystation.presence.model import Flags, MessageType, PartyId, SessionKey, Status
from waystation.presence.session.session import State
from waystation.presence.settings import Presence
from waystation.presence.store import PresenceStore
from waystation.presence.wire.presence_cluster_pb2 import ListNodesRequest, NodeList
from waystation.storage.redis.presence import RedisPresenceStore

pytestmark = pytest.mark.redis

ACK, JOIN, LEAVE, LIST = MessageType.ACK, MessageType.JOIN, MessageType.LEAVE, MessageType.LIST
QUICK: dict[str, Any] = {
    "tick_s": 0.02,
    "heartbeat_s": 0.3,
    "self_fence_s": 2.5,  # a machine that is busy with other things must not look dead
    "lease_s": 3.0,
    "gap_check_s": 0.2,
    "sweep_s": 0.1,
    "session_ttl_s": 20.0,
    "session_ttl_min_s": 0.5,
}


class Town:
    """Nodes that share a Redis of their own."""

    def __init__(self, server: RedisServer, tmp_path: Any) -> None:
        self.server = server
        self.url = server.new_url()
        self._tmp_path = tmp_path
        self.nodes: list[Node] = []
        self.stores: dict[Node, PresenceStore] = {}
        self.presence_clients: list[PresenceClient] = []

    async def node(self, **settings: Any) -> Node:
        presence = Presence(**{**QUICK, **settings})
        store = await open_store("redis", presence, self._tmp_path, SystemClock(), self.url)
        node = Node(presence, store, node_id=f"node.{len(self.stores) + 1}")
        self.nodes.append(node)
        self.stores[node] = store
        return await node.start()

    async def member(self, node: Node, client: int, **fields: Any) -> PresenceClient:
        presence_client = PresenceClient(node.target, client)
        presence_client.auto = fields.pop("auto", True)
        self.presence_clients.append(presence_client)
        await presence_client.join(**fields)
        await presence_client.welcomed()
        return presence_client

    async def kill(self, node: Node) -> None:
        self.nodes.remove(node)
        await node.kill()
        await self.stores.pop(node).close()
        for presence_client in self.presence_clients:
            if presence_client.target == node.target:
                await presence_client.disconnect()

    async def close(self) -> None:
        for presence_client in self.presence_clients:
            await presence_client.disconnect()
        for node in self.nodes:
            await node.stop()
        for store in self.stores.values():
            await store.close()


@pytest.fixture(scope="module")
def own_redis() -> Any:
    """Tests here stop it, which loses nothing, and empty it."""
    with running_redis("--appendonly", "yes") as server:
        yield server


@pytest.fixture
async def town(own_redis: RedisServer, tmp_path: Any) -> AsyncIterator[Town]:
    town = Town(own_redis, tmp_path)
    yield town
    await town.close()


def told(presence_client: PresenceClient) -> list[tuple[int, int, int, int]]:
    """Party messages without repetitions, as seq, id, time and type."""
    rows = [
        (one.party_seq, one.message_id, one.timestamp, int(one.message_type))
        for one in presence_client.seen
        if one.message_type in (JOIN, LEAVE)
    ]
    return sorted(set(rows))


async def test_everybody_hears_the_same_wherever_they_are(town: Town) -> None:
    """P-105 P-107"""
    nodes = [await town.node() for _ in range(3)]
    watchers = [await town.member(node, 1000 + at) for at, node in enumerate(nodes)]
    channels = [grpc.aio.insecure_channel(node.target) for node in nodes]

    async def visit(client: int) -> None:
        node = nodes[client % 3]
        presence_client = PresenceClient(node.target, client)
        presence_client.auto = True
        town.presence_clients.append(presence_client)
        await presence_client.join(channel=channels[client % 3])
        await presence_client.welcomed()
        if client % 2:
            await presence_client.leave()
            await presence_client.status()

    await asyncio.gather(*(visit(client) for client in range(1, 61)))
    await until(lambda: all(told(one) and told(one)[-1][0] == 93 for one in watchers))

    views = [told(one) for one in watchers]
    assert views[0][-90:] == views[1][-90:] == views[2][-90:]
    assert [row[0] for row in views[2]] == list(range(4, 94))
    for presence_client in town.presence_clients:
        await presence_client.disconnect()
    for channel in channels:
        await channel.close()


async def test_bells_that_are_not_heard_are_made_up_for(town: Town) -> None:
    """P-108: one in ten is lost, the last one too; positions are compared every 2 s."""
    first, second = await town.node(gap_check_s=2.0), await town.node(gap_check_s=2.0)
    watcher = await town.member(second, 1000)
    store = town.stores[second]
    assert isinstance(store, RedisPresenceStore)
    hear, count = store._subscriber.hear, 0

    def deaf(channel: str, data: bytes) -> None:
        nonlocal count
        count += data[:1] != b"n"
        if count % 10:
            hear(channel, data)

    store._subscriber.hear = deaf
    for client in range(1, 41):
        await town.member(first, client)
    began = asyncio.get_running_loop().time()
    await until(lambda: len(told(watcher)) == 40)
    late_s = asyncio.get_running_loop().time() - began

    assert [row[0] for row in told(watcher)] == list(range(2, 42))
    assert late_s < 2 + 5  # the machine may be busy
    families = {one.spec.name: one for one in second.metrics.snapshot("w", 0).families}
    assert families["presence_log_gaps"].samples[0].value > 0


async def test_a_session_goes_on_at_another_node(town: Town) -> None:
    """P-109"""
    first, second = await town.node(), await town.node()
    a = await town.member(first, 1, auto=False)
    witness = await town.member(second, 2)
    joined = await a.expect_kind(JOIN)
    await a.cut()
    session = next(one for one in first.broker.registry.sessions.values() if one.key.client_id == 1)
    await until(lambda: session.state is State.DETACHED)
    c = await town.member(second, 3)

    a.target = second.target
    await a.resume()
    ack, snapshot, *missed, closing = await a.get_many(5)

    assert ack.status_code == Status.SESSION_RESUMED
    assert listed(snapshot) == [(2, [witness.session]), (3, [c.session])]
    assert kinds(missed) == ["JOIN", "JOIN"]
    assert missed[0].message_id == joined.message_id
    assert closing.message_type == LIST
    await until(lambda: not any(k.client_id == 1 for k in first.broker.registry.sessions))
    assert LEAVE not in {one.message_type for one in witness.seen}


async def test_a_stream_ends_when_its_session_is_taken_over_elsewhere(town: Town) -> None:
    first, second = await town.node(), await town.node()
    a = await town.member(first, 1)
    heir = PresenceClient(second.target, 1)
    town.presence_clients.append(heir)

    await heir.join(resume_token=a.token)

    assert (await heir.expect_kind(ACK)).status_code == Status.SESSION_RESUMED
    await a.expect_end(Status.TAKEN_OVER, grpc.StatusCode.ABORTED)


async def test_a_node_that_dies_takes_nobody_with_it(town: Town) -> None:
    """P-110: who comes back goes on, who does not leaves as NODE_LOST, once."""
    first, second, third = [await town.node() for _ in range(3)]
    watcher = await town.member(third, 1000)
    back = [await town.member(first, client) for client in range(1, 11)]
    away = [await town.member(first, client, session_ttl_ms=3000) for client in range(11, 16)]
    await until(lambda: len(told(watcher)) == 15)
    for one in away:
        await one.ping()  # setting all this up has taken time, too
    await town.kill(first)
    for one in back:
        one.target = second.target
        await one.resume()
        assert (await one.expect_kind(ACK)).status_code == Status.SESSION_RESUMED
    await until(lambda: len(told(watcher)) == 20)

    left = [one for one in watcher.seen if one.message_type == LEAVE]
    assert {one.client_id for one in left} == {one.client for one in away}
    assert {one.status_code for one in left} == {Status.NODE_LOST}
    assert len({one.message_id for one in left}) == 5


async def test_a_node_that_slept_expires_nothing_and_takes_back_what_is_its_own(
    town: Town,
) -> None:
    """P-111: its lease ended meanwhile, and half of its sessions were taken over."""
    first, second = await town.node(), await town.node()
    watcher = await town.member(second, 1000)
    members = [await town.member(first, client, session_ttl_ms=20_000) for client in (1, 2, 3, 4)]
    membership = first.server.membership
    assert membership is not None
    for task in list(first._tasks._tasks):
        if task.get_name() == "presence lease":
            task.cancel()
    await until(membership.fenced)
    store = town.stores[second]
    assert isinstance(store, RedisPresenceStore)

    async def orphaned() -> bool:
        snapshot = await store.snapshot(PartyId(PARTY))
        assert snapshot is not None
        return sum(not record.active for record in snapshot.sessions) == 4

    async with asyncio.timeout(20):
        while not await orphaned():  # noqa: ASYNC110 it is in Redis
            await asyncio.sleep(0.05)
    heirs: list[PresenceClient] = []
    for one in members[:2]:
        heir = PresenceClient(second.target, one.client)
        town.presence_clients.append(heir)
        await heir.join(resume_token=one.token)
        assert (await heir.expect_kind(ACK)).status_code == Status.SESSION_RESUMED
        heirs.append(heir)

    await membership.beat()

    assert not membership.fenced()
    snapshot = await store.snapshot(PartyId(PARTY))
    assert snapshot is not None
    owners = {int(one.key.client_id): one.owner for one in snapshot.sessions if one.active}
    assert owners == {1: "node.2", 2: "node.2", 3: "node.1", 4: "node.1", 1000: "node.2"}
    for one in members[2:]:
        asked = await one.ping()
        await until(lambda one=one, asked=asked: any(asked in m.ack_message_ids for m in one.seen))
    assert LEAVE not in {one.message_type for one in watcher.seen}


async def test_a_redis_that_lost_everything_is_told_again(town: Town) -> None:
    """P-112"""
    first, second = await town.node(), await town.node()
    a, b = await town.member(first, 1), await town.member(second, 2)
    await until(lambda: len(told(a)) == 1)
    before = told(a)[-1][1]
    town.server.command("-n", town.url.rpartition("/")[2], "FLUSHDB")

    def resynced(presence_client: PresenceClient) -> bool:
        return any(one.status_code == Status.LIST_RESYNC for one in presence_client.seen)

    await until(lambda: resynced(a) and resynced(b))
    c = await town.member(first, 3)
    await until(lambda: any(one.client_id == 3 for one in b.seen if one.message_type == JOIN))

    assert LEAVE not in {one.message_type for one in (*a.seen, *b.seen)}
    last = next(one for one in b.seen if one.message_type == JOIN and one.client_id == 3)
    assert last.message_id > before
    welcome = next(one for one in c.seen if one.message_type == LIST)
    assert [client for client, _ in listed(welcome)] == [1, 2]


async def test_what_redis_lost_in_the_middle_of_a_look_is_not_taken_for_moved(town: Town) -> None:
    """P-112: after its positions were compared, and before sessions are asked for."""
    node = await town.node()
    a, b = await town.member(node, 1), await town.member(node, 2)
    await until(lambda: len(told(a)) == 1)
    membership = node.server.membership
    assert membership is not None
    store, asked = town.stores[node], 0
    assert isinstance(store, RedisPresenceStore)
    reclaim = store.reclaim

    async def lost(sessions: Sequence[tuple[SessionKey, int]]) -> list[SessionKey]:
        nonlocal asked
        asked += 1
        if asked == 1:
            town.server.command("-n", town.url.rpartition("/")[2], "FLUSHDB")
        return await reclaim(sessions)

    store.reclaim = lost
    await membership.beat()
    await until(
        lambda: all(Status.LIST_RESYNC in {m.status_code for m in one.seen} for one in (a, b))
    )

    assert asked >= 2
    assert Status.TAKEN_OVER not in {m.status_code for one in (a, b) for m in one.seen}


async def test_a_redis_that_lost_the_last_writes_is_told_again(town: Town) -> None:
    """P-113: as after a failover to a replica that had not heard of three joins."""
    first, second = await town.node(gap_check_s=0.5), await town.node(gap_check_s=0.5)
    a, b = await town.member(first, 1), await town.member(second, 2)
    await until(lambda: len(told(a)) == 1)
    db = town.url.rpartition("/")[2]
    keys = [one for one in town.server.command("-n", db, "KEYS", "pp:{*").split() if one]
    for key in keys:
        town.server.command("-n", db, "COPY", key, f"kept:{key}")
    late = [await town.member(first, client) for client in (3, 4, 5)]
    await until(lambda: len(told(b)) == 3)
    before = told(b)[-1][1]
    script = (
        "for _, key in ipairs(redis.call('KEYS', 'pp:{*')) do redis.call('DEL', key) end "
        "for _, key in ipairs(redis.call('KEYS', 'kept:*')) do "
        "redis.call('RENAME', key, string.sub(key, 6)) end"
    )
    town.server.command("-n", db, "EVAL", script, "0")

    def resynced(presence_client: PresenceClient) -> bool:
        return any(one.status_code == Status.LIST_RESYNC for one in presence_client.seen)

    await until(lambda: all(resynced(one) for one in (a, b, *late)))
    c = await town.member(second, 6)
    await until(lambda: any(one.client_id == 6 for one in a.seen if one.message_type == JOIN))

    assert LEAVE not in {m.message_type for one in (a, b, *late) for m in one.seen}
    last = next(one for one in a.seen if one.message_type == JOIN and one.client_id == 6)
    assert last.message_id > before
    welcome = next(one for one in c.seen if one.message_type == LIST)
    assert [client for client, _ in listed(welcome)] == [1, 2, 3, 4, 5]


async def test_a_redis_that_stays_away_ends_streams_and_later_everybody_resumes(
    town: Town,
) -> None:
    """P-114: longer than `store_outage_grace_s`."""
    node = await town.node(store_outage_grace_s=3.0, join_timeout_s=30.0)
    a, b = await town.member(node, 1), await town.member(node, 2)
    await until(lambda: len(told(a)) == 1)
    town.server.stop()
    try:
        for one in (a, b):
            await until(lambda one=one: one.seen[-1].status_code == Status.STORE_UNAVAILABLE)
            assert await one.status() is grpc.StatusCode.UNAVAILABLE
    finally:
        town.server.start()
    await until(lambda: not node.broker.node.fenced())
    for one in (a, b):
        while True:
            await one.resume()
            answer = await one.get()
            if answer.status_code != Status.STORE_BUSY:
                break
        assert answer.message_type == ACK
        assert answer.status_code == Status.SESSION_RESUMED

    assert LEAVE not in {m.message_type for one in (a, b) for m in one.seen}


async def test_without_redis_nobody_is_gone_and_nobody_comes(town: Town) -> None:
    """P-114"""
    node = await town.node(session_ttl_s=2.0, join_timeout_s=30.0)
    a = await town.member(node, 1, session_ttl_ms=1000)
    town.server.stop()
    try:
        late = PresenceClient(node.target, 2)
        town.presence_clients.append(late)
        await late.join()
        busy = await late.expect_kind(MessageType.ERROR)
        assert busy.status_code == Status.STORE_BUSY
        assert busy.retry_after_ms > 0
        await until(node.broker.node.fenced)
        for _ in range(5):
            await asyncio.sleep(0.3)
            await a.ping()
            assert (await a.expect_kind(ACK)).message_type == ACK
    finally:
        town.server.start()
    await until(lambda: not node.broker.node.fenced())

    assert a.call is not None
    await a.ping()
    assert (await a.expect_kind(ACK)).message_type == ACK


# --- standby, drain, discovery --------------------------------------------------------------------


async def test_a_standby_waits_unseen_and_is_promoted(town: Town) -> None:
    """P-123 P-125"""
    first, second = await town.node(), await town.node()
    a = await town.member(first, 1, session_ttl_ms=2000)
    witness = await town.member(second, 2)
    standby = PresenceClient(second.target, 1)
    town.presence_clients.append(standby)
    await standby.join(flags=Flags.STANDBY, resume_token=a.token)
    ack = await standby.expect_kind(ACK)
    assert (ack.status_code, ack.node_id) == (Status.STANDBY_ATTACHED, "node.2")
    c = await town.member(first, 3)
    assert [client for client, _ in listed(next(m for m in c.seen if m.message_type == LIST))] == [
        1,
        2,
    ]
    for _ in range(8):  # pings here keep the session alive there
        await asyncio.sleep(0.4)
        await standby.ping()
        assert (await standby.expect_kind(ACK)).message_type == ACK
    assert all(one.message_type != LEAVE for one in witness.seen)

    await standby.say(MessageType.PROMOTE, party_seq=0)
    promoted, snapshot = await standby.get_many(2)
    assert promoted.status_code == Status.PROMOTED
    assert promoted.resume_token
    assert snapshot.message_type == LIST
    assert [client for client, _ in listed(snapshot)] == [2, 3]
    while (last := await a.get()).message_type != MessageType.ERROR:
        pass
    assert last.status_code == Status.TAKEN_OVER
    assert all(one.message_type != LEAVE for one in witness.seen)


async def test_a_standby_beside_its_primary_makes_no_sense(town: Town) -> None:
    """P-125"""
    node = await town.node()
    a = await town.member(node, 1)
    beside, stranger = PresenceClient(node.target, 1), PresenceClient(node.target, 7)
    town.presence_clients += [beside, stranger]

    await beside.join(flags=Flags.STANDBY, resume_token=a.token)
    await beside.expect_end(Status.NOT_SUPPORTED, grpc.StatusCode.UNIMPLEMENTED)
    await stranger.join(flags=Flags.STANDBY, resume_token=b"x")
    await stranger.expect_end(Status.SESSION_NOT_FOUND, grpc.StatusCode.NOT_FOUND)


async def test_a_drained_node_sends_its_clients_elsewhere(town: Town) -> None:
    """P-117 P-118 P-120, as far as clients move by themselves"""
    first, second = await town.node(), await town.node()
    watcher = await town.member(second, 1000)
    newer = await town.member(first, 1)
    old = PresenceClient(first.target, 2)
    old.auto = True
    town.presence_clients.append(old)
    await old.join(extended=False)
    await old.welcomed()
    await first.server.membership.beat()  # pyright: ignore[reportOptionalMemberAccess]

    await first.server.drain(0)
    late = PresenceClient(first.target, 3)
    town.presence_clients.append(late)
    await late.join()
    refused = await late.expect_end(Status.DRAINING, grpc.StatusCode.UNAVAILABLE)
    assert list(refused.handoff.endpoints) == [second.target]
    drain = next(m for m in newer.seen if m.message_type == MessageType.DRAIN)
    assert list(drain.handoff.endpoints) == [second.target]
    town.nodes.remove(first)
    await first.stop()
    for one in (newer, old):
        assert await one.status() is grpc.StatusCode.UNAVAILABLE
        one.target = second.target
        await one.resume(extended=one is newer, resume_token=one.token if one is newer else b"")
        assert (await one.expect_kind(ACK)).status_code == Status.SESSION_RESUMED

    assert MessageType.DRAIN not in {one.message_type for one in old.seen}
    assert LEAVE not in {one.message_type for one in watcher.seen}


async def test_nodes_are_listed_while_they_take_sessions(town: Town) -> None:
    """P-127: a dead one until its lease has ended, which is 3 s here instead of 10."""
    first, second, third = [await town.node() for _ in range(3)]
    await first.server.membership.beat()  # pyright: ignore[reportOptionalMemberAccess]
    clock = asyncio.get_running_loop().time
    async with grpc.aio.insecure_channel(first.target) as channel:
        watch = channel.unary_stream(
            f"/{directory.SERVICE}/WatchNodes",
            request_serializer=ListNodesRequest.SerializeToString,
            response_deserializer=NodeList.FromString,
        )(ListNodesRequest(party_id=PARTY))
        seen: Any = await watch.read()
        assert {one.node_id for one in seen.nodes} == {"node.1", "node.2", "node.3"}
        await second.server.drain(0)
        drained = clock()
        async with asyncio.timeout(20):
            while {one.node_id for one in seen.nodes} != {"node.1", "node.3"}:
                seen = await watch.read()
        assert clock() - drained < 1 + 3  # the machine may be busy
        await town.kill(third)
        died = clock()
        async with asyncio.timeout(20):
            while {one.node_id for one in seen.nodes} != {"node.1"}:
                seen = await watch.read()
        assert clock() - died < 3 + 1 + 5
        listing: Any = await channel.unary_unary(
            f"/{directory.SERVICE}/ListNodes",
            request_serializer=ListNodesRequest.SerializeToString,
            response_deserializer=NodeList.FromString,
        )(ListNodesRequest(party_id=PARTY, limit=5))
        watch.cancel()

    assert [one.client_endpoint for one in listing.nodes] == [first.target]
