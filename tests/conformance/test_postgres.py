"""PostgreSQL passes what every push store passes, in tables of ours and in Autopush's."""

from collections.abc import AsyncIterator

import pytest

from tests.servers.postgres import postgres_server, postgres_url
from waystation.base.clock import ManualClock
from waystation.push.store import PushStore
from waystation.storage.postgres.push import PostgresPushStore
from waystation.storage.postgres.url import parse_postgres_url
from waystation.storage.settings import Store
from waystation.testing.conformance.push_store import PushStoreConformance

__all__ = ["postgres_server", "postgres_url"]

pytestmark = pytest.mark.postgres


class TestPostgres(PushStoreConformance):
    capabilities = PostgresPushStore.capabilities

    @pytest.fixture
    async def store(self, clock: ManualClock, postgres_url: str) -> AsyncIterator[PushStore]:
        url = parse_postgres_url(postgres_url)
        store = await PostgresPushStore.open(url, settings=Store(), clock=clock)
        yield store
        await store.close()
        assert store.stats().undecodable == 0
        assert store.stats().failures == 0
