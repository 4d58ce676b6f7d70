"""Whoever saves a topic learns which message it replaced, whatever else goes on."""

import asyncio
from typing import Any

import pytest

from tests.servers.postgres import postgres_server, postgres_url
from waystation.base.clock import ManualClock
from waystation.base.ids import new_uuid4
from waystation.push.model import ChannelId, Uaid, Urgency, UserAgent
from waystation.storage.postgres.push import PostgresPushStore
from waystation.storage.postgres.url import parse_postgres_url
from waystation.storage.settings import Store
from waystation.testing.conformance.push_store import fetch_all, new_channel, topic_notification

__all__ = ["postgres_server", "postgres_url"]

pytestmark = pytest.mark.postgres


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def opened(url: str, clock: ManualClock) -> PostgresPushStore:
    return await PostgresPushStore.open(parse_postgres_url(url), settings=Store(), clock=clock)


async def subscribed(store: PostgresPushStore, clock: ManualClock) -> tuple[Uaid, ChannelId]:
    uaid, channel_id = Uaid(new_uuid4()), new_channel()
    await store.add_user_agent(UserAgent(uaid=uaid, connected_at_ms=clock.now_ms()))
    await store.add_channel(uaid, channel_id, channels_max=9)
    return uaid, channel_id


async def test_of_those_saved_at_once_by_several_nodes_all_but_the_last_are_told(
    postgres_url: str, clock: ManualClock
) -> None:
    nodes = [await opened(postgres_url, clock) for _ in range(3)]
    uaid, channel_id = await subscribed(nodes[0], clock)
    now_ms = clock.now_ms()
    rows = [
        topic_notification(channel_id, "t", accepted_at_ms=now_ms, ttl_s=n) for n in range(60, 120)
    ]

    told = await asyncio.gather(*(nodes[n % 3].save(uaid, row) for n, row in enumerate(rows)))

    (left,) = await fetch_all(nodes[0], uaid, now_ms=now_ms)
    gone = [left.replaces(row) for row in rows if row != left]
    assert sorted(map(str, filter(None, told))) == sorted(map(str, gone))
    for node in nodes:
        await node.close()


async def test_what_a_row_says_beside_autopushs_columns_stays_readable(
    postgres_url: str, clock: ManualClock
) -> None:
    store = await opened(postgres_url, clock)
    uaid, channel_id = await subscribed(store, clock)
    now_ms = clock.now_ms()
    odd = '\\ "replaced": {[' + "é" * 40
    kinds: list[dict[str, Any]] = [
        {"urgency": Urgency.HIGH, "reliability_id": odd},
        {},
        {"sender": bytes(32)},
    ]
    for fields in kinds:
        row = topic_notification(
            channel_id, "t", accepted_at_ms=now_ms, message_id=f"{odd}{len(fields)}", **fields
        )
        await store.save(uaid, row)

        assert await fetch_all(store, uaid, now_ms=now_ms) == [row]
    await store.close()
