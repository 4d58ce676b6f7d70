"""Keys and values as autopush-rs has them: read what it wrote, write what it can read."""

import json
from typing import Any

import pytest

from waystation.base.ids import dashed
from waystation.push.model import (
    ChannelId,
    MessageId,
    Notification,
    SortKey,
    Uaid,
    Urgency,
    UserAgent,
)
from waystation.storage.redis import layout
from waystation.storage.redis.layout import Keys

UAID = Uaid(bytes.fromhex("deadbeef000040008000aabbccddeeff"))
CHANNEL = ChannelId(bytes.fromhex("decafbad000040008000aabbccddeeff"))
CHANNEL_TEXT = dashed(CHANNEL)

# As autopush-rs serialises them.
THEIR_RECORD = {
    "uaid": "deadbeef000040008000aabbccddeeff",
    "connected_at": 1_700_000_000_123,
    "router_type": "webpush",
    "router_data": None,
    "node_id": "http://10.0.0.7:8081",
    "record_version": 1,
    "priv_channels": [],
}
THEIR_MESSAGE = {
    "channelID": CHANNEL_TEXT,
    "version": "gAAAAAbody",
    "timestamp": 1_700_000_000,
    "ttl": 300,
    "data": "AAAA",
    "sortkey_timestamp": 1_700_000_000_123,
    "headers": {"encoding": "aes128gcm"},
    "reliability_id": "r1",
    "reliable_state": "stored",
}
THEIR_KEY = f"02:1700000000123:{CHANNEL_TEXT}"


def read(row: dict[str, Any], sort_key: str = THEIR_KEY, ends: str = "") -> Notification:
    found = layout.decode_message(sort_key, json.dumps(row).encode(), ends.encode())
    assert found is not None
    return found


def without(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


# Keys


def test_keys_are_those_of_autopush() -> None:
    keys = Keys(cluster=False)
    agent = keys.agent(UAID)

    assert agent == "deadbeef-0000-4000-8000-aabbccddeeff"
    assert keys.user(agent) == "autopush/user/deadbeef-0000-4000-8000-aabbccddeeff"
    assert keys.channels(agent) == "autopush/channels/deadbeef-0000-4000-8000-aabbccddeeff"
    assert (keys.state_counts, keys.state_ends, keys.state_prefix) == (
        "state_counts",
        "expiry",
        "state.",
    )


def test_in_a_cluster_all_keys_of_a_user_agent_have_one_hash_tag() -> None:
    keys = Keys(cluster=True)
    agent = keys.agent(UAID)

    assert agent == "{dea}deadbeef-0000-4000-8000-aabbccddeeff"
    assert "{dea}" in keys.tags
    assert keys.due("{dea}") == "waystation/due/{dea}"
    assert len(set(keys.tags)) == layout.PARTITIONS
    message_id = MessageId("gAAAA-1")
    assert keys.status_tag(message_id) in keys.status(message_id)


# Records


def test_a_record_of_autopush_is_read() -> None:
    assert layout.decode_record(json.dumps(THEIR_RECORD).encode()) == (
        UserAgent(uaid=UAID, connected_at_ms=1_700_000_000_123, node_id="http://10.0.0.7:8081"),
        None,
    )


def test_autopush_can_read_our_records() -> None:
    """What it requires is there in its types, and what is ours it passes over."""
    record = UserAgent(uaid=UAID, connected_at_ms=1_700_000_000_123, node_id="http://10.0.0.7:8081")
    row = json.loads(layout.encode_record(record, 1_705_184_000_123))

    assert without(row, "expires_at_ms") == THEIR_RECORD


def test_what_is_none_is_left_out_as_autopush_does() -> None:
    record = UserAgent(uaid=UAID, connected_at_ms=5, router_type="fcm", record_version=None)
    row = json.loads(layout.encode_record(record, None))

    assert row == {
        "uaid": UAID.hex(),
        "connected_at": 5,
        "router_type": "fcm",
        "router_data": None,
        "priv_channels": [],
    }


def test_a_record_goes_there_and_back() -> None:
    record = UserAgent(
        uaid=UAID,
        connected_at_ms=7,
        router_type="apns",
        router_data={"token": "ä", "aps": {"n": [1, 2.5, None, True], "empty": []}},
        current_timestamp_ms=6,
    )

    assert layout.decode_record(layout.encode_record(record, 99)) == (record, 99)


@pytest.mark.parametrize("text", [b"", b"[]", b'{"uaid": "x", "connected_at": 1}', b"\xff"])
def test_what_is_no_record_is_none(text: bytes) -> None:
    assert layout.decode_record(text) is None


def test_a_channel_that_stands_there_twice_counts_once() -> None:
    texts = [CHANNEL_TEXT.encode(), CHANNEL_TEXT.upper().encode(), b"nonsense"]

    assert layout.decode_channels(texts) == {CHANNEL}


# Notifications


def test_a_message_of_autopush_is_read() -> None:
    assert read(THEIR_MESSAGE) == Notification(
        CHANNEL,
        MessageId("gAAAAAbody"),
        SortKey(THEIR_KEY),
        1_700_000_000_123,
        300,
        data="AAAA",
        headers={"encoding": "aes128gcm"},
        reliability_id="r1",
        reliable_state="stored",
    )


def test_a_topic_message_of_autopush_is_read() -> None:
    row = without(THEIR_MESSAGE, "sortkey_timestamp") | {"topic": "mytopic"}
    found = read(row, f"01:{CHANNEL_TEXT}:mytopic")

    assert found.topic == "mytopic"
    assert found.accepted_at_ms == 1_700_000_000_000


@pytest.mark.parametrize("ends", ["1700000300", "1700000300123"])
def test_what_early_releases_left_out_is_worked_out(ends: str) -> None:
    """They wrote neither ttl nor topic nor sortkey_timestamp; the end is a score, s or ms."""
    row = without(THEIR_MESSAGE, "ttl", "topic", "sortkey_timestamp")

    timed = read(row, ends=ends)
    assert (timed.ttl_s, timed.accepted_at_ms) == (300, 1_700_000_000_123)
    topic = read(row, f"01:{CHANNEL_TEXT}:some-topic", ends=ends)
    assert (topic.ttl_s, topic.topic) == (300, "some-topic")


def test_autopush_can_read_our_messages() -> None:
    row = json.loads(layout.encode_message(read(THEIR_MESSAGE)))

    assert row == THEIR_MESSAGE


def test_our_own_fields_stand_beside_those_of_autopush() -> None:
    notification = Notification(
        CHANNEL,
        MessageId("gAAAAA1"),
        SortKey(f"01:{CHANNEL_TEXT}:t"),
        1_700_000_000_456,
        60,
        topic="t",
        urgency=Urgency.HIGH,
        sender=bytes(range(32)),
    )
    body = layout.encode_message(notification)

    assert json.loads(body) == {
        "channelID": CHANNEL_TEXT,
        "version": "gAAAAA1",
        "timestamp": 1_700_000_000,
        "ttl": 60,
        "topic": "t",
        "accepted_at_ms": 1_700_000_000_456,
        "urgency": "high",
        "sender": bytes(range(32)).hex(),
    }
    assert layout.decode_message(notification.sort_key, body, b"1700000060") == notification


@pytest.mark.parametrize("n", ["", ":x1"])
def test_both_kinds_of_sort_keys_go_there_and_back(n: str) -> None:
    key = SortKey(f"02:1700000000789:{CHANNEL_TEXT}{n}")
    notification = Notification(CHANNEL, MessageId("gAAAAA1"), key, 1_700_000_000_456, 60)
    body = layout.encode_message(notification)

    assert json.loads(body)["sortkey_timestamp"] == 1_700_000_000_789
    assert layout.decode_message(key, body, b"") == notification


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"channelID": "no", "version": "v", "timestamp": 1, "ttl": 1}',
        json.dumps(without(THEIR_MESSAGE, "ttl")).encode(),
        json.dumps(THEIR_MESSAGE | {"sender": "zz"}).encode(),
    ],
)
def test_what_is_no_message_is_none(body: bytes) -> None:
    assert layout.decode_message(THEIR_KEY, body, b"") is None
