"""PostgreSQL passes what every queue store passes."""

from collections.abc import AsyncIterator

import pytest

from tests.servers.postgres import postgres_server, postgres_url
from waystation.queue.store import QueueStore
from waystation.storage.postgres.queue import PostgresQueueStore
from waystation.storage.postgres.url import parse_postgres_url
from waystation.storage.settings import Store
from waystation.testing.conformance.queue_store import DurableQueueStoreConformance

__all__ = ["postgres_server", "postgres_url"]

pytestmark = pytest.mark.postgres


class TestPostgres(DurableQueueStoreConformance):
    capabilities = PostgresQueueStore.capabilities

    @pytest.fixture
    async def store(self, postgres_url: str) -> AsyncIterator[QueueStore]:
        self._url = parse_postgres_url(postgres_url)
        store = await PostgresQueueStore.open(self._url, settings=Store())
        yield store
        await store.close()
        assert store.stats().failures == 0

    async def reopened(self, store: QueueStore) -> QueueStore:
        await store.close()
        return await PostgresQueueStore.open(self._url, settings=Store())
