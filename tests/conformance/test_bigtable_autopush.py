"""Autopush's nodes and ours on one table of Bigtable: each reads and changes the other's rows."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.servers.autopush_bigtable import AutopushNode, now_ms
from tests.servers.bigtable import bigtable_emulator, bigtable_url
from waystation.base.clock import SystemClock
from waystation.push.model import (
    ChannelId,
    MessageId,
    Notification,
    Route,
    SortKey,
    Uaid,
    UserAgent,
)
from waystation.storage.bigtable.push import BigtablePushStore
from waystation.storage.bigtable.url import BigtableUrl
from waystation.storage.settings import Store
from waystation.testing.conformance.push_store import (
    fetch_all,
    timed_notification,
    topic_notification,
)

__all__ = ["bigtable_emulator", "bigtable_url"]

pytestmark = pytest.mark.bigtable

NODE = "http://10.0.0.7:8081"


@pytest.fixture
async def store(bigtable_url: BigtableUrl) -> AsyncIterator[BigtablePushStore]:
    store = await BigtablePushStore.open(bigtable_url, settings=Store(), clock=SystemClock())
    yield store
    await store.close()
    assert store.stats().undecodable == 0


@pytest.fixture
def autopush(store: BigtablePushStore) -> AutopushNode:
    return AutopushNode(store.session._tables[0])


def autopush_user(**fields: Any) -> dict[str, Any]:
    return {
        "connected_at": now_ms() - 5000,
        "router_type": "webpush",
        "version": uuid4().bytes,
        "node_id": NODE,
        **fields,
    }


def autopush_message(**fields: Any) -> dict[str, Any]:
    return {"ttl": 300, "timestamp": now_ms() // 1000, "version": "gAAAAABm", **fields}


def channel(of: UUID) -> ChannelId:
    return ChannelId(of.bytes)


# Theirs, read and changed by us


async def test_a_user_of_autopush_connects_to_us_and_gets_what_waited(
    store: BigtablePushStore, autopush: AutopushNode
) -> None:
    uaid, chid = uuid4(), uuid4()
    ours = Uaid(uaid.bytes)
    user = autopush_user()
    assert await autopush.add_user(uaid, user)
    await autopush.add_channels(uaid, chid)
    timed = f"02:{now_ms()}:{chid}"
    await autopush.save_message(
        uaid, timed, autopush_message(data="QUJD", headers={"encoding": "aes128gcm"})
    )
    await autopush.save_message(uaid, f"01:{chid}:news", autopush_message(version="gAAAAABt"))

    record = await store.get_user_agent(ours)
    assert record is not None
    assert record == UserAgent(
        uaid=ours,
        connected_at_ms=user["connected_at"],
        node_id=NODE,
        row_version=user["version"],
    )
    claim = UserAgent(
        uaid=ours,
        connected_at_ms=now_ms(),
        node_id="http://ours:8081",
        row_version=record.row_version,
    )
    assert await store.claim_route(claim)
    waiting = await fetch_all(store, ours, now_ms=now_ms())
    assert [row.sort_key for row in waiting] == [f"01:{chid}:news", timed]
    assert waiting[1].data == "QUJD"
    assert waiting[1].headers == {"encoding": "aes128gcm"}
    assert await store.forget(ours, [(row.sort_key, row.message_id) for row in waiting]) == 2
    assert await autopush.fetch_topics(uaid) == {}
    assert await autopush.fetch_timed(uaid) == {}


async def test_a_route_that_autopush_wrote_is_cleared_by_us_once(
    store: BigtablePushStore, autopush: AutopushNode
) -> None:
    uaid, user = uuid4(), autopush_user()
    await autopush.add_user(uaid, user)
    seen = Route(NODE, user["connected_at"], user["version"])

    assert not await store.clear_route(Uaid(uaid.bytes), Route(NODE, 1, user["version"]))
    assert await store.clear_route(Uaid(uaid.bytes), seen)
    assert not await store.clear_route(Uaid(uaid.bytes), seen)
    after = await autopush.get_user(uaid)
    assert after is not None
    assert "node_id" not in after
    assert await autopush.update_user(uaid, {**user, "node_id": NODE}), "a hello under way wins"


async def test_our_claim_is_refused_once_autopush_has_written_the_row(
    store: BigtablePushStore, autopush: AutopushNode
) -> None:
    """The cell of the old `version` is still there, and must not match."""
    uaid, user = uuid4(), autopush_user()
    await autopush.add_user(uaid, user)
    read = await store.get_user_agent(Uaid(uaid.bytes))
    assert read is not None
    assert await autopush.update_user(uaid, {**user, "connected_at": now_ms() - 10})

    claim = UserAgent(
        uaid=read.uaid, connected_at_ms=now_ms(), node_id=NODE, row_version=read.row_version
    )
    assert not await store.claim_route(claim)


async def test_a_channel_that_autopush_added_is_counted_and_can_be_removed(
    store: BigtablePushStore, autopush: AutopushNode
) -> None:
    uaid, first, second = uuid4(), uuid4(), uuid4()
    ours = Uaid(uaid.bytes)
    await autopush.add_user(uaid, autopush_user())
    await autopush.add_channels(uaid, first)

    assert not await store.add_channel(ours, channel(second), channels_max=1)
    assert await store.add_channel(ours, channel(second), channels_max=2)
    assert await store.remove_channel(ours, channel(first))
    assert not await autopush.remove_channel(uaid, first)
    assert await store.get_channels(ours) == {channel(second)}


# Ours, read and changed by them


async def test_a_user_agent_of_ours_connects_to_autopush_and_gets_what_waited(
    store: BigtablePushStore, autopush: AutopushNode
) -> None:
    uaid, chid = uuid4(), uuid4()
    ours = Uaid(uaid.bytes)
    at_ms = now_ms()
    assert await store.add_user_agent(
        UserAgent(uaid=ours, connected_at_ms=at_ms, node_id=NODE, router_data={"token": "t"})
    )
    assert await store.add_channel(ours, channel(chid), channels_max=9)
    headers = {"encoding": "aes128gcm"}
    topic = topic_notification(channel(chid), "news", accepted_at_ms=at_ms, ttl_s=60)
    three_parts = f"02:{at_ms}:{chid}"
    timed = Notification(
        channel(chid),
        MessageId("gAAAAABx"),
        SortKey(three_parts),
        at_ms,
        300,
        data="QUJD",
        headers=headers,
    )
    await store.save(ours, topic)
    await store.save(ours, timed)

    user = await autopush.get_user(uaid)
    assert user is not None
    assert user["connected_at"] == at_ms
    assert user["router_data"] == {"token": "t"}
    assert user["record_version"] == 1
    assert user["channels"] == {chid}
    assert not await autopush.add_user(uaid, autopush_user())
    assert await autopush.update_user(uaid, {**user, "connected_at": now_ms()})
    assert (await autopush.fetch_topics(uaid)).keys() == {topic.sort_key}
    assert await autopush.fetch_timed(uaid) == {
        three_parts: {
            "version": "gAAAAABx",
            "ttl": 300,
            "timestamp": at_ms // 1000,
            "data": "QUJD",
            "headers": headers,
        }
    }
    assert await autopush.fetch_timed(uaid, at_ms) == {}, "its cursor passes all of that ms"
    await autopush.remove_message(uaid, three_parts)
    await autopush.remove_message(uaid, topic.sort_key)
    assert not await fetch_all(store, ours, now_ms=now_ms())


async def test_a_claim_of_ours_is_a_write_that_autopush_notices(
    store: BigtablePushStore, autopush: AutopushNode
) -> None:
    uaid, user = uuid4(), autopush_user()
    await autopush.add_user(uaid, user)
    assert await store.claim_route(
        UserAgent(uaid=Uaid(uaid.bytes), connected_at_ms=now_ms(), node_id="http://ours:8081")
    )

    assert not await autopush.update_user(uaid, user)
    assert not await autopush.remove_node_id(uaid, user["version"])
    after = await autopush.get_user(uaid)
    assert after is not None
    assert after["node_id"] == "http://ours:8081"


async def test_what_autopush_counts_as_read_is_still_delivered_by_us(
    store: BigtablePushStore, autopush: AutopushNode
) -> None:
    """R11: its cursor hides nothing from us; only an ack ends a message."""
    uaid, chid = uuid4(), uuid4()
    ours = Uaid(uaid.bytes)
    await autopush.add_user(uaid, autopush_user())
    await autopush.add_channels(uaid, chid)
    late = timed_notification(channel(chid), accepted_at_ms=now_ms() - 100)
    await store.save(ours, late)
    await autopush.increment_storage(uaid, now_ms())

    assert await fetch_all(store, ours, now_ms=now_ms()) == [late]
    record = await store.get_user_agent(ours)
    assert record is not None
    assert record.current_timestamp_ms is not None


async def test_a_user_that_autopush_removed_leaves_nothing_to_the_next_one(
    store: BigtablePushStore, autopush: AutopushNode
) -> None:
    """It leaves message rows to expire; a new record under the same id must not get them."""
    uaid, chid = uuid4(), uuid4()
    ours = Uaid(uaid.bytes)
    await autopush.add_user(uaid, autopush_user())
    await autopush.add_channels(uaid, chid)
    await autopush.save_message(uaid, f"02:{now_ms()}:{chid}", autopush_message())
    await autopush.remove_user(uaid)

    assert await store.add_user_agent(UserAgent(uaid=ours, connected_at_ms=now_ms()))
    assert await store.add_channel(ours, channel(chid), channels_max=9)
    assert not await fetch_all(store, ours, now_ms=now_ms())


# Remains


async def test_remains_of_a_record_are_removed_on_sight(
    store: BigtablePushStore, autopush: AutopushNode
) -> None:
    uaid, chid = uuid4(), uuid4()
    ours = Uaid(uaid.bytes)
    for look in (
        lambda: store.get_user_agent(ours),
        lambda: store.look_up(ours, channel(chid)),
        lambda: store.fetch(ours, now_ms=now_ms(), after=None, limit=9),
    ):
        dropped = store.stats().incomplete
        await autopush.add_channels(uaid, chid)
        await autopush.increment_storage(uaid, now_ms())

        assert not await look()
        assert store.stats().incomplete == dropped + 1
        assert await autopush.table.read_row(uaid.hex) is None


async def test_remains_of_a_record_do_not_stand_in_the_way_of_a_new_one(
    store: BigtablePushStore, autopush: AutopushNode
) -> None:
    uaid, chid = uuid4(), uuid4()
    ours = Uaid(uaid.bytes)
    await autopush.add_channels(uaid, chid)

    assert await store.add_user_agent(UserAgent(uaid=ours, connected_at_ms=now_ms()))
    assert await store.get_channels(ours) == frozenset(), "and are not inherited"
