"""DynamoDB passes what every push store passes, with and without monthly rotation."""

from collections.abc import AsyncIterator

import pytest

from tests.servers.dynamodb import PATIENT, DynamoServer, dynamodb_server
from waystation.base.clock import ManualClock, SystemClock
from waystation.push.store import PushStore
from waystation.storage.dynamodb.init import init_store
from waystation.storage.dynamodb.push import DynamoPushStore
from waystation.storage.dynamodb.url import parse_dynamodb_url
from waystation.testing.conformance.push_store import PushStoreConformance

__all__ = ["dynamodb_server"]

pytestmark = pytest.mark.dynamodb


class DynamoConformance(PushStoreConformance):
    capabilities = DynamoPushStore.capabilities
    options: tuple[str, ...] = ()

    @pytest.fixture
    def clock(self) -> ManualClock:
        """DynamoDB's own, because it lets go of rows whose end has passed."""
        return ManualClock(now_ms=SystemClock().now_ms())

    @pytest.fixture
    async def store(
        self, clock: ManualClock, dynamodb_server: DynamoServer
    ) -> AsyncIterator[PushStore]:
        url = dynamodb_server.new_url(*self.options)
        await init_store(url, PATIENT)
        store = await DynamoPushStore.open(parse_dynamodb_url(url), settings=PATIENT, clock=clock)
        yield store
        await store.close()
        assert store.stats().undecodable == 0
        assert store.stats().failures == 0


class TestDynamoDb(DynamoConformance):
    options = ("rotation=off",)


class TestDynamoDbWithRotation(DynamoConformance):
    options = ("rotation=monthly",)
