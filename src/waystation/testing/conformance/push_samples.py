"""Shared parts of the push store suites: sample ids, records and notifications, and fixtures."""

import asyncio
import os
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from waystation.base.clock import ManualClock
from waystation.base.ids import dashed, new_uuid4
from waystation.push.model import (
    ChannelId,
    MessageId,
    Notification,
    SortKey,
    Uaid,
    UserAgent,
)
from waystation.push.store import PushStore
from waystation.storage.capabilities import Capabilities

NODE_A = "http://a.example:8081"
NODE_B = "http://b.example:8081/w/1"
HOUR_S = 3_600


def new_channel() -> ChannelId:
    return ChannelId(new_uuid4())


def new_message_id() -> MessageId:
    return MessageId("gAAAAAB" + os.urandom(30).hex())


def topic_notification(
    channel_id: ChannelId, topic: str, *, accepted_at_ms: int, ttl_s: int = HOUR_S, **fields: Any
) -> Notification:
    return Notification(
        channel_id,
        fields.pop("message_id", None) or new_message_id(),
        SortKey(f"01:{dashed(channel_id)}:{topic}"),
        accepted_at_ms,
        ttl_s,
        topic=topic,
        **fields,
    )


def timed_notification(
    channel_id: ChannelId,
    *,
    accepted_at_ms: int,
    n: int | str = 0,
    ttl_s: int = HOUR_S,
    **fields: Any,
) -> Notification:
    return Notification(
        channel_id,
        fields.pop("message_id", None) or new_message_id(),
        SortKey(f"02:{accepted_at_ms}:{dashed(channel_id)}:{n}"),
        accepted_at_ms,
        ttl_s,
        **fields,
    )


async def fetch_all(
    store: PushStore, uaid: Uaid, *, now_ms: int, limit: int = 10
) -> list[Notification]:
    """One whole pass, as a session does it."""
    found: list[Notification] = []
    after: SortKey | None = None
    while portion := await store.fetch(uaid, now_ms=now_ms, after=after, limit=limit):
        assert len(portion) <= limit
        found += portion
        after = portion[-1].sort_key
    return found


async def sweep_all(store: PushStore, *, now_ms: int, limit: int = 100) -> int:
    removed = 0
    while True:
        now = await store.sweep(now_ms=now_ms, limit=limit)
        assert 0 <= now <= limit
        removed += now
        if now < limit:
            return removed


class PushStoreSuite:
    """Fixtures of every suite; a backend provides `capabilities` and `store`."""

    capabilities: ClassVar[Capabilities]

    # Fixtures that a backend may replace

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def store(self) -> PushStore:
        raise AssertionError("a backend's suite brings its own store")

    @pytest.fixture
    def uaid(self) -> Uaid:
        return Uaid(new_uuid4())

    @pytest.fixture
    async def subscribed(self, store: PushStore, uaid: Uaid, clock: ManualClock) -> ChannelId:
        """The one subscription of the user agent `uaid`."""
        channel_id = new_channel()
        assert await store.add_user_agent(self.agent(uaid, clock))
        assert await store.add_channel(uaid, channel_id, channels_max=100)
        return channel_id

    def agent(
        self, uaid: Uaid, clock: ManualClock, *, node_id: str | None = NODE_A, later_ms: int = 0
    ) -> UserAgent:
        return UserAgent(uaid=uaid, connected_at_ms=clock.now_ms() + later_ms, node_id=node_id)

    def needs_our_clock(self) -> None:
        if self.capabilities.native_expiry:
            pytest.skip("this backend forgets by its own clock")

    async def seen(self, store: PushStore, uaid: Uaid) -> UserAgent:
        """The record for a claim, with the row version that was read."""
        record = await store.get_user_agent(uaid)
        assert record is not None
        return record


def expiring(channel_id: ChannelId, now_ms: int, numbers: Sequence[int]) -> list[Notification]:
    """Notifications that live for a minute."""
    return [timed_notification(channel_id, accepted_at_ms=now_ms + n, ttl_s=60) for n in numbers]


async def save_many(store: PushStore, uaid: Uaid, rows: Sequence[Notification]) -> None:
    await asyncio.gather(*(store.save(uaid, row) for row in rows))


def by_key(rows: Sequence[Notification]) -> dict[SortKey, Notification]:
    found = {row.sort_key: row for row in rows}
    assert len(found) == len(rows), "a row came twice"
    return found


def replaced(record: UserAgent, *, node_id: str, later_ms: int = 0) -> UserAgent:
    """The record as a hello writes it, with the version that it read."""
    return UserAgent(
        uaid=record.uaid,
        connected_at_ms=record.connected_at_ms + later_ms,
        node_id=node_id,
        row_version=record.row_version,
    )


def without_row_version(record: UserAgent) -> UserAgent:
    return UserAgent(
        uaid=record.uaid,
        connected_at_ms=record.connected_at_ms,
        router_type=record.router_type,
        router_data=record.router_data,
        node_id=record.node_id,
        record_version=record.record_version,
        current_timestamp_ms=record.current_timestamp_ms,
    )
