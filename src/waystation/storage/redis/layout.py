"""Keys and values of the push store in Redis; docs/guides/stores/redis.md describes them.

Rule 1: Autopush's keys (`autopush/…`, and `state_counts`, `expiry`, `state.…` of its reliability
        tracking) are read and written in Autopush's format: uaids are dashed in keys and plain in
        records, own fields have names that Autopush ignores, and the three fields that early
        releases did not write are computed.
Rule 2: data without an Autopush key is under `waystation/…`.
Rule 3: in a cluster a hash tag of three hex digits precedes each id, so all keys of a user agent
        and its index are in one slot.
"""

import zlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from waystation.base.decode_errors import DECODE_ERRORS
from waystation.base.ids import dashed, parse_uuid, simple
from waystation.push.model import (
    WEBPUSH,
    ChannelId,
    MessageId,
    Notification,
    SortKey,
    Uaid,
    Update,
    Urgency,
    UserAgent,
)

PARTITIONS: Final = 4096  # hash tags in a cluster

# The body of a notification outlives its expiry by this much, because clocks of machines differ;
# readers check the expiry themselves.
BODY_GRACE_S: Final = 60

# How long an ended tracked message is kept after its expiry, so that a late milestone is not
# counted as a new message.
TRACKED_KEEP_MS: Final = 86_400_000

_MS_FROM: Final = 100_000_000_000  # early releases of autopush-rs stored expiry times in ms


class Keys:
    """Names of keys, with or without the hash tags of a cluster."""

    def __init__(self, *, cluster: bool) -> None:
        self._cluster = cluster
        self.tags = [f"{{{n:03x}}}" for n in range(PARTITIONS)] if cluster else [""]
        tracking = "{reliability}" if cluster else ""
        self.broadcasts = "waystation/broadcasts"
        self.state_counts = f"{tracking}state_counts"
        self.state_ends = f"{tracking}expiry"
        self.state_prefix = f"{tracking}state."
        self.ended = f"waystation/tracked/{tracking}"  # ended tracked messages, for the sweep

    def agent(self, uaid: Uaid) -> str:
        """The user agent's id as part of its keys."""
        text = dashed(uaid)
        return f"{{{text[:3]}}}{text}" if self._cluster else text

    def user(self, agent: str) -> str:
        return f"autopush/user/{agent}"

    def channels(self, agent: str) -> str:
        return f"autopush/channels/{agent}"

    def updates(self, agent: str) -> str:
        return f"waystation/updates/{agent}"

    def ends(self, agent: str) -> str:
        return f"autopush/msgs_exp/{agent}"

    def body(self, agent: str, sort_key: str) -> str:
        return f"autopush/msg/{agent}/{sort_key}"

    def due(self, tag: str) -> str:
        return f"waystation/due/{tag}"

    def status_tag(self, message_id: MessageId) -> str:
        return self.tags[zlib.crc32(message_id.encode()) % len(self.tags)]

    def status_prefix(self, tag: str) -> str:
        return f"waystation/status/{tag}"

    def status(self, message_id: MessageId) -> str:
        return f"waystation/status/{self.status_tag(message_id)}{message_id}"

    def statuses(self, tag: str) -> str:
        return f"waystation/statuses/{tag}"


# Records


class _RecordRow(msgspec.Struct):
    uaid: str
    connected_at: int
    router_type: str = WEBPUSH
    router_data: dict[str, Any] | None = None
    node_id: str | None = None
    record_version: int | None = None
    current_timestamp: int | None = None
    expires_at_ms: int | None = None  # not Autopush's


_record_decoder = msgspec.json.Decoder(_RecordRow)


def encode_record(user_agent: UserAgent, expires_at_ms: int | None) -> bytes:
    """In autopush-rs's format. autopush-rs ignores a record without `priv_channels`, keeps channels
    in a separate list, and drops `expires_at_ms` when it writes."""
    row: dict[str, Any] = {
        "uaid": simple(user_agent.uaid),
        "connected_at": user_agent.connected_at_ms,
        "router_type": user_agent.router_type,
        "router_data": user_agent.router_data,
    }
    if user_agent.node_id is not None:
        row["node_id"] = user_agent.node_id
    if user_agent.record_version is not None:
        row["record_version"] = user_agent.record_version
    if user_agent.current_timestamp_ms is not None:
        row["current_timestamp"] = user_agent.current_timestamp_ms
    row["priv_channels"] = []
    if expires_at_ms is not None:
        row["expires_at_ms"] = expires_at_ms
    return msgspec.json.encode(row)


def decode_record(text: bytes) -> tuple[UserAgent, int | None] | None:
    """The record and its expiry, if stored; None for an invalid record."""
    try:
        row = _record_decoder.decode(text)
    except DECODE_ERRORS:
        return None
    raw = parse_uuid(row.uaid)
    if raw is None:
        return None
    record = UserAgent(
        uaid=Uaid(raw),
        connected_at_ms=row.connected_at,
        router_type=row.router_type,
        router_data=row.router_data,
        node_id=row.node_id or None,
        record_version=row.record_version,
        current_timestamp_ms=row.current_timestamp,
    )
    return record, row.expires_at_ms


def decode_channels(texts: list[bytes]) -> frozenset[ChannelId]:
    raws = (parse_uuid(text.decode("ascii", "replace")) for text in texts)
    return frozenset(ChannelId(raw) for raw in raws if raw is not None)


# SimplePush. The version has its own field, in the format of older nodes; another field has the
# time and the version that the time belongs to.


def update_time(update: Update) -> str:
    return f"{update.version} {update.accepted_at_ms}" if update.accepted_at_ms else ""


def decode_update(channel_id: ChannelId, version: bytes, time: bytes | None) -> Update:
    of, _, at_ms = (time or b"").partition(b" ")
    return Update(
        channel_id, int(version), accepted_at_ms=int(at_ms) if at_ms and of == version else 0
    )


def decode_updates(fields: Mapping[bytes, bytes], channels: frozenset[ChannelId]) -> list[Update]:
    names = {channel_id: dashed(channel_id).encode() for channel_id in sorted(channels)}
    return [
        decode_update(channel_id, fields[name], fields.get(name + b"/time"))
        for channel_id, name in names.items()
        if name in fields
    ]


# Notifications


class _MessageRow(msgspec.Struct):
    channel_id: str = msgspec.field(name="channelID")
    version: str
    timestamp: int
    ttl: int | None = None  # early releases did not write these three
    topic: str | None = None
    sortkey_timestamp: int | None = None
    data: str | None = None
    headers: dict[str, str] | None = None
    reliability_id: str | None = None
    reliable_state: str | None = None
    accepted_at_ms: int | None = None  # this field and the following are not Autopush's
    urgency: Urgency = Urgency.NORMAL
    sender: str | None = None


_message_decoder = msgspec.json.Decoder(_MessageRow)


def encode_message(notification: Notification) -> bytes:
    row: dict[str, Any] = {
        "channelID": dashed(notification.channel_id),
        "version": notification.message_id,
        "timestamp": notification.timestamp_s,
        "ttl": notification.ttl_s,
    }
    if notification.topic is not None:
        row["topic"] = notification.topic
    if notification.data is not None:
        row["data"] = notification.data
    ordered_at_ms = _timed_at_ms(notification.sort_key)
    if ordered_at_ms is not None:
        row["sortkey_timestamp"] = ordered_at_ms
    for name in ("headers", "reliability_id", "reliable_state"):
        value = getattr(notification, name)
        if value is not None:
            row[name] = value
    if ordered_at_ms != notification.accepted_at_ms:
        row["accepted_at_ms"] = notification.accepted_at_ms
    if notification.urgency is not Urgency.NORMAL:
        row["urgency"] = notification.urgency
    if notification.sender is not None:
        row["sender"] = notification.sender.hex()
    return msgspec.json.encode(row)


def decode_message(sort_key: str, body: bytes, ends: bytes) -> Notification | None:
    """The notification of a sort key; `ends` is its score in `msgs_exp`, or empty. None for an
    invalid row, so that it does not block the delivery of the others."""
    try:
        row = _message_decoder.decode(body)
        sender = None if row.sender is None else bytes.fromhex(row.sender)
    except (msgspec.MsgspecError, ValueError):
        return None
    raw = parse_uuid(row.channel_id)
    ttl_s = row.ttl
    if ttl_s is None and ends:
        ends_s = int(float(ends))
        ttl_s = (ends_s // 1000 if ends_s > _MS_FROM else ends_s) - row.timestamp
    if raw is None or ttl_s is None:
        return None
    topic = row.topic
    if topic is None and sort_key.startswith("01:"):
        topic = sort_key[40:]
    accepted_at_ms = row.accepted_at_ms
    if accepted_at_ms is None:
        ordered_at_ms = row.sortkey_timestamp or _timed_at_ms(sort_key) or 0
        in_that_second = ordered_at_ms // 1000 == row.timestamp
        accepted_at_ms = ordered_at_ms if in_that_second else row.timestamp * 1000
    return Notification(
        ChannelId(raw),
        MessageId(row.version),
        SortKey(sort_key),
        accepted_at_ms,
        ttl_s,
        topic=topic,
        data=row.data,
        headers=row.headers,
        urgency=row.urgency,
        sender=sender,
        reliability_id=row.reliability_id,
        reliable_state=row.reliable_state,
    )


def _timed_at_ms(sort_key: str) -> int | None:
    """The ms in a sort key of the kind `02`."""
    kind, _, rest = sort_key.partition(":")
    ms = rest.partition(":")[0]
    return int(ms) if kind == "02" and ms.isdecimal() else None
