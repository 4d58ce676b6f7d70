"""Bigtable passes what every push store passes."""

from collections.abc import AsyncIterator

import pytest

from tests.servers.bigtable import bigtable_emulator, bigtable_url
from waystation.base.clock import ManualClock, SystemClock
from waystation.push.store import PushStore
from waystation.storage.bigtable.push import BigtablePushStore
from waystation.storage.bigtable.url import BigtableUrl
from waystation.storage.settings import Store
from waystation.testing.conformance.push_store import PushStoreConformance

__all__ = ["bigtable_emulator", "bigtable_url"]

pytestmark = pytest.mark.bigtable


class TestBigtable(PushStoreConformance):
    capabilities = BigtablePushStore.capabilities

    @pytest.fixture
    def clock(self) -> ManualClock:
        """It starts at the present: the emulator collects what has ended by its own clock."""
        return ManualClock(now_ms=SystemClock().now_ms())

    @pytest.fixture
    async def store(
        self, clock: ManualClock, bigtable_url: BigtableUrl
    ) -> AsyncIterator[PushStore]:
        store = await BigtablePushStore.open(bigtable_url, settings=Store(), clock=clock)
        yield store
        await store.close()
        assert store.stats().undecodable == 0
