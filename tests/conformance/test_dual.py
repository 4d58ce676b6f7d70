"""Two stores as one pass what every push store passes, whichever of them a user agent lives in."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import ClassVar

import pytest

from waystation.base.clock import ManualClock
from waystation.push.store import PushStore
from waystation.storage.capabilities import Capabilities
from waystation.storage.dual.push import DualPushStore, both_can
from waystation.storage.dual.url import parse_dual_url
from waystation.storage.embedded.check import check_store
from waystation.storage.embedded.push import EmbeddedPushStore
from waystation.storage.memory.push import MemoryPushStore
from waystation.storage.settings import Store
from waystation.testing.conformance.push_store import PushStoreConformance


class TestDualOfMemories(PushStoreConformance):
    capabilities: ClassVar[Capabilities] = both_can(
        MemoryPushStore.capabilities, MemoryPushStore.capabilities
    )
    options = ""

    @pytest.fixture
    def store(self, clock: ManualClock) -> PushStore:
        url = parse_dual_url(f"dual:?primary=memory:&secondary=memory:{self.options}")
        return DualPushStore(MemoryPushStore(clock), MemoryPushStore(clock), url, clock)


class TestDualThatWritesToBoth(TestDualOfMemories):
    options = "&write_to_secondary=1"


class TestDualBeforeAnybodyMoves(TestDualOfMemories):
    options = "&median=none"


class TestDualOfHalf(TestDualOfMemories):
    """Neighbours may live in different stores."""

    options = "&end_median=7f"


class TestDualOfEmbeddedAndMemory(PushStoreConformance):
    capabilities = both_can(EmbeddedPushStore.capabilities, MemoryPushStore.capabilities)

    @pytest.fixture
    async def store(self, clock: ManualClock, tmp_path: Path) -> AsyncIterator[PushStore]:
        settings = Store(map_bytes=256 << 20)
        primary = await EmbeddedPushStore.open(tmp_path / "push", settings=settings, clock=clock)
        url = parse_dual_url("dual:?primary=embedded:&secondary=memory:&write_to_secondary=1")
        store = DualPushStore(primary, MemoryPushStore(clock), url, clock)
        yield store
        report = check_store(primary.env)
        await store.close()
        assert report.problems == []
