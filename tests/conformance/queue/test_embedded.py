"""The embedded store passes the queue store suite, and keeps its data across restarts."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from waystation.queue.store import QueueStore
from waystation.storage.embedded.queue import EmbeddedQueueStore
from waystation.storage.settings import Store
from waystation.testing.conformance.queue_store import DurableQueueStoreConformance

SETTINGS = Store(map_bytes=64 << 20)


class TestEmbedded(DurableQueueStoreConformance):
    capabilities = EmbeddedQueueStore.capabilities

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[QueueStore]:
        store = await EmbeddedQueueStore.open(tmp_path / "queue", settings=SETTINGS)
        yield store
        await store.close()

    async def reopened(self, store: QueueStore) -> QueueStore:
        assert isinstance(store, EmbeddedQueueStore)
        await store.close()
        return await EmbeddedQueueStore.open(store.env.path, settings=SETTINGS)
