"""The embedded store passes what every push store passes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from waystation.base.clock import ManualClock
from waystation.push.model import ChannelId, Replaced, Uaid
from waystation.push.store import PushStore
from waystation.storage.embedded.check import check_store
from waystation.storage.embedded.push import EmbeddedPushStore
from waystation.storage.settings import Store
from waystation.testing.conformance.push_samples import topic_notification
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

    async def test_saving_says_which_one_of_the_topic_it_replaced(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        now_ms = clock.now_ms()
        old = topic_notification(subscribed, "t", accepted_at_ms=now_ms)
        new = topic_notification(subscribed, "t", accepted_at_ms=now_ms + 1)
        first = await store.save(uaid, old)
        second = await store.save(uaid, new)

        assert first is None
        assert second == Replaced(old.message_id, now_ms, old.expires_at_ms)
