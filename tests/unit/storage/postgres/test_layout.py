"""Values and rows, there and back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.base.ids import dashed
from waystation.push.model import (
    ChannelId,
    MessageId,
    Notification,
    Replaced,
    SortKey,
    Uaid,
    Urgency,
)
from waystation.storage.postgres.layout import (
    MESSAGE_COLUMNS,
    columns_of,
    message_values,
    read_channels,
    read_notification,
    read_replaced,
    read_user_agent,
)

UAID = Uaid(bytes(range(16)))
CHANNEL = ChannelId(bytes(range(16, 32)))


def row_of(notification: Notification, **changes: Any) -> dict[str, Any]:
    names = [name for name, _ in MESSAGE_COLUMNS]
    return dict(zip(names, message_values(UAID, notification), strict=True)) | changes


texts = st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), min_size=1, max_size=60)


@given(
    st.builds(
        Notification,
        channel_id=st.binary(min_size=16, max_size=16).map(ChannelId),
        message_id=texts.map(MessageId),
        sort_key=texts.map(SortKey),
        accepted_at_ms=st.integers(0, 1 << 45),
        ttl_s=st.integers(0, 1 << 30),
        topic=st.none() | texts,
        data=st.none() | texts,
        headers=st.none() | st.dictionaries(texts, texts, min_size=1, max_size=3),
        urgency=st.sampled_from(Urgency),
        sender=st.none() | st.binary(min_size=32, max_size=32),
        reliability_id=st.none() | texts,
        reliable_state=st.none() | texts,
    )
)
def test_a_notification_comes_back_as_it_was(notification: Notification) -> None:
    assert read_notification(row_of(notification)) == notification


def timed(key: str = "02:1700000000123:{chid}:7") -> Notification:
    place = SortKey(key.replace("{chid}", dashed(CHANNEL)))
    return Notification(CHANNEL, MessageId("gAAAA-1"), place, 1_700_000_000_123, 60)


@pytest.mark.parametrize(
    "key, sortkey_timestamp",
    [
        ("02:1700000000123:{chid}:7", 1_700_000_000_123),
        ("02:1700000000123:{chid}", 1_700_000_000_123),
        ("01:{chid}:topic", None),
        ("{chid}:old-message-id", None),
    ],
)
def test_the_time_in_a_sort_key_has_a_column(key: str, sortkey_timestamp: int | None) -> None:
    assert row_of(timed(key))["sortkey_timestamp"] == sortkey_timestamp


def test_a_row_holds_what_autopush_writes() -> None:
    row = row_of(timed())

    assert row["uaid"] == UAID.hex()
    assert row["channel_id"] == CHANNEL.hex()
    assert (row["data"], row["headers"]) == ("", "null")
    assert (row["timestamp"], row["expiry"]) == (1_700_000_000, 1_700_000_060)
    assert row["extras"] is None


def test_a_reliability_id_that_does_not_fit_its_column_stands_elsewhere() -> None:
    long = Notification(
        CHANNEL, MessageId("m"), SortKey("02:1:c"), 1000, 60, reliability_id="r" * 41
    )

    row = row_of(long)
    assert row["reliability_id"] is None
    assert read_notification(row) == long


@pytest.mark.parametrize(
    "extras",
    ["{", "[]", '{"mark":"other","urgency":"high"}', '{"replaced":["m",1,2],"urgency":"high"}'],
)
def test_extras_that_do_not_belong_to_the_message_are_not_believed(extras: str) -> None:
    found = read_notification(row_of(timed(), extras=extras))

    assert found == timed()


def test_a_row_tells_which_message_it_replaced() -> None:
    told = read_replaced('{"replaced":["gAAAA-0",1700000000123,1700000060],"mark":"gAAAA-1"}')

    assert told == Replaced(MessageId("gAAAA-0"), 1_700_000_000_123, 1_700_000_060_000)


def test_what_replaced_a_row_of_no_message_replaced_none() -> None:
    assert read_replaced('{"replaced":["gAAAA-0",null,null]}') is None


@pytest.mark.parametrize(
    "changes",
    [{"channel_id": "nonsense"}, {"channel_id": None}, {"version": None}, {"timestamp": None}],
)
def test_a_row_that_is_no_notification_is_none(changes: dict[str, Any]) -> None:
    assert read_notification(row_of(timed(), **changes)) is None


@pytest.mark.parametrize("headers", ["null", "", None, "{}", "[1]", "{"])
def test_headers_that_say_nothing_are_none(headers: str | None) -> None:
    found = read_notification(row_of(timed(), headers=headers))

    assert found is not None
    assert found.headers is None


def test_a_record_may_lack_what_older_releases_did_not_write() -> None:
    empty = dict.fromkeys(
        ("connected_at", "router_type", "router_data", "node_id", "record_version")
    )
    record = read_user_agent(UAID, {**empty, "version": "?", "last_update": None})

    assert record.connected_at_ms == 0
    assert record.router_type == "webpush"
    assert record.record_version is None
    assert record.row_version is None


def test_channels_are_read_in_either_spelling() -> None:
    assert read_channels([CHANNEL.hex(), dashed(CHANNEL), "x"]) == {CHANNEL}


def test_rows_become_columns() -> None:
    assert columns_of([(1, "a"), (2, "b")]) == [[1, 2], ["a", "b"]]
