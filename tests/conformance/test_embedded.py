"""The embedded store passes what every push store passes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from waystation.base.clock import ManualClock
from waystation.push.store import PushStore
from waystation.storage.embedded.push import EmbeddedPushStore
from waystation.storage.embedded.upkeep import check_store
from waystation.storage.settings import Store
from waystation.testing.conformance.push_store import PushStoreConformance


class TestEmbedded(PushStoreConformance):
    capabilities = EmbeddedPushStore.capabilities

    @pytest.fixture
    async def store(self, clock: ManualClock, tmp_path: Path) -> AsyncIterator[PushStore]:
        settings = Store(map_bytes=256 << 20)
        store = await EmbeddedPushStore.open(tmp_path / "push", settings=settings, clock=clock)
        yield store
        report = check_store(store.env)  # whatever a test did, rows and indexes agree
        await store.close()
        assert report.problems == []
