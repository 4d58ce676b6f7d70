"""PostgreSQL passes the queue store suite."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.servers.postgres import postgres_server, postgres_url
from waystation.queue.store import QueueStore
from waystation.storage.postgres.queue import PostgresQueueStore
from waystation.storage.postgres.url import parse_postgres_url
from waystation.storage.settings import Store
from waystation.testing.conformance.queue_samples import drained, new_message, new_queue, send
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


async def test_two_servers_that_ask_in_opposite_orders_do_not_wait_in_a_circle(
    postgres_url: str,
) -> None:
    """Each holds the row of one queue and waits for the other's: the database would end one."""
    url = parse_postgres_url(postgres_url)
    stores = [await PostgresQueueStore.open(url, settings=Store()) for _ in range(2)]
    queues = [new_queue() for _ in range(40)]
    for queue in queues:
        assert await stores[0].create(queue)
    for _ in range(4):
        await asyncio.gather(
            *(send(stores[0], queue, new_message(), quota=9) for queue in queues),
            *(send(stores[1], queue, new_message(), quota=9) for queue in reversed(queues)),
        )

    for queue in queues:
        assert len(await drained(stores[0], queue)) == 8
    for store in stores:
        await store.close()
        assert store.stats().failures == 0
