"""PostgreSQL passes what every push store passes, in tables of ours and in Autopush's."""

from collections.abc import AsyncIterator

import pytest

from tests.servers.postgres import autopush_url, postgres_server, postgres_url
from waystation.base.clock import ManualClock
from waystation.base.ids import new_uuid4
from waystation.push.model import ChannelId, Uaid
from waystation.push.store import PushStore
from waystation.storage.postgres.push import PostgresPushStore
from waystation.storage.postgres.schema import init_store
from waystation.storage.postgres.url import parse_postgres_url
from waystation.storage.settings import Store
from waystation.testing.conformance.push_store import (
    PushStoreConformance,
    fetch_all,
    new_channel,
    save_many,
    timed_notification,
)

__all__ = ["autopush_url", "postgres_server", "postgres_url"]

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


class TestPostgresTakenOver(PushStoreConformance):
    """With Autopush's tables, references and its unique index over the sort keys of everybody."""

    capabilities = PostgresPushStore.capabilities

    @pytest.fixture
    async def store(self, clock: ManualClock, autopush_url: str) -> AsyncIterator[PushStore]:
        await init_store(autopush_url, Store())
        url = parse_postgres_url(autopush_url)
        store = await PostgresPushStore.open(url, settings=Store(), clock=clock)
        yield store
        await store.close()
        assert store.stats().undecodable == 0

    # Two tests of the suite give two user agents the same channel, which that index does not admit
    # (tests/conformance/test_postgres_rows.py has what happens then): here, each has its own.

    async def test_the_neighbours_rows_are_not_fetched(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        now_ms = clock.now_ms()
        for _ in range(2):
            neighbour, channel_id = Uaid(new_uuid4()), new_channel()
            await store.add_user_agent(self.agent(neighbour, clock))
            await store.add_channel(neighbour, channel_id, channels_max=100)
            await store.save(neighbour, timed_notification(channel_id, accepted_at_ms=now_ms))

        assert not await fetch_all(store, uaid, now_ms=now_ms)

    async def test_removal_takes_many_notifications_and_only_the_right_ones(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        now_ms = clock.now_ms()
        neighbour, channel_id = Uaid(new_uuid4()), new_channel()
        await store.add_user_agent(self.agent(neighbour, clock))
        await store.add_channel(neighbour, channel_id, channels_max=100)
        kept = timed_notification(channel_id, accepted_at_ms=now_ms)
        await store.save(neighbour, kept)
        many = [timed_notification(subscribed, accepted_at_ms=now_ms, n=n) for n in range(2100)]
        await save_many(store, uaid, many)

        assert await store.remove_user_agent(uaid)
        assert await fetch_all(store, neighbour, now_ms=now_ms) == [kept]
        assert not await fetch_all(store, uaid, now_ms=now_ms)
