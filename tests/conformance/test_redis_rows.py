"""Our rows and those of autopush-rs in one Redis: each reads, acks and replaces the other's."""

import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.servers.autopush_redis import AutopushNode
from tests.servers.redis import redis_server, redis_url, running_redis
from waystation.base.clock import ManualClock, SystemClock
from waystation.base.ids import dashed, new_uuid4
from waystation.push.model import (
    USER_AGENT_LIFETIME_S,
    ChannelId,
    MessageId,
    Milestone,
    Notification,
    SortKey,
    Uaid,
    Update,
    UserAgent,
)
from waystation.storage.open import store_warnings
from waystation.storage.redis.init import init_store
from waystation.storage.redis.push import RedisPushStore
from waystation.storage.redis.url import parse_redis_url
from waystation.storage.settings import Store
from waystation.testing.conformance.push_store import fetch_all, sweep_all, topic_notification

__all__ = ["redis_server", "redis_url"]

pytestmark = pytest.mark.redis

UAID = Uaid(new_uuid4())
CHANNEL = ChannelId(new_uuid4())
UAID_TEXT, CHANNEL_TEXT = dashed(UAID), dashed(CHANNEL)
THEIR_NODE = "http://10.0.0.7:8081"
OUR_NODE = "http://10.0.0.8:8081"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now_ms=SystemClock().now_ms())


@pytest.fixture
async def store(clock: ManualClock, redis_url: str) -> AsyncIterator[RedisPushStore]:
    store = await RedisPushStore.open(parse_redis_url(redis_url), settings=Store(), clock=clock)
    yield store
    await store.close()


@pytest.fixture
def autopush(redis_url: str) -> AutopushNode:
    return AutopushNode(redis_url)


def their_user(connected_at_ms: int) -> dict[str, Any]:
    return {
        "uaid": UAID.hex(),
        "connected_at": connected_at_ms,
        "router_type": "webpush",
        "router_data": None,
        "node_id": THEIR_NODE,
        "record_version": 1,
        "priv_channels": [],
    }


def their_message(at_ms: int, *, ttl_s: int = 300, **fields: Any) -> dict[str, Any]:
    message = {
        "channelID": CHANNEL_TEXT,
        "version": f"gAAAA{at_ms}",
        "timestamp": at_ms // 1000,
        "ttl": ttl_s,
        "data": "AAAA",
        "sortkey_timestamp": at_ms,
    }
    return {name: value for name, value in (message | fields).items() if value is not None}


def three_part(at_ms: int, ttl_s: int = 300) -> Notification:
    """As `push.sort_keys = "autopush"` makes it."""
    key = SortKey(f"02:{at_ms}:{CHANNEL_TEXT}")
    return Notification(CHANNEL, MessageId(f"gAAAA{at_ms}"), key, at_ms, ttl_s, data="AAAA")


def subscribe_at_autopush(autopush: AutopushNode, now_ms: int) -> None:
    autopush.add_user(UAID_TEXT, their_user(now_ms), now_ms=now_ms)
    autopush.add_channel(UAID_TEXT, CHANNEL_TEXT)


async def subscribe_here(store: RedisPushStore, now_ms: int) -> None:
    await store.add_user_agent(UserAgent(uaid=UAID, connected_at_ms=now_ms, node_id=OUR_NODE))
    await store.add_channel(UAID, CHANNEL, channels_max=10)


# User agents


async def test_a_user_agent_of_autopush_is_known_here(
    store: RedisPushStore, autopush: AutopushNode, clock: ManualClock
) -> None:
    subscribe_at_autopush(autopush, clock.now_ms())

    found = await store.look_up(UAID, CHANNEL)
    assert found is not None
    assert found.subscribed
    assert found.user_agent.node_id == THEIR_NODE
    assert await store.get_channels(UAID) == {CHANNEL}


async def test_a_user_agent_of_ours_is_known_to_autopush(
    store: RedisPushStore, autopush: AutopushNode, clock: ManualClock
) -> None:
    await subscribe_here(store, clock.now_ms())

    user = autopush.get_user(UAID_TEXT)
    assert user is not None
    assert (user["uaid"], user["node_id"]) == (UAID.hex(), OUR_NODE)
    assert autopush.channels(UAID_TEXT) == {CHANNEL_TEXT}
    assert 0 < int(autopush.redis("TTL", f"autopush/user/{UAID_TEXT}")) <= USER_AGENT_LIFETIME_S


async def test_a_user_agent_moves_to_autopush_and_back(
    store: RedisPushStore, autopush: AutopushNode, clock: ManualClock
) -> None:
    now_ms = clock.now_ms()
    await subscribe_here(store, now_ms)

    assert not autopush.update_user(UAID_TEXT, their_user(now_ms - 1), now_ms=now_ms)
    assert autopush.update_user(UAID_TEXT, their_user(now_ms + 1), now_ms=now_ms + 1)
    assert not await store.claim_route(
        UserAgent(uaid=UAID, connected_at_ms=now_ms, node_id=OUR_NODE)
    )
    assert await store.claim_route(
        UserAgent(uaid=UAID, connected_at_ms=now_ms + 2, node_id=OUR_NODE)
    )
    assert await store.get_channels(UAID) == {CHANNEL}


async def test_a_route_of_autopush_is_cleared_in_its_own_form(
    store: RedisPushStore, autopush: AutopushNode, clock: ManualClock
) -> None:
    subscribe_at_autopush(autopush, clock.now_ms())
    record = await store.get_user_agent(UAID)
    assert record is not None
    assert record.route is not None

    assert await store.clear_route(UAID, record.route)
    user = autopush.get_user(UAID_TEXT)
    assert user is not None
    assert "node_id" not in user
    assert int(autopush.redis("TTL", f"autopush/user/{UAID_TEXT}")) > 0, "it still ends"


async def test_channels_that_autopush_left_twice_go_at_once_and_count_once(
    store: RedisPushStore, autopush: AutopushNode, clock: ManualClock
) -> None:
    """T-9"""
    subscribe_at_autopush(autopush, clock.now_ms())
    autopush.add_channel(UAID_TEXT, CHANNEL_TEXT)

    assert await store.add_channel(UAID, ChannelId(new_uuid4()), channels_max=2)
    assert await store.remove_channel(UAID, CHANNEL)
    assert CHANNEL_TEXT not in autopush.channels(UAID_TEXT)


# Notifications


async def test_messages_of_autopush_are_fetched_in_our_order(
    store: RedisPushStore, autopush: AutopushNode, clock: ManualClock
) -> None:
    now_ms = clock.now_ms()
    subscribe_at_autopush(autopush, now_ms)
    for at_ms in (now_ms + 2, now_ms, now_ms + 1):
        key = f"02:{at_ms}:{CHANNEL_TEXT}"
        autopush.save(UAID_TEXT, key, their_message(at_ms), now_s=now_ms // 1000)
    topic = their_message(now_ms, topic="t", sortkey_timestamp=None)
    autopush.save(UAID_TEXT, f"01:{CHANNEL_TEXT}:t", topic, now_s=now_ms // 1000)
    ours = three_part(now_ms + 3)
    await store.save(UAID, ours)

    rows = await fetch_all(store, UAID, now_ms=now_ms, limit=2)
    assert [row.topic for row in rows] == ["t", None, None, None, None]
    assert rows[1:] == [three_part(now_ms + n) for n in range(4)]
    assert rows[4] == ours


async def test_what_is_acked_here_is_gone_for_autopush(
    store: RedisPushStore, autopush: AutopushNode, clock: ManualClock
) -> None:
    """T-9: it leaves every set that leads to it, so nobody delivers it again."""
    now_ms = clock.now_ms()
    subscribe_at_autopush(autopush, now_ms)
    key = f"02:{now_ms}:{CHANNEL_TEXT}"
    autopush.save(UAID_TEXT, key, their_message(now_ms), now_s=now_ms // 1000)

    assert await store.forget(UAID, [(SortKey(key), MessageId(f"gAAAA{now_ms}"))]) == 1
    assert autopush.fetch(UAID_TEXT) == []
    assert autopush.lines("KEYS", "autopush/msg*") == []
    assert not await fetch_all(store, UAID, now_ms=now_ms)


async def test_autopush_reads_and_acks_what_was_saved_here(
    store: RedisPushStore, autopush: AutopushNode, clock: ManualClock
) -> None:
    now_ms = clock.now_ms()
    await subscribe_here(store, now_ms)
    timed = three_part(now_ms)
    topic = topic_notification(CHANNEL, "t", accepted_at_ms=now_ms)
    await store.save(UAID, timed)
    await store.save(UAID, topic)

    found = autopush.fetch(UAID_TEXT, cursor_s=now_ms // 1000)
    assert {row["key"] for row in found} == {timed.sort_key, topic.sort_key}
    assert {(row["version"], row["ttl"], row["timestamp"]) for row in found} == {
        (row.message_id, row.ttl_s, row.timestamp_s) for row in (timed, topic)
    }
    for row in found:
        autopush.remove(UAID_TEXT, row["key"])
    assert not await fetch_all(store, UAID, now_ms=now_ms)
    assert autopush.redis("ZCARD", f"waystation/order/{UAID_TEXT}") == "0"


async def test_a_topic_replaces_one_of_the_other_side(
    store: RedisPushStore, autopush: AutopushNode, clock: ManualClock
) -> None:
    now_ms = clock.now_ms()
    subscribe_at_autopush(autopush, now_ms)
    key = f"01:{CHANNEL_TEXT}:t"
    theirs = their_message(now_ms - 1000, topic="t", sortkey_timestamp=None)
    autopush.save(UAID_TEXT, key, theirs, now_s=now_ms // 1000)
    ours = topic_notification(CHANNEL, "t", accepted_at_ms=now_ms)

    assert (await store.save_if_newer(UAID, [ours])).written == 1
    assert [row["version"] for row in autopush.fetch(UAID_TEXT)] == [ours.message_id]
    newest = their_message(now_ms + 1000, topic="t", sortkey_timestamp=None)
    autopush.save(UAID_TEXT, key, newest, now_s=now_ms // 1000)
    assert (await store.save_if_newer(UAID, [ours])).written == 0
    (held,) = await fetch_all(store, UAID, now_ms=now_ms)
    assert held.message_id == newest["version"]


async def test_what_autopush_removed_with_a_user_agent_does_not_come_back(
    store: RedisPushStore, autopush: AutopushNode, clock: ManualClock
) -> None:
    now_ms = clock.now_ms()
    await subscribe_here(store, now_ms)
    await store.save(UAID, three_part(now_ms))
    autopush.remove_user(UAID_TEXT)
    subscribe_at_autopush(autopush, now_ms)
    autopush.save(
        UAID_TEXT,
        f"02:{now_ms + 1}:{CHANNEL_TEXT}",
        their_message(now_ms + 1),
        now_s=now_ms // 1000,
    )

    assert await fetch_all(store, UAID, now_ms=now_ms) == [three_part(now_ms + 1)]
    assert len(autopush.lines("KEYS", "autopush/msg/*")) == 1


async def test_one_row_that_is_no_message_does_not_hide_the_others(
    store: RedisPushStore, autopush: AutopushNode, clock: ManualClock
) -> None:
    now_ms = clock.now_ms()
    await subscribe_here(store, now_ms)
    for n in range(3):
        await store.save(UAID, three_part(now_ms + n))
    for n in range(2):
        body = f"autopush/msg/{UAID_TEXT}/02:{now_ms + n}:{CHANNEL_TEXT}"
        autopush.redis("SET", body, "nonsense")

    assert await fetch_all(store, UAID, now_ms=now_ms, limit=1) == [three_part(now_ms + 2)]
    assert store.stats().undecodable >= 2


async def test_what_redis_let_go_of_is_passed_over_and_tidied_up(
    store: RedisPushStore, autopush: AutopushNode, clock: ManualClock
) -> None:
    now_ms = clock.now_ms()
    await subscribe_here(store, now_ms)
    for n in range(12):
        await store.save(UAID, three_part(now_ms + n))
    for n in range(11):
        autopush.redis("DEL", f"autopush/msg/{UAID_TEXT}/02:{now_ms + n}:{CHANNEL_TEXT}")

    found = await store.fetch(UAID, now_ms=now_ms, after=None, limit=5)
    assert list(found) == [three_part(now_ms + 11)]
    assert autopush.redis("ZCARD", f"autopush/msgs/{UAID_TEXT}") == "1"


# Upkeep


async def test_init_tells_the_sweep_of_what_autopush_wrote_and_of_nothing_twice(
    store: RedisPushStore, autopush: AutopushNode, clock: ManualClock, redis_url: str
) -> None:
    now_ms = clock.now_ms()
    subscribe_at_autopush(autopush, now_ms)
    key = f"02:{now_ms}:{CHANNEL_TEXT}"
    autopush.save(UAID_TEXT, key, their_message(now_ms), now_s=now_ms // 1000)

    assert "added 1 user agents of Autopush to the sweep's index" in await init_store(
        redis_url, Store()
    )
    assert "all user agents were in the sweep's index" in await init_store(redis_url, Store())
    assert await sweep_all(store, now_ms=now_ms + 301_000) == 1
    assert autopush.redis("ZCARD", f"autopush/msgs_exp/{UAID_TEXT}") == "0"
    assert (await store.look_up(UAID, CHANNEL)) is not None, "the user agent itself stays"


async def test_channels_go_with_a_user_agent_that_redis_let_go_of(
    store: RedisPushStore, autopush: AutopushNode, clock: ManualClock
) -> None:
    """T-9: the list of channels has no expiry of its own, so the sweep takes it."""
    await subscribe_here(store, clock.now_ms())
    await store.save_update(UAID, Update(CHANNEL, 4))
    autopush.redis("DEL", f"autopush/user/{UAID_TEXT}")
    clock.advance(USER_AGENT_LIFETIME_S)

    await sweep_all(store, now_ms=clock.now_ms())
    left = autopush.lines("KEYS", "*")
    assert not [key for key in left if UAID_TEXT in key]


async def test_a_user_agent_that_autopush_renewed_is_not_swept(
    store: RedisPushStore, autopush: AutopushNode, clock: ManualClock
) -> None:
    """Its nodes do not write when a record ends: the expiry of the key says it."""
    now_ms = clock.now_ms()
    await subscribe_here(store, now_ms - 10)
    assert autopush.update_user(UAID_TEXT, their_user(now_ms), now_ms=now_ms)
    autopush.redis("ZADD", "waystation/due/", now_ms - 5, UAID_TEXT)

    assert await sweep_all(store, now_ms=now_ms) == 0
    assert await store.get_channels(UAID) == {CHANNEL}
    due_ms = float(autopush.redis("ZSCORE", "waystation/due/", UAID_TEXT))
    assert due_ms == pytest.approx(time.time() * 1000 + USER_AGENT_LIFETIME_S * 1000, abs=60_000)


async def test_an_id_that_comes_again_after_the_sweep_is_another_message(
    store: RedisPushStore, clock: ManualClock
) -> None:
    """By our clock, not by Redis's: the state of the first one is still within its expiry."""
    for expected in (1, 2):
        now_ms = clock.now_ms()
        for milestone in (Milestone.RECEIVED, Milestone.DELIVERED, Milestone.STORED):
            await store.track("r", milestone, at_ms=now_ms, expires_at_ms=now_ms + 1000)
        assert await store.count_milestones(now_ms=now_ms) == {"delivered": expected}
        clock.advance(1 + 86_400)
        assert await sweep_all(store, now_ms=clock.now_ms()) == 1


async def test_keys_of_autopush_and_ours_are_all_there_is(
    store: RedisPushStore, autopush: AutopushNode, clock: ManualClock
) -> None:
    await subscribe_here(store, clock.now_ms())
    await store.save(UAID, three_part(clock.now_ms()))
    kinds = {key.partition(UAID_TEXT)[0] for key in autopush.lines("KEYS", "*")}

    assert kinds == {
        "autopush/user/",
        "autopush/co/",
        "autopush/channels/",
        "autopush/msgs/",
        "autopush/msgs_exp/",
        "autopush/msg/",
        "waystation/order/",
        "waystation/due/",
    }
    user = json.loads(autopush.redis("GET", f"autopush/user/{UAID_TEXT}"))
    assert user["expires_at_ms"] == clock.now_ms() + USER_AGENT_LIFETIME_S * 1000


async def test_a_redis_that_forgets_is_warned_of(store: RedisPushStore, clock: ManualClock) -> None:
    (warning,) = await store_warnings(store)
    assert "appendonly" in warning

    with running_redis("--appendonly", "yes", "--maxmemory-policy", "allkeys-lru") as careful:
        url = parse_redis_url(careful.new_url())
        durable = await RedisPushStore.open(url, settings=Store(), clock=clock)
        (warning,) = await store_warnings(durable)
        await durable.close()
    assert "maxmemory-policy" in warning


# Round trips


async def test_every_operation_is_one_round_trip(store: RedisPushStore, clock: ManualClock) -> None:
    now_ms = clock.now_ms()
    record = UserAgent(uaid=UAID, connected_at_ms=now_ms, node_id=OUR_NODE)
    timed = three_part(now_ms)
    operations = {
        "add_user_agent": lambda: store.add_user_agent(record),
        "claim_route": lambda: store.claim_route(record),
        "add_channel": lambda: store.add_channel(UAID, CHANNEL, channels_max=5),
        "look_up": lambda: store.look_up(UAID, CHANNEL),
        "get_user_agent": lambda: store.get_user_agent(UAID),
        "save": lambda: store.save(UAID, timed),
        "save_new": lambda: store.save_new(UAID, timed),
        "save_if_newer": lambda: store.save_if_newer(UAID, [timed]),
        "fetch": lambda: store.fetch(UAID, now_ms=now_ms, after=None, limit=10),
        "forget": lambda: store.forget(UAID, [(timed.sort_key, timed.message_id)]),
        "remove_channel": lambda: store.remove_channel(UAID, CHANNEL),
        "remove_user_agent": lambda: store.remove_user_agent(UAID),
    }
    for operation in operations.values():  # the server learns the scripts
        await operation()

    trips: dict[str, int] = {}
    for name, operation in operations.items():
        before = store.stats().round_trips
        await operation()
        trips[name] = store.stats().round_trips - before
    assert trips == dict.fromkeys(operations, 1)
