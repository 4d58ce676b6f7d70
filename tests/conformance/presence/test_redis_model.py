"""The Redis of the simulated world passes what Redis passes, and answers as it does."""

import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from tests.conformance.presence.test_redis_store import (
    LOG_MAX,
    open_redis,
    test_a_session_moves_and_its_old_node_is_told,
    test_a_store_that_lost_everything_gets_it_back,
    test_sessions_of_a_lost_node_wait_and_may_be_reclaimed,
    test_those_whose_time_is_over_leave_once,
    test_two_nodes_hear_the_same,
    test_what_was_not_heard_comes_with_the_answer,
)
from tests.servers.redis import redis_server, redis_url
from tests.sim.presence.network import FaultRates, SimPresenceStore, SimRedisConnection
from tests.sim.presence.redis import RedisModel
from waystation.base.clock import SystemClock
from waystation.presence.model import Detached, Entry, SessionKey, Status
from waystation.presence.store import (
    CursorRow,
    Owner,
    PresenceStore,
    Proof,
    SharedPresenceStore,
)
from waystation.testing.conformance.presence_store import (
    Heard,
    PresenceStoreConformance,
    attach_spec,
    join_spec,
    new_party,
    session,
)

__all__ = [
    "redis_server",
    "redis_url",
    "test_a_session_moves_and_its_old_node_is_told",
    "test_a_store_that_lost_everything_gets_it_back",
    "test_sessions_of_a_lost_node_wait_and_may_be_reclaimed",
    "test_those_whose_time_is_over_leave_once",
    "test_two_nodes_hear_the_same",
    "test_what_was_not_heard_comes_with_the_answer",
]


class Awake:
    def when_awake(self, call: Any) -> None:
        call()


def open_model(redis: RedisModel) -> SimPresenceStore:
    luck = FaultRates(random.Random(1))
    luck.calm = True
    return SimPresenceStore(SimRedisConnection(redis, luck, Awake()), log_max=LOG_MAX, linger_s=60)


class TestModel(PresenceStoreConformance):
    @pytest.fixture
    async def store(self) -> AsyncIterator[PresenceStore]:
        store = open_model(RedisModel(SystemClock()))
        yield store
        await store.close()


@pytest.fixture
async def pair() -> AsyncIterator[tuple[SimPresenceStore, SimPresenceStore]]:
    """The tests of Redis that are named above run on the model too."""
    redis = RedisModel(SystemClock())
    first, second = open_model(redis), open_model(redis)
    yield first, second
    await first.close()
    await second.close()


class Comparison:
    """The same random operations on two stores; what they answer must be the same but for time."""

    def __init__(self, seed: int, stores: Sequence[SharedPresenceStore]) -> None:
        self.rng = random.Random(seed)
        self.stores = stores
        self.party = new_party()
        self.keys = [session(self.party, client, n) for client in (1, 2, 3) for n in (1, 2)]

    async def step(self) -> tuple[str, list[Any]]:
        rng, party = self.rng, self.party
        key, fence = rng.choice(self.keys), rng.randint(0, 3)
        hashes = (None, b"1" * 32, b"2" * 32)
        digest, policy = rng.choice(hashes), rng.random() < 0.3
        number, code = rng.randint(0, 9), rng.choice([Status.OK, Status.CLIENT_TIMEOUT])
        known, cause = rng.choice((None, number)), rng.choice([*Detached])
        kind = rng.choice(
            (
                *("join", "join", "attach", "detach", "leave", "signal", "cursor", "log"),
                *("look", "reap", "reclaim", "admin", "expire"),
            )
        )

        async def on(store: SharedPresenceStore) -> Any:
            match kind:
                case "join":
                    limits = {"client_sessions_max": 1 + policy, "evict_oldest": policy}
                    return await store.join(key, join_spec(known_seq=known, **limits))
                case "attach":
                    proof = Proof(token_hash=digest, trusted=policy, token_required=number > 5)
                    return await store.attach(key, attach_spec(proof=proof, flags=number))
                case "detach":
                    return await store.detach(key, fence, cursor=number, cause=cause)
                case "leave":
                    return await store.leave(key, max(fence, 1), code)
                case "admin":
                    return await store.leave(key, 0, code)
                case "signal":
                    return await store.signal(key, fence, origin_id=number + 1, payload=b":x:")
                case "cursor":
                    return await store.save_cursors([CursorRow(key, fence, number)])
                case "log":
                    return await store.read_log(party, after_seq=number, limit=5)
                case "reap":
                    return await store.reap(f"node.{number % 2 + 1}")
                case "reclaim":
                    return await store.reclaim([(one, fence) for one in self.keys])
                case "expire":
                    return await store.expire_due(10)
                case _:
                    return await store.snapshot(party)

        return kind, [plain(await on(store)) for store in self.stores]


TIMES = ("at_ms", "joined_at_ms", "detached_at_ms", "deadline_ms", "previous_until_ms", "gap_ms")


def plain(value: Any) -> Any:
    """Without times, ids made of times, and epochs."""
    if isinstance(value, Entry):
        return (value.seq, value.kind, value.client_id, value.count, value.code, value.payload)
    if isinstance(value, SessionKey):
        return (value.client_id, value.session_id)
    if isinstance(value, list | tuple):
        return sorted((plain(one) for one in value), key=repr)
    if hasattr(value, "__struct_fields__"):
        unlike = (*TIMES, "epoch")
        fields = [name for name in value.__struct_fields__ if name not in unlike]
        return {name: plain(getattr(value, name)) for name in fields}
    return value


@pytest.mark.redis
@pytest.mark.parametrize("seed", range(4))
async def test_the_model_answers_as_redis_does(seed: int, redis_url: str) -> None:
    real, model = await open_redis(redis_url), open_model(RedisModel(SystemClock()))
    stores: list[SharedPresenceStore] = [real, model]
    for store in stores:
        await store.start(Owner("node.1", 7), Heard())
    comparison = Comparison(seed, stores)
    seen: set[str] = set()
    try:
        for number in range(150):
            kind, (one, other) = await comparison.step()
            seen.add(kind)
            assert one == other, f"step {number}: {kind}"
    finally:
        await real.close()
        await model.close()

    assert len(seen) > 8
