"""Rows as autopush-rs writes them are read, and ours are what it reads (§6.4)."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.base.ids import dashed, new_uuid4, parse_uuid
from waystation.push.model import (
    ChannelId,
    MessageId,
    Notification,
    SortKey,
    Uaid,
    Update,
    UserAgent,
)
from waystation.storage.bigtable import layout

UAID = Uaid(bytes.fromhex("deadbeef00000000deadbeef00000000"))
CHANNEL = ChannelId(parse_uuid("decafbad-0000-0000-0000-0123456789ab") or b"")
VERSION = bytes(range(16))
SENT_MS = 1_731_650_000_123


def autopush_record(**changes: bytes | None) -> dict[bytes, bytes]:
    """The columns of a user that autopush-rs has just written."""
    columns: dict[bytes, bytes | None] = {
        b"connected_at": b"\x00\x00\x01\x93\x2e\x8d\xf2\x7b",
        b"router_type": b"webpush",
        b"record_version": b"\x00\x00\x00\x00\x00\x00\x00\x01",
        b"version": VERSION,
        b"node_id": b"http://10.0.0.7:8081",
        b"current_timestamp": b"\x00\x00\x01\x93\x2e\x8d\x00\x00",
        b"chid:decafbad-0000-0000-0000-0123456789ab": b"\x00",
    }
    columns |= {name.encode(): value for name, value in changes.items()}
    return {name: value for name, value in columns.items() if value is not None}


def autopush_message() -> dict[bytes, bytes]:
    return {
        b"ttl": (300).to_bytes(8, "big"),
        b"timestamp": (SENT_MS // 1000).to_bytes(8, "big"),
        b"version": b"gAAAAABm",
        b"headers": b'{"encoding":"aes128gcm"}',
        b"data": b"QUJD",
        b"reliability_id": b"r1",
        b"reliable_state": b"stored",
    }


# User agents


def test_a_user_of_autopush_is_read() -> None:
    assert layout.decode_record(UAID, autopush_record()) == UserAgent(
        uaid=UAID,
        connected_at_ms=0x01932E8DF27B,
        router_type="webpush",
        node_id="http://10.0.0.7:8081",
        record_version=1,
        current_timestamp_ms=0x01932E8D0000,
        row_version=VERSION,
    )
    assert layout.channels_among(autopush_record()) == {CHANNEL}


def test_a_bridged_user_of_autopush_is_read() -> None:
    data = b'{"app_id":"a","token":"t","creds":{"n":1}}'
    record = layout.decode_record(
        UAID, autopush_record(router_type=b"fcm", router_data=data, node_id=None)
    )

    assert record is not None
    assert record.router_data == {"app_id": "a", "token": "t", "creds": {"n": 1}}
    assert record.node_id is None
    assert record.route is None


def test_our_record_has_the_columns_that_autopush_requires_in_its_types() -> None:
    record = UserAgent(uaid=UAID, connected_at_ms=7, node_id="http://a", router_data={"k": "ä"})

    assert layout.encode_record(record, VERSION) == {
        b"connected_at": b"\x00\x00\x00\x00\x00\x00\x00\x07",
        b"router_type": b"webpush",
        b"router_data": '{"k":"ä"}'.encode(),
        b"node_id": b"http://a",
        b"record_version": b"\x00\x00\x00\x00\x00\x00\x00\x01",
        b"version": VERSION,
    }
    assert layout.channel_column(CHANNEL) == b"chid:decafbad-0000-0000-0000-0123456789ab"
    assert layout.CHANNEL_MARK == b"\x00"
    assert layout.agent_key(UAID) == b"deadbeef00000000deadbeef00000000"


@pytest.mark.parametrize("left", [[b"version"], [b"current_timestamp", b"version"], [b"chid:x"]])
def test_remains_of_a_record_are_no_record(left: list[bytes]) -> None:
    columns = autopush_record()

    assert layout.decode_record(UAID, {name: columns.get(name, b"") for name in left}) is None


@pytest.mark.parametrize(
    "changes",
    [{"connected_at": b"12"}, {"router_data": b"{"}, {"node_id": b"\xff"}],
)
def test_a_record_of_another_kind_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(layout.UndecodableError):
        layout.decode_record(UAID, autopush_record(**changes))


def test_a_channel_that_is_no_uuid_is_passed_over() -> None:
    assert layout.channels_among({b"chid:nonsense": b"\x00", b"chid:\xff": b"\x00"}) == frozenset()


# Messages


def test_a_timestamp_message_of_autopush_is_read() -> None:
    sort_key = SortKey(f"02:{SENT_MS}:{dashed(CHANNEL)}")
    key = layout.message_key(UAID, sort_key)

    assert key.startswith(b"deadbeef00000000deadbeef00000000#02:")
    assert layout.family_of(sort_key) == "message"
    assert layout.decode_notification(key, autopush_message()) == Notification(
        CHANNEL,
        MessageId("gAAAAABm"),
        sort_key,
        SENT_MS,
        300,
        data="QUJD",
        headers={"encoding": "aes128gcm"},
        reliability_id="r1",
        reliable_state="stored",
    )


def test_a_topic_message_of_autopush_is_read() -> None:
    sort_key = SortKey(f"01:{dashed(CHANNEL)}:news")
    found = layout.decode_notification(layout.message_key(UAID, sort_key), autopush_message())

    assert layout.family_of(sort_key) == "message_topic"
    assert found.topic == "news"
    assert found.channel_id == CHANNEL
    assert found.accepted_at_ms == SENT_MS // 1000 * 1000, "its seconds are all there is"


def test_a_key_that_is_later_than_the_message_does_not_change_when_it_was_sent() -> None:
    """Autopush saves what was not acked under a fresh key."""
    key = layout.message_key(UAID, SortKey(f"02:{SENT_MS + 60_000}:{dashed(CHANNEL)}"))

    assert layout.decode_notification(key, autopush_message()).timestamp_s == SENT_MS // 1000


def test_our_message_has_the_columns_of_autopush_in_its_types() -> None:
    sort_key = SortKey(f"02:{SENT_MS}:{dashed(CHANNEL)}")
    ours = layout.decode_notification(layout.message_key(UAID, sort_key), autopush_message())
    columns = layout.encode_notification(ours)

    assert {name: columns[name] for name in autopush_message()} == autopush_message()
    assert columns.keys() - autopush_message().keys() == {b"accepted_at"}


@given(st.text(min_size=1, max_size=8), st.integers(0, 2**40), st.binary(max_size=4))
def test_any_message_is_read_back_as_it_was_written(data: str, ttl_s: int, sender: bytes) -> None:
    row = Notification(
        CHANNEL,
        MessageId("m"),
        SortKey(f"02:{SENT_MS}:{dashed(CHANNEL)}:n1"),
        SENT_MS,
        ttl_s,
        data=data,
        headers={},
        sender=sender,
    )
    key = layout.message_key(UAID, row.sort_key)

    assert layout.decode_notification(key, layout.encode_notification(row)) == row


@pytest.mark.parametrize(
    "sort_key", ["", "03:1:x", "02:x:y", f"02:one:{dashed(CHANNEL)}", "01:nobody:t", "02:1"]
)
def test_a_row_under_a_key_of_another_kind_is_refused(sort_key: str) -> None:
    with pytest.raises(layout.UndecodableError):
        layout.decode_notification(layout.message_key(UAID, SortKey(sort_key)), autopush_message())


def test_a_message_without_a_required_column_is_refused() -> None:
    key = layout.message_key(UAID, SortKey(f"01:{dashed(CHANNEL)}:t"))
    columns = autopush_message()
    del columns[b"timestamp"]

    with pytest.raises(layout.UndecodableError):
        layout.decode_notification(key, columns)


def test_the_pattern_of_a_channels_messages_matches_them_and_no_others() -> None:
    pattern = re.compile(layout.messages_of_channel(CHANNEL))
    other = ChannelId(new_uuid4())

    def matches(sort_key: str) -> bool:
        return pattern.fullmatch(layout.message_key(UAID, SortKey(sort_key))) is not None

    assert matches(f"01:{dashed(CHANNEL)}:t")
    assert matches(f"02:17:{dashed(CHANNEL)}")
    assert matches(f"02:17:{dashed(CHANNEL)}:n1")
    assert not matches(f"01:{dashed(other)}:{dashed(CHANNEL)}")
    assert not matches(f"02:17:{dashed(other)}")
    assert not matches(f"02:17:{dashed(CHANNEL)}x")


# What is ours


@given(st.integers(0, 2**70), st.integers(0, 2**70))
def test_versions_of_updates_sort_as_numbers(one: int, other: int) -> None:
    first, second = layout.encode_update_version(one), layout.encode_update_version(other)

    assert (first < second) == (one < other)
    column = layout.update_column(CHANNEL)
    assert layout.updates_among({column: first}) == {CHANNEL: Update(CHANNEL, one)}


@given(st.integers(0, 2**70), st.integers(0, 2**63))
def test_an_update_is_read_as_it_was_written(version: int, at_ms: int) -> None:
    update = Update(CHANNEL, version, accepted_at_ms=at_ms)

    assert layout.updates_among(layout.encode_update(update)) == {CHANNEL: update}


def test_the_time_of_another_version_does_not_count() -> None:
    """A node of an earlier release has replaced the version alone."""
    columns = layout.encode_update(Update(CHANNEL, 5, accepted_at_ms=1_794_000_000_123))
    columns |= layout.encode_update(Update(CHANNEL, 6))

    assert len(columns) == 2
    assert layout.updates_among(columns) == {CHANNEL: Update(CHANNEL, 6)}


def test_the_first_time_of_a_milestone_counts_whichever_was_written_first() -> None:
    columns = {
        b"sender": b"s",
        layout.milestone_column("received", 12): b"",
        layout.milestone_column("received", 9): b"",
        layout.milestone_column("stored", 100): b"",
    }
    status = layout.decode_status(columns, 7)

    assert status is not None
    assert status.milestones == {"received": 9, "stored": 100}
    assert layout.decode_status({layout.milestone_column("received", 1): b""}, 7) is None


def test_rows_of_ours_stand_apart_from_every_user_agents() -> None:
    for key in (
        layout.BROADCASTS_KEY,
        layout.status_key(MessageId("m")),
        layout.track_key("r"),
    ):
        assert key.startswith(b"waystation:")
    assert layout.TRACK_PREFIX < layout.track_key("r") < layout.TRACK_END
