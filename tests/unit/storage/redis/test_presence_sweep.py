"""Sessions without a node are found when their time is over, whatever happens at the same time."""

from tests.sim.presence.redis import RedisModel
from tests.unit.presence.shared_broker_harness import NearStore
from waystation.base.clock import ManualClock
from waystation.presence.model import Detached
from waystation.presence.store import Joined, Owner
from waystation.testing.conformance.presence_store import Heard, join_spec, new_party, session

TTL_S = 120.0


async def two_nodes(clock: ManualClock) -> tuple[RedisModel, NearStore, NearStore]:
    redis = RedisModel(clock)
    nodes = NearStore(redis), NearStore(redis)
    for number, node in enumerate(nodes, 1):
        await node.start(Owner(f"node.{number}", 1), Heard())
    return redis, *nodes


async def test_a_sweep_between_expecting_and_losing_a_stream_forgets_nobody() -> None:
    """The sweep found nobody there and struck the party from its list; then somebody was there."""
    clock = ManualClock()
    _, holder, sweeper = await two_nodes(clock)
    party = new_party()
    key = session(party, 1, 1)
    joined = await holder.join(key, join_spec(ttl_ms=round(TTL_S * 1000)))
    assert isinstance(joined, Joined)
    holder.near.before["party_detach"] = lambda: sweeper.expire_due(100)
    await holder.detach(key, joined.fence, cursor=1, cause=Detached.TRANSPORT)
    lost_at = clock.mono()
    gone_at: list[float] = []
    for _ in range(130):
        clock.advance(1.0)
        if await sweeper.expire_due(100):
            gone_at.append(clock.mono() - lost_at)

    assert len(gone_at) == 1
    assert TTL_S <= gone_at[0] <= TTL_S + 2


async def test_a_party_where_nobody_waits_is_looked_at_twice_and_no_more() -> None:
    clock = ManualClock()
    redis, holder, sweeper = await two_nodes(clock)
    party = new_party()
    await holder.expect_party(party)
    index = holder.keys.sweep(holder.keys.shard(party)).encode()

    await sweeper.expire_due(100)
    clock.advance(1.0)
    await sweeper.expire_due(100)
    still = dict(redis.rows(index))
    clock.advance(2.0)
    await sweeper.expire_due(100)

    assert still
    assert not redis.rows(index)


async def test_what_is_expected_while_a_party_is_swept_is_not_struck() -> None:
    clock = ManualClock()
    redis, holder, sweeper = await two_nodes(clock)
    party = new_party()
    await holder.expect_party(party)
    index = holder.keys.sweep(holder.keys.shard(party)).encode()
    await sweeper.expire_due(100)
    clock.advance(3.0)

    def expect() -> None:
        redis.run(("ZADD", index, "LT", 0, f"{party:016x}"))

    sweeper.near.before["party_swept"] = expect
    await sweeper.expire_due(100)

    assert redis.rows(index)
