"""Redis and Redis Cluster pass what every push store passes."""

from collections.abc import AsyncIterator

import pytest

from tests.servers.redis import RedisServer, redis_cluster, redis_server, redis_url
from waystation.base.clock import ManualClock, SystemClock
from waystation.push.store import PushStore
from waystation.storage.redis.push import RedisPushStore
from waystation.storage.redis.url import parse_redis_url
from waystation.storage.settings import Store
from waystation.testing.conformance.push_store import PushStoreConformance

__all__ = ["redis_cluster", "redis_server", "redis_url"]

pytestmark = pytest.mark.redis


class RedisConformance(PushStoreConformance):
    capabilities = RedisPushStore.capabilities

    @pytest.fixture
    def clock(self) -> ManualClock:
        """An hour ahead of Redis's own, which lets go of rows some time after their end."""
        return ManualClock(now_ms=SystemClock().now_ms() + 3_600_000)


class TestRedis(RedisConformance):
    @pytest.fixture
    async def store(self, clock: ManualClock, redis_url: str) -> AsyncIterator[PushStore]:
        url = parse_redis_url(redis_url)
        store = await RedisPushStore.open(url, settings=Store(), clock=clock)
        yield store
        await store.close()
        assert store.stats().undecodable == 0


class TestRedisCluster(RedisConformance):
    @pytest.fixture
    async def store(
        self, clock: ManualClock, redis_cluster: list[RedisServer]
    ) -> AsyncIterator[PushStore]:
        for server in redis_cluster:  # a cluster has one database, and tests count what is in it
            server.command("FLUSHALL")
        url = parse_redis_url(f"redis+cluster://127.0.0.1:{redis_cluster[0].port}")
        store = await RedisPushStore.open(url, settings=Store(), clock=clock)
        yield store
        await store.close()
        assert store.stats().undecodable == 0
