"""The cluster store on memory, LMDB, PostgreSQL and Redis."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.servers.postgres import postgres_server, postgres_url
from tests.servers.redis import redis_server, redis_url
from waystation.base.clock import ManualClock
from waystation.queue.cluster.cluster_store import ClusterStore
from waystation.storage.embedded.cluster_store import EmbeddedClusterStore
from waystation.storage.memory.cluster_store import MemoryClusterStore
from waystation.storage.postgres.cluster_store import PostgresClusterStore
from waystation.storage.postgres.url import parse_postgres_url
from waystation.storage.redis.cluster_store import RedisClusterStore
from waystation.storage.redis.url import parse_redis_url
from waystation.storage.settings import Store
from waystation.testing.conformance.cluster_store import ClusterStoreConformance

__all__ = ["postgres_server", "postgres_url", "redis_server", "redis_url"]


class TestMemory(ClusterStoreConformance):
    @pytest.fixture
    def store(self) -> ClusterStore:
        self._clock = ManualClock()
        return MemoryClusterStore(self._clock)

    async def another(self, store: ClusterStore) -> ClusterStore:
        return store

    async def let_time_pass(self, seconds: float) -> None:
        self._clock.advance(seconds)


class TestEmbedded(ClusterStoreConformance):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[ClusterStore]:
        store = await EmbeddedClusterStore.open(tmp_path / "cluster", settings=Store())
        yield store
        await store.close()

    async def another(self, store: ClusterStore) -> ClusterStore:
        return store  # LMDB admits one handle in a process; processes meet in the e2e tests


@pytest.mark.postgres
class TestPostgres(ClusterStoreConformance):
    @pytest.fixture
    async def store(self, postgres_url: str) -> AsyncIterator[ClusterStore]:
        self._url = parse_postgres_url(postgres_url)
        store = await PostgresClusterStore.open(self._url, settings=Store())
        self._others: list[ClusterStore] = []
        yield store
        for one in (store, *self._others):
            await one.close()

    async def another(self, store: ClusterStore) -> ClusterStore:
        self._others.append(await PostgresClusterStore.open(self._url, settings=Store()))
        return self._others[-1]


@pytest.mark.redis
class TestRedis(ClusterStoreConformance):
    @pytest.fixture
    async def store(self, redis_url: str) -> AsyncIterator[ClusterStore]:
        self._url = parse_redis_url(redis_url)
        store = await RedisClusterStore.open(self._url, settings=Store())
        self._others: list[ClusterStore] = []
        yield store
        for one in (store, *self._others):
            await one.close()

    async def another(self, store: ClusterStore) -> ClusterStore:
        self._others.append(await RedisClusterStore.open(self._url, settings=Store()))
        return self._others[-1]
