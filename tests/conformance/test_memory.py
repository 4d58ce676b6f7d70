"""The memory store passes what every push store passes."""

import pytest

from waystation.base.clock import ManualClock
from waystation.push.store import PushStore
from waystation.storage.memory.push import MemoryPushStore
from waystation.testing.conformance.push_store import PushStoreConformance


class TestMemory(PushStoreConformance):
    capabilities = MemoryPushStore.capabilities

    @pytest.fixture
    def store(self, clock: ManualClock) -> PushStore:
        return MemoryPushStore(clock)
