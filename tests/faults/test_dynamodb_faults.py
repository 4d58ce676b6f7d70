"""DynamoDB behind a proxy that delays, stalls, cuts; one that throttles and leaves items undone."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.faults.subscriber import CHANNEL, UAID, notification, subscribe
from tests.servers.dynamodb import PATIENT, DynamoServer, dynamodb_server
from waystation.base.clock import ManualClock, SystemClock
from waystation.base.errors import StoreUnavailableError
from waystation.push.model import UserAgent
from waystation.storage.dynamodb.client import Client, ServiceError
from waystation.storage.dynamodb.init import init_store
from waystation.storage.dynamodb.push import DynamoPushStore
from waystation.storage.dynamodb.url import parse_dynamodb_url
from waystation.storage.settings import Store
from waystation.testing.conformance.push_faults import PushStoreFaults
from waystation.testing.conformance.push_store import fetch_all
from waystation.testing.faults import FaultyProxy

__all__ = ["dynamodb_server"]

pytestmark = pytest.mark.dynamodb

QUICK = Store(operation_timeout_s=1.0, queue_max=200)
SOON_S = 30.0  # generous: the machine may be busy


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now_ms=SystemClock().now_ms())


async def opened(url: str, clock: ManualClock, settings: Store) -> DynamoPushStore:
    store = await DynamoPushStore.open(parse_dynamodb_url(url), settings=settings, clock=clock)
    await subscribe(store, clock)
    return store


class TestBehindAProxy(PushStoreFaults):
    waiting_max = QUICK.queue_max

    @pytest.fixture
    async def proxy(self, dynamodb_server: DynamoServer) -> AsyncIterator[FaultyProxy]:
        async with FaultyProxy("127.0.0.1", dynamodb_server.port) as proxy:
            yield proxy

    @pytest.fixture
    async def store(
        self, dynamodb_server: DynamoServer, proxy: FaultyProxy, clock: ManualClock
    ) -> AsyncIterator[DynamoPushStore]:
        direct = dynamodb_server.new_url()
        await init_store(direct, PATIENT)
        through = direct.replace(str(dynamodb_server.port), str(proxy.port))
        store = await opened(through, clock, PATIENT)
        store._context.dynamo._timeout_s = QUICK.operation_timeout_s  # now that it is warm
        store._context.dynamo._queue_max = QUICK.queue_max
        yield store
        proxy.resume()
        await store.close()

    async def test_reads_survive_connections_that_are_cut(
        self, store: DynamoPushStore, proxy: FaultyProxy
    ) -> None:
        for _ in range(5):
            proxy.cut()

            assert await store.get_user_agent(UAID) is not None


class Unlucky:
    """A client whose calls are throttled now and then, and whose batches stay half undone."""

    def __init__(self, client: Client, seed: int) -> None:
        self._client = client
        self._random = random.Random(seed)
        self.share = 0.4

    async def call(self, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        if self._random.random() < self.share:
            raise ServiceError("ProvisionedThroughputExceededException", {})
        wanted: dict[str, Any] = request.get("RequestItems", {})
        if operation == "BatchGetItem" and len(wanted) > 1:
            table = self._random.choice(sorted(wanted))
            rest = dict(wanted)
            some = {"RequestItems": {table: rest.pop(table)}}
            return await self._client.call(operation, some) | {"UnprocessedKeys": rest}
        if operation == "BatchWriteItem":
            ((table, items),) = wanted.items()
            half = (len(items) + 1) // 2
            await self._client.call(operation, {"RequestItems": {table: items[:half]}})
            return {"UnprocessedItems": {table: items[half:]} if items[half:] else {}}
        return await self._client.call(operation, request)

    async def close(self) -> None:
        await self._client.close()


class TestThrottled:
    @pytest.fixture
    async def store(
        self, dynamodb_server: DynamoServer, clock: ManualClock
    ) -> AsyncIterator[DynamoPushStore]:
        url = dynamodb_server.new_url()
        await init_store(url, PATIENT)
        store = await opened(url, clock, PATIENT)
        dynamo: Any = store._context.dynamo
        dynamo._client = Unlucky(dynamo._client, seed=7)
        yield store
        await store.close()

    async def test_throttling_and_unprocessed_items_are_ridden_out(
        self, store: DynamoPushStore, clock: ManualClock
    ) -> None:
        rows = [notification(clock, n) for n in range(60)]
        await asyncio.gather(*(store.save(UAID, row) for row in rows))
        now_ms = clock.now_ms()
        recipient = await store.look_up(UAID, CHANNEL)

        assert recipient is not None
        assert recipient.subscribed
        assert await fetch_all(store, UAID, now_ms=now_ms) == rows
        acked = [(row.sort_key, row.message_id) for row in rows[:20]]
        assert await store.forget(UAID, acked) == 20
        assert await store.remove_channel(UAID, CHANNEL)
        assert await store.add_channel(UAID, CHANNEL, channels_max=1)
        assert await fetch_all(store, UAID, now_ms=now_ms) == []
        assert store.stats().throttled > 10
        assert store.stats().unprocessed > 10
        assert store.stats().failures == 0

    async def test_a_claim_is_won_once_however_often_it_is_throttled(
        self, store: DynamoPushStore, clock: ManualClock
    ) -> None:
        claims = [
            UserAgent(uaid=UAID, connected_at_ms=clock.now_ms() + 1, node_id=f"http://{n}:8081")
            for n in range(8)
        ]

        won = await asyncio.gather(*(store.claim_route(claim) for claim in claims))
        assert sum(won) == 1

    async def test_a_store_that_only_throttles_is_unavailable(self, store: DynamoPushStore) -> None:
        dynamo: Any = store._context.dynamo
        dynamo._client.share = 1.0
        dynamo._timeout_s = 0.3

        with pytest.raises(StoreUnavailableError, match="Throughput"):
            await store.check()
        dynamo._client.share = 0.0
        await store.check()
