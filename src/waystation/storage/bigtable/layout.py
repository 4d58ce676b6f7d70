"""How push's rows lie in Bigtable: Autopush's layout, and ours beside it.

| row key | family | columns |
|---|---|---|
| `{uaid, 32 hex}` | router | connected_at, router_type, router_data, node_id, record_version, current_timestamp, version, chid:{dashed} |
| the same row | waystation | fence, update:{dashed}, updated:{dashed} |
| `{uaid}#01:{channel}:{topic}` | message_topic | ttl, timestamp, version, headers, data, reliability_id, reliable_state |
| `{uaid}#02:{ms}:{channel}[:{n}]` | message | the same |
| `{reliability id}` | reliability | one for each state, with its ms |
| `waystation:status:{hash}` | waystation | sender, {milestone}:{ms} |
| `waystation:track:{bucket}` | waystation_kept | fence, count:{state}, open:{reliability id}, ended:{reliability id} |
| `waystation:broadcasts` | waystation_kept | {broadcast id} |

Numbers are 64 bits, big-endian. Messages carry columns of ours that Autopush passes over:
accepted_at (ms), urgency, sender. Nothing here needs the driver; columns are names and values.
"""  # noqa: E501

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from waystation.base.ids import dashed, parse_uuid, simple
from waystation.push.model import (
    WEBPUSH,
    ChannelId,
    MessageId,
    MessageStatus,
    Notification,
    SortKey,
    Uaid,
    Update,
    Urgency,
    UserAgent,
)

ROUTER: Final = "router"
MESSAGE: Final = "message"
MESSAGE_TOPIC: Final = "message_topic"
RELIABILITY: Final = "reliability"
OWN: Final = "waystation"
KEPT: Final = "waystation_kept"

RELIABILITY_LOG_S: Final = 60 * 86_400
BROADCASTS_KEY: Final = b"waystation:broadcasts"
TRACK_PREFIX: Final = b"waystation:track:"
TRACK_END: Final = b"waystation:track;"
TRACK_BUCKETS: Final = 64
ROW_KEY_BYTES_MAX: Final = 4096

CONNECTED_AT: Final = b"connected_at"
NODE_ID: Final = b"node_id"
CURSOR: Final = b"current_timestamp"
VERSION: Final = b"version"
FENCE: Final = b"fence"  # changes with every channel that is added
RECORD_COLUMNS: Final = (
    CONNECTED_AT,
    b"router_type",
    b"router_data",
    NODE_ID,
    b"record_version",
    CURSOR,
    VERSION,
)
_CHANNEL_PREFIX: Final = b"chid:"
_UPDATE_PREFIX: Final = b"update:"
_UPDATE_TIME_PREFIX: Final = b"updated:"
AGE_PATTERN: Final = b"ttl|timestamp|version|accepted_at"
CHANNEL_MARK: Final = b"\x00"

Columns = Mapping[bytes, bytes]
_headers = msgspec.json.Decoder(dict[str, str])


class UndecodableError(ValueError):
    """A row that is neither Autopush's nor ours."""


# Keys


def agent_key(uaid: Uaid) -> bytes:
    return simple(uaid).encode()


def message_key(uaid: Uaid, sort_key: SortKey) -> bytes:
    return f"{simple(uaid)}#{sort_key}".encode()


def messages_after(uaid: Uaid, after: SortKey | None) -> tuple[bytes, bytes]:
    """What lies between: topics, then the others. `#01:` itself is the key of no row."""
    start = "01:" if after is None else max(after, "01:")
    return message_key(uaid, SortKey(start)), message_key(uaid, SortKey("03:"))


def messages_of_channel(channel_id: ChannelId) -> bytes:
    """A pattern for the keys of its messages, whosever they are."""
    text = re.escape(dashed(channel_id))
    return rf"[0-9a-f]{{32}}#(?:01:{text}:.*|02:[0-9]+:{text}(?::.*)?)".encode()


def channel_column(channel_id: ChannelId) -> bytes:
    return _CHANNEL_PREFIX + dashed(channel_id).encode()


def update_column(channel_id: ChannelId) -> bytes:
    return _UPDATE_PREFIX + dashed(channel_id).encode()


def update_time_column(channel_id: ChannelId) -> bytes:
    return _UPDATE_TIME_PREFIX + dashed(channel_id).encode()


def record_pattern(*channel_ids: ChannelId) -> bytes:
    """The columns of a record, and those of some subscriptions."""
    return b"|".join((*RECORD_COLUMNS, *map(channel_column, channel_ids)))


def status_key(message_id: MessageId) -> bytes:
    # Message ids begin with the time, so rows under them would all be written to one place.
    return b"waystation:status:" + hashlib.sha256(message_id.encode()).hexdigest()[:32].encode()


def track_key(reliability_id: str) -> bytes:
    bucket = hashlib.sha256(reliability_id.encode()).digest()[0] % TRACK_BUCKETS
    return TRACK_PREFIX + f"{bucket:02x}".encode()


# User agents


def number(value: int) -> bytes:
    return value.to_bytes(8, "big")


def encode_record(record: UserAgent, row_version: bytes) -> dict[bytes, bytes]:
    columns = {
        CONNECTED_AT: number(record.connected_at_ms),
        b"router_type": record.router_type.encode(),
        VERSION: row_version,
    }
    if record.router_data is not None:
        columns[b"router_data"] = msgspec.json.encode(record.router_data)
    if record.node_id is not None:
        columns[NODE_ID] = record.node_id.encode()
    if record.record_version is not None:
        columns[b"record_version"] = number(record.record_version)
    if record.current_timestamp_ms is not None:
        columns[CURSOR] = number(record.current_timestamp_ms)
    return columns


def decode_record(uaid: Uaid, columns: Columns) -> UserAgent | None:
    """None for what is not a whole record: its time is over, wholly or in part (§6.4)."""
    if CONNECTED_AT not in columns:
        return None
    try:
        data = columns.get(b"router_data")
        return UserAgent(
            uaid=uaid,
            connected_at_ms=_number(columns[CONNECTED_AT]),
            router_type=columns.get(b"router_type", WEBPUSH.encode()).decode(),
            router_data=None if data is None else msgspec.json.decode(data),
            node_id=_text(columns, NODE_ID),
            record_version=_optional_number(columns, b"record_version"),
            current_timestamp_ms=_optional_number(columns, CURSOR),
            row_version=columns.get(VERSION),
        )
    except (ValueError, msgspec.MsgspecError) as exc:
        raise UndecodableError(str(exc)) from exc


def channels_among(columns: Columns) -> frozenset[ChannelId]:
    return frozenset(_ids_after(_CHANNEL_PREFIX, columns))


def updates_among(columns: Columns) -> dict[ChannelId, Update]:
    return {
        channel_id: _decode_update(channel_id, columns)
        for channel_id in _ids_after(_UPDATE_PREFIX, columns)
    }


def encode_update(update: Update) -> dict[bytes, bytes]:
    """A node of an earlier release writes the version alone, so the time names the version that
    it belongs to, in a column of its own."""
    version = encode_update_version(update.version)
    columns = {update_column(update.channel_id): version}
    if update.accepted_at_ms:
        time = number(update.accepted_at_ms) + version
        columns[update_time_column(update.channel_id)] = time
    return columns


def _decode_update(channel_id: ChannelId, columns: Columns) -> Update:
    version = columns[update_column(channel_id)]
    time = columns.get(update_time_column(channel_id))
    accepted_at_ms = 0
    if time is not None and time[8:] == version:
        accepted_at_ms = _number(time[:8])
    return Update(channel_id, int.from_bytes(version[1:], "big"), accepted_at_ms=accepted_at_ms)


def encode_update_version(version: int) -> bytes:
    """Sorts as numbers do, because nodes of earlier releases compare values; and SimplePush's
    have no bound of ours: a length, then its bytes."""
    body = version.to_bytes((version.bit_length() + 7) // 8, "big")
    assert len(body) < 256, "a version of two thousand bits was let in"
    return bytes([len(body)]) + body


def _ids_after(prefix: bytes, columns: Columns) -> Iterator[ChannelId]:
    for name in columns:
        if name.startswith(prefix):
            raw = parse_uuid(name[len(prefix) :].decode("ascii", "replace"))
            if raw is not None:
                yield ChannelId(raw)


# Messages


def family_of(sort_key: SortKey) -> str:
    return MESSAGE_TOPIC if sort_key.startswith("01:") else MESSAGE


def encode_notification(notification: Notification) -> dict[bytes, bytes]:
    columns = {
        b"ttl": number(notification.ttl_s),
        b"timestamp": number(notification.timestamp_s),
        VERSION: notification.message_id.encode(),
        b"accepted_at": number(notification.accepted_at_ms),
    }
    if notification.headers is not None:
        columns[b"headers"] = msgspec.json.encode(notification.headers)
    if notification.data is not None:
        columns[b"data"] = notification.data.encode()
    if notification.reliability_id is not None:
        columns[b"reliability_id"] = notification.reliability_id.encode()
    if notification.reliable_state is not None:
        columns[b"reliable_state"] = notification.reliable_state.encode()
    if notification.urgency is not Urgency.NORMAL:
        columns[b"urgency"] = notification.urgency.value.encode()
    if notification.sender is not None:
        columns[b"sender"] = notification.sender
    return columns


def decode_notification(key: bytes, columns: Columns) -> Notification:
    """Raises `UndecodableError`."""
    try:
        sort_key = SortKey(key.decode().partition("#")[2])
        channel_id, topic, key_ms = _parse_sort_key(sort_key)
        headers = columns.get(b"headers")
        timestamp_s = _number(columns[b"timestamp"])
        accepted_at_ms = _optional_number(columns, b"accepted_at")
        if accepted_at_ms is None:  # Autopush's: its key is the more precise if they agree
            precise = key_ms is not None and key_ms // 1000 == timestamp_s
            accepted_at_ms = key_ms if precise and key_ms is not None else timestamp_s * 1000
        return Notification(
            channel_id,
            MessageId(columns[VERSION].decode()),
            sort_key,
            accepted_at_ms,
            _number(columns[b"ttl"]),
            topic,
            _text(columns, b"data"),
            None if headers is None else _headers.decode(headers),
            Urgency(columns.get(b"urgency", b"normal").decode()),
            columns.get(b"sender"),
            _text(columns, b"reliability_id"),
            _text(columns, b"reliable_state"),
        )
    except (KeyError, ValueError, msgspec.MsgspecError) as exc:
        raise UndecodableError(str(exc)) from exc


def _parse_sort_key(sort_key: SortKey) -> tuple[ChannelId, str | None, int | None]:
    match sort_key.split(":"):
        case ["01", channel, topic]:
            key_ms = None
        case ["02", ms, channel] | ["02", ms, channel, _]:
            topic, key_ms = None, int(ms)
        case _:
            raise UndecodableError(f"no sort key of ours: {sort_key!r}")
    raw = parse_uuid(channel)
    if raw is None:
        raise UndecodableError("a sort key without a channel")
    return ChannelId(raw), topic, key_ms


# Statuses: a column for each time at which a milestone was noted, so that notes need no condition


def milestone_column(milestone: str, at_ms: int) -> bytes:
    return f"{milestone}:{at_ms}".encode()


def decode_status(columns: Columns, keep_until_ms: int) -> MessageStatus | None:
    milestones: dict[str, int] = {}
    for name in columns:
        milestone, colon, at_ms = name.decode().partition(":")
        if colon:
            milestones[milestone] = min(int(at_ms), milestones.get(milestone, int(at_ms)))
    sender = columns.get(b"sender")
    return None if sender is None else MessageStatus(sender, milestones, keep_until_ms)


def _number(value: bytes) -> int:
    if len(value) != 8:
        raise UndecodableError("a number has 8 bytes")
    return int.from_bytes(value, "big")


def _optional_number(columns: Columns, name: bytes) -> int | None:
    return None if name not in columns else _number(columns[name])


def _text(columns: Columns, name: bytes) -> str | None:
    return None if name not in columns else columns[name].decode()
