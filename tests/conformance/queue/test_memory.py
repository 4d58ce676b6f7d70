"""The memory store passes the queue store suite."""

import pytest

from waystation.queue.store import QueueStore
from waystation.storage.memory.queue import MemoryQueueStore
from waystation.testing.conformance.queue_store import QueueStoreConformance


class TestMemory(QueueStoreConformance):
    capabilities = MemoryQueueStore.capabilities

    @pytest.fixture
    async def store(self) -> QueueStore:
        return MemoryQueueStore()
