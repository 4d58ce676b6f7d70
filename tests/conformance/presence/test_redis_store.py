"""Redis and Redis Cluster pass what every presence store passes."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.servers.redis import RedisServer, redis_cluster, redis_server, redis_url
from waystation.presence.model import Detached, MessageType, Status
from waystation.presence.store import Attached, Joined, Owner, PresenceNode, PresenceStore
from waystation.storage.redis.presence import RedisPresenceStore
from waystation.storage.redis.url import parse_redis_url
from waystation.storage.settings import Store
from waystation.testing.conformance.presence_races import PresenceStoreRaces
from waystation.testing.conformance.presence_store import (
    OWNER,
    Heard,
    PresenceStoreConformance,
    attach_spec,
    join_spec,
    new_party,
    session,
)

__all__ = ["redis_cluster", "redis_server", "redis_url"]

pytestmark = pytest.mark.redis

LOG_MAX = 64


async def open_redis(url: str) -> RedisPresenceStore:
    return await RedisPresenceStore.open(parse_redis_url(url), settings=Store(), log_max=LOG_MAX)


class TestRedis(PresenceStoreConformance, PresenceStoreRaces):
    @pytest.fixture
    async def store(self, redis_url: str) -> AsyncIterator[PresenceStore]:
        store = await open_redis(redis_url)
        yield store
        await store.close()


class TestRedisCluster(PresenceStoreConformance, PresenceStoreRaces):
    @pytest.fixture
    async def store(self, redis_cluster: list[RedisServer]) -> AsyncIterator[PresenceStore]:
        store = await open_redis(f"redis+cluster://127.0.0.1:{redis_cluster[0].port}")
        yield store
        await store.close()


@pytest.fixture
async def pair(redis_url: str) -> AsyncIterator[tuple[RedisPresenceStore, RedisPresenceStore]]:
    """The same Redis as two nodes see it."""
    first, second = await open_redis(redis_url), await open_redis(redis_url)
    yield first, second
    await first.close()
    await second.close()


Pair = tuple[RedisPresenceStore, RedisPresenceStore]
OTHER = Owner("node.2", 8)


async def test_two_nodes_hear_the_same(pair: Pair) -> None:
    """P-105 P-107: one order, one id, one time."""
    heard = [Heard(), Heard()]
    party = new_party()
    for store, owner, ear in zip(pair, (OWNER, OTHER), heard, strict=True):
        await store.start(owner, ear)
        await store.subscribe(party)
    await asyncio.gather(*(pair[n % 2].join(session(party, n), join_spec()) for n in range(1, 61)))
    for ear in heard:
        await ear.wait(lambda ear=ear: len(ear.of(party)) == 60)

    assert heard[0].of(party) == heard[1].of(party)
    assert [entry.seq for entry in heard[0].of(party)] == list(range(1, 61))


async def test_a_session_moves_and_its_old_node_is_told(pair: Pair) -> None:
    """P-109"""
    ear = Heard()
    await pair[0].start(OWNER, ear)
    await pair[1].start(OTHER, Heard())
    key = session(new_party(), 1)
    await pair[0].subscribe(key.party_id)
    await pair[0].join(key, join_spec())
    moved = await pair[1].attach(key, attach_spec(b"1" * 32))

    assert isinstance(moved, Attached)
    assert (moved.previous_owner, moved.record.owner) == (OWNER, OTHER.node_id)
    await ear.wait(lambda: ear.notices)
    assert ear.notices[0].key == key
    assert (ear.notices[0].status, ear.notices[0].fence) == (Status.SESSION_RESUMED, 2)
    assert ear.notices[0].node_id == OTHER.node_id
    assert await pair[0].leave(key, 1, Status.CLIENT_TIMEOUT) is None


async def test_what_was_not_heard_comes_with_the_answer(pair: Pair) -> None:
    """A node that follows a party is given what its subscription may still owe it."""
    await pair[0].start(OWNER, Heard())
    await pair[1].start(OTHER, Heard())
    party = new_party()
    first = await pair[0].join(session(party, 1), join_spec())
    assert isinstance(first, Joined)
    for client in (2, 3):
        await pair[1].join(session(party, client), join_spec())
    spec = join_spec(known_seq=1, known_epoch=first.epoch)
    fourth = await pair[0].join(session(party, 4), spec)

    assert isinstance(fourth, Joined)
    assert fourth.members is None
    assert [entry.seq for entry in fourth.entries] == [2, 3, 4]


async def test_those_whose_time_is_over_leave_once(pair: Pair) -> None:
    """P-115"""
    ear = Heard()
    await pair[0].start(OWNER, ear)
    await pair[1].start(OTHER, Heard())
    party = new_party()
    await pair[0].subscribe(party)
    for client in range(1, 11):
        await pair[0].join(session(party, client), join_spec(ttl_ms=20))
        await pair[0].detach(session(party, client), 1, cursor=1, cause=Detached.SLOW)
    await asyncio.sleep(0.05)
    counts = await asyncio.gather(*(store.expire_due(100) for store in (*pair, *pair)))

    assert sum(counts) == 10
    await ear.wait(lambda: len(ear.of(party)) == 20)
    left = [entry for entry in ear.of(party) if entry.kind is MessageType.LEAVE]
    assert {entry.code for entry in left} == {Status.SLOW_CONSUMER}
    assert sorted(entry.client_id for entry in left) == list(range(1, 11))


async def test_sessions_of_a_lost_node_wait_and_may_be_reclaimed(pair: Pair) -> None:
    """P-110 P-111"""
    await pair[0].start(OWNER, Heard())
    await pair[1].start(OTHER, Heard())
    party = new_party()
    keys = [session(party, client) for client in (1, 2, 3)]
    for key in keys:
        await pair[0].join(key, join_spec())
    node = PresenceNode(node_id=OWNER.node_id, incarnation=OWNER.incarnation)
    await pair[0].heartbeat(node, 60_000)
    await pair[1].heartbeat(PresenceNode(node_id=OTHER.node_id, incarnation=8), 60_000)
    alive, dead = await pair[1].nodes()
    assert {one.node_id for one in alive} == {OWNER.node_id, OTHER.node_id}
    assert dead == []
    await pair[0].heartbeat(node, 1)
    await asyncio.sleep(0.02)
    _, dead = await pair[1].nodes()
    assert dead == [OWNER.node_id]

    assert await pair[1].reap(OWNER.node_id) == 3
    assert await pair[1].reap(OWNER.node_id) == 0
    taken = await pair[1].attach(keys[0], attach_spec())
    assert isinstance(taken, Attached)
    moved = await pair[0].reclaim([(key, 1) for key in keys])
    assert moved == [keys[0]]
    snapshot = await pair[0].snapshot(party)
    assert snapshot is not None
    assert all(record.active for record in snapshot.sessions)


async def test_parties_that_a_node_has_left_are_struck_from_its_list(pair: Pair) -> None:
    """Else the list would grow with every party that a node has ever served."""
    store = pair[0]
    store.released_for_s = 0.0
    await store.start(OWNER, Heard())
    left, kept, again = (session(new_party(), 1) for _ in range(3))
    for key in (left, kept, again):
        await store.subscribe(key.party_id)
        await store.join(key, join_spec())
    for key in (left, again):
        await store.leave(key, 1, Status.OK)
        store.unsubscribe(key.party_id)
    await store.join(again, join_spec())
    await store.heartbeat(PresenceNode(node_id=OWNER.node_id, incarnation=1), 60_000)
    parties = store.keys.parties_of(OWNER.node_id)
    listed = (await store.session.run(parties, (("SMEMBERS", parties),)))[0]

    assert {int(name, 16) for name in listed} == {kept.party_id, again.party_id}
    await store.join(left, join_spec())
    listed = (await store.session.run(parties, (("SMEMBERS", parties),)))[0]
    assert len(listed) == 3


async def test_a_store_that_lost_everything_gets_it_back(pair: Pair) -> None:
    """P-112"""
    await pair[0].start(OWNER, Heard())
    key = session(new_party(), 1)
    first = await pair[0].join(key, join_spec())
    assert isinstance(first, Joined)
    snapshot = await pair[0].snapshot(key.party_id)
    assert snapshot is not None
    await pair[0].session.run_everywhere(("FLUSHDB",))
    assert await pair[0].positions([key.party_id]) == [None]

    reset = await pair[0].reset(
        key.party_id,
        epoch=first.epoch,
        seq=1,
        new_epoch=99,
        floor_ms=10,
        records=snapshot.sessions,
    )
    again = await pair[0].join(session(key.party_id, 2), join_spec())

    assert (reset.epoch, reset.seq, list(reset.members)) == (99, 1, [(1, 1, False)])
    assert isinstance(again, Joined)
    assert (again.seq, again.epoch) == (2, 99)
