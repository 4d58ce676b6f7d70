"""Converts between table rows and model values (docs/guides/stores/postgres.md).

Rule 1: Autopush's columns are read and written in Autopush's format: ids in 32 hex digits, JSON
        `null` and empty text for missing values, expiry in seconds.
Rule 2: values without an Autopush column are in `accepted_at_ms` and `extras`. Autopush's nodes
        replace a topic's row without changing these two, so both are used only if they match the
        other columns.
Rule 3: `extras` of a topic's row may begin with `REPLACED` and the message that it replaced; only
        the statement that wrote the row reads that.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec

from waystation.base.ids import parse_uuid
from waystation.push.model import (
    WEBPUSH,
    ChannelId,
    MessageId,
    Notification,
    Recipient,
    Replaced,
    SortKey,
    Uaid,
    Update,
    Urgency,
    UserAgent,
)

RELIABILITY_ID_CHARS_MAX = 40  # of Autopush's column; a longer one is stored in `extras`
RELIABILITY_LOG_S = 60 * 86_400  # lifetime of Autopush's log of tracked messages

Row = Any  # a record of the driver: columns by name

# The columns of a notification in the order of `message_values`, and their types.
MESSAGE_COLUMNS = (
    ("uaid", "text"),
    ("channel_id", "text"),
    ("chid_message_id", "text"),
    ("version", "text"),
    ("ttl", "bigint"),
    ("expiry", "bigint"),
    ("topic", "text"),
    ("timestamp", "bigint"),
    ("data", "text"),
    ("sortkey_timestamp", "bigint"),
    ("headers", "text"),
    ("reliability_id", "text"),
    ("accepted_at_ms", "bigint"),
    ("extras", "text"),
)
MessageValues = tuple[str | int | None, ...]

REPLACED = '{"replaced":'
_MARK_CHARS = 16


class Extras(msgspec.Struct, frozen=True, omit_defaults=True):
    """Fields of a notification without an Autopush column."""

    mark: str = ""  # the last characters of the message id that this belongs to
    urgency: Urgency = Urgency.NORMAL
    sender: bytes | None = None
    reliability_id: str | None = None
    reliable_state: str | None = None


class _Replacing(msgspec.Struct, frozen=True):
    """Message id, accept time in ms, and expiry in s."""

    replaced: tuple[str, int, int]


_encoder = msgspec.json.Encoder()
_extras_decoder = msgspec.json.Decoder(Extras)
_replacing_decoder = msgspec.json.Decoder(_Replacing)
_headers_decoder = msgspec.json.Decoder(dict[str, str] | None)
_router_data_decoder = msgspec.json.Decoder(dict[str, Any] | None)


def message_values(uaid: Uaid, notification: Notification) -> MessageValues:
    tracked_as = notification.reliability_id
    fits = tracked_as is None or 0 < len(tracked_as) <= RELIABILITY_ID_CHARS_MAX
    return (
        uaid.hex(),
        notification.channel_id.hex(),
        notification.sort_key,
        notification.message_id,
        notification.ttl_s,
        notification.expires_at_ms // 1000,
        notification.topic,
        notification.timestamp_s,
        notification.data or "",
        _sortkey_timestamp(notification.sort_key),
        _json(notification.headers),
        tracked_as if fits else None,
        notification.accepted_at_ms,
        _extras(notification, None if fits else tracked_as),
    )


def columns_of(rows: Sequence[MessageValues]) -> list[list[str | int | None]]:
    """One list per column, for `unnest`."""
    return [list(column) for column in zip(*rows, strict=True)]


def read_notification(row: Row) -> Notification | None:
    """None for an invalid row."""
    channel_id = parse_uuid(row["channel_id"] or "")
    message_id, timestamp_s, ttl_s = row["version"], row["timestamp"], row["ttl"]
    if channel_id is None or not message_id or timestamp_s is None or ttl_s is None:
        return None
    extras = _read_extras(row["extras"], message_id)
    return Notification(
        ChannelId(channel_id),
        MessageId(message_id),
        SortKey(row["chid_message_id"]),
        _accepted_at_ms(row, timestamp_s),
        ttl_s,
        topic=row["topic"] or None,
        data=row["data"] or None,
        headers=_read_headers(row["headers"]),
        urgency=extras.urgency,
        sender=extras.sender,
        reliability_id=row["reliability_id"] or extras.reliability_id,
        reliable_state=extras.reliable_state,
    )


def read_replaced(extras: str) -> Replaced | None:
    """None if the old row was invalid."""
    try:
        message_id, accepted_at_ms, end_s = _replacing_decoder.decode(extras).replaced
    except msgspec.MsgspecError:
        return None
    return Replaced(MessageId(message_id), accepted_at_ms, end_s * 1000)


def record_values(user_agent: UserAgent, row_version: bytes) -> tuple[str | int | None, ...]:
    return (
        user_agent.uaid.hex(),
        user_agent.connected_at_ms,
        user_agent.router_type,
        _json(user_agent.router_data),
        user_agent.node_id,
        user_agent.record_version,
        row_version.hex(),
        user_agent.current_timestamp_ms,
    )


def read_user_agent(uaid: Uaid, row: Row) -> UserAgent:
    return UserAgent(
        uaid=uaid,
        connected_at_ms=row["connected_at"] or 0,
        router_type=row["router_type"] or WEBPUSH,
        router_data=_read_router_data(row["router_data"]),
        node_id=row["node_id"] or None,
        record_version=row["record_version"],
        current_timestamp_ms=row["last_update"],
        row_version=parse_uuid(row["version"] or ""),
    )


def read_recipient(uaid: Uaid, row: Row) -> Recipient:
    return Recipient(read_user_agent(uaid, row), row["subscribed"])


def read_update(channel_id: ChannelId, version: Decimal, accepted_at_ms: int | None) -> Update:
    return Update(channel_id, int(version), accepted_at_ms=accepted_at_ms or 0)


def read_channels(texts: Sequence[str]) -> frozenset[ChannelId]:
    channels = map(parse_uuid, texts)
    return frozenset(ChannelId(channel) for channel in channels if channel is not None)


def _json(value: object) -> str:
    return _encoder.encode(value).decode()


def _sortkey_timestamp(sort_key: SortKey) -> int | None:
    kind, _, rest = sort_key.partition(":")
    number = rest.partition(":")[0]
    return int(number) if kind == "02" and number.isdecimal() else None


def _extras(notification: Notification, long_reliability_id: str | None) -> str | None:
    mark = notification.message_id[-_MARK_CHARS:]
    extras = Extras(
        mark,
        notification.urgency,
        notification.sender,
        long_reliability_id,
        notification.reliable_state,
    )
    return None if extras == Extras(mark) else _json(extras)


def _read_extras(text: str | None, message_id: str) -> Extras:
    mark = message_id[-_MARK_CHARS:]
    if text:
        try:
            extras = _extras_decoder.decode(text)
        except msgspec.MsgspecError:
            return Extras(mark)
        if extras.mark == mark:
            return extras
    return Extras(mark)


def _accepted_at_ms(row: Row, timestamp_s: int) -> int:
    for stamp_ms in (row["accepted_at_ms"], row["sortkey_timestamp"]):
        if stamp_ms is not None and stamp_ms // 1000 == timestamp_s:
            return stamp_ms
    return timestamp_s * 1000


def _read_headers(text: str | None) -> dict[str, str] | None:
    try:
        return _headers_decoder.decode(text or "null") or None
    except msgspec.MsgspecError:
        return None


def _read_router_data(text: str | None) -> dict[str, Any] | None:
    try:
        return _router_data_decoder.decode(text or "null")
    except msgspec.MsgspecError:
        return None
