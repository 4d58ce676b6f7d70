"""How push's rows lie in LMDB.

| table | key | value |
|---|---|---|
| agents | uaid | lifetime, its place in `expiry`, channels, record: all that a POST must know |
| notifications | uaid, sort key | place of the payload, channel |
| payloads | place: second of expiry, transaction, number in it | the whole notification |
| updates | uaid, channel | version; or a zero byte, time in ms, version |
| broadcasts | id | version |
| statuses | time and hash of the message id | keep until, sender, milestones |
| tracked | reliability id | milestone, expiry |
| counts | milestone | how many tracked messages are in it |
| expiry | kind, time in ms, key of the row | nothing |

A user agent's channels stand in its own row: one look-up serves a POST, and one write renews or
removes all of it.

Uaids are random, so a row under a uaid costs a page of its own in every commit. Hence only small
rows stand under it: what is large lies in `payloads` in the order in which it will expire, where
rows that are written together share pages, and the sweep eats its way from the beginning. The
transaction's number makes a place unique among all processes.

An entry of `expiry` stands at or before the end of its row. Statuses and tracked messages have
theirs at the very end; that of a user agent stays where it was put when the record was made and
is moved on by the sweep, because hellos are frequent and sixty days are long.
"""

import hashlib
import struct
from functools import lru_cache
from typing import Final

import msgspec

from waystation.push.model import (
    ChannelId,
    MessageId,
    MessageStatus,
    Milestone,
    Notification,
    Recipient,
    SortKey,
    Uaid,
    Update,
    Urgency,
    UserAgent,
)

FORMAT: Final = "waystation.push/1"
TABLES: Final = (
    "agents",
    "notifications",
    "payloads",
    "updates",
    "broadcasts",
    "statuses",
    "tracked",
    "counts",
    "expiry",
)

UAID_BYTES: Final = 16
KEY_BYTES_MAX: Final = 511  # LMDB's own limit

# Kinds of entries in `expiry`
STATUS: Final = b"S"
TRACKED: Final = b"T"  # still under way
TRACKED_ENDED: Final = b"U"
AGENT: Final = b"A"

_SECOND_BYTES: Final = 5
PLACE_BYTES: Final = _SECOND_BYTES + 6 + 3
_TIME_BYTES: Final = 6
_ENTRY_HEAD_BYTES: Final = 1 + _TIME_BYTES

_AGENT_HEAD = struct.Struct(">QQI")  # expires_at_ms, time of the expiry entry, channels
_PAYLOAD_HEAD = struct.Struct(">HHQ")  # lengths of row key and message id, accepted_at_ms

_encode = msgspec.msgpack.Encoder().encode
_decode_agent = msgspec.msgpack.Decoder(UserAgent).decode
# Every POST reads the row; what the same bytes say need not be found out again.
_known_agent = lru_cache(maxsize=4096)(_decode_agent)
_KNOWN_BYTES_MAX: Final = 512  # of a row with two dozen channels; longer ones fill the memory


# Expiry entries


def expiry_key(kind: bytes, at_ms: int, row_key: bytes) -> bytes:
    return kind + at_ms.to_bytes(_TIME_BYTES, "big") + row_key


def split_expiry_key(key: bytes) -> tuple[bytes, int, bytes]:
    at_ms = int.from_bytes(key[1:_ENTRY_HEAD_BYTES], "big")
    return key[:1], at_ms, key[_ENTRY_HEAD_BYTES:]


# User agents


class AgentRow:
    """A row of `agents`, decoded no further than somebody asks."""

    __slots__ = ("_value", "expires_at_ms", "indexed_at_ms", "record_at")

    def __init__(self, value: bytes) -> None:
        self.expires_at_ms, self.indexed_at_ms, count = _AGENT_HEAD.unpack_from(value)
        self.record_at = _AGENT_HEAD.size + 16 * count
        self._value = value

    @property
    def channels(self) -> bytes:
        """All of them in a row, sixteen bytes each."""
        return self._value[_AGENT_HEAD.size : self.record_at]

    def record(self) -> UserAgent:
        return _decode_agent(self._value[self.record_at :])

    def subscribed(self, channel_id: ChannelId) -> bool:
        return channel_at(self.channels, channel_id) >= 0


def read_recipient(value: bytes, channel_id: ChannelId, now_ms: int) -> Recipient | None:
    """What a POST must know of a row of `agents`: in one go, because every POST asks."""
    read = _known_recipient if len(value) <= _KNOWN_BYTES_MAX else _recipient_in
    expires_at_ms, recipient = read(value, channel_id)
    return recipient if expires_at_ms > now_ms else None


def _recipient_in(value: bytes, channel_id: ChannelId) -> tuple[int, Recipient]:
    expires_at_ms, _, count = _AGENT_HEAD.unpack_from(value)
    record_at = _AGENT_HEAD.size + 16 * count
    channels = value[_AGENT_HEAD.size : record_at]
    recipient = Recipient(_known_agent(value[record_at:]), channel_at(channels, channel_id) >= 0)
    return expires_at_ms, recipient


_known_recipient = lru_cache(maxsize=4096)(_recipient_in)


def encode_agent(
    record: UserAgent, *, channels: bytes, expires_at_ms: int, indexed_at_ms: int
) -> bytes:
    head = _AGENT_HEAD.pack(expires_at_ms, indexed_at_ms, len(channels) // 16)
    return head + channels + _encode(record)


def without_route(record: UserAgent) -> UserAgent:
    return msgspec.structs.replace(record, node_id=None)


def channel_at(channels: bytes, channel_id: ChannelId) -> int:
    """Where it stands, or -1. A match across two neighbours is none: ids are chosen by clients."""
    at = channels.find(channel_id)
    while at % 16 and at > 0:
        at = channels.find(channel_id, at + 1)
    return at


def split_channels(channels: bytes) -> list[ChannelId]:
    return [ChannelId(channels[at : at + 16]) for at in range(0, len(channels), 16)]


# Notifications


def notification_key(uaid: Uaid, sort_key: SortKey) -> bytes:
    key = uaid + sort_key.encode()
    assert len(key) <= KEY_BYTES_MAX, "a topic has at most 32 characters, so a sort key is short"
    return key


def place_of(second: int, transaction: int, number: int) -> bytes:
    return (second << 72 | transaction << 24 | number).to_bytes(PLACE_BYTES, "big")


def second_of(place: bytes) -> int:
    """When what lies at this place expires."""
    return int.from_bytes(place[:_SECOND_BYTES], "big")


class _PayloadRest(msgspec.Struct, array_like=True, gc=False):
    """What no rule of the store looks at. New fields go last and have defaults."""

    channel_id: bytes
    ttl_s: int
    topic: str | None = None
    data: str | None = None
    headers: dict[str, str] | None = None
    urgency: Urgency = Urgency.NORMAL
    sender: bytes | None = None
    reliability_id: str | None = None
    reliable_state: str | None = None


_decode_rest = msgspec.msgpack.Decoder(_PayloadRest).decode


def encode_payload(key: bytes, notification: Notification) -> bytes:
    message_id = notification.message_id.encode()
    head = _PAYLOAD_HEAD.pack(len(key), len(message_id), notification.accepted_at_ms)
    rest = _PayloadRest(
        notification.channel_id,
        notification.ttl_s,
        notification.topic,
        notification.data,
        notification.headers,
        notification.urgency,
        notification.sender,
        notification.reliability_id,
        notification.reliable_state,
    )
    return b"".join((head, key, message_id, _encode(rest)))


def decode_payload(value: bytes) -> Notification:
    key_length, id_length, accepted_at_ms = _PAYLOAD_HEAD.unpack_from(value)
    id_at = _PAYLOAD_HEAD.size + key_length
    rest_at = id_at + id_length
    rest = _decode_rest(memoryview(value)[rest_at:])
    return Notification(
        ChannelId(rest.channel_id),
        MessageId(value[id_at:rest_at].decode()),
        SortKey(value[_PAYLOAD_HEAD.size + UAID_BYTES : id_at].decode()),
        accepted_at_ms,
        rest.ttl_s,
        rest.topic,
        rest.data,
        rest.headers,
        rest.urgency,
        rest.sender,
        rest.reliability_id,
        rest.reliable_state,
    )


def key_of(value: bytes) -> bytes:
    """The key in `notifications` that leads to this payload."""
    length = _PAYLOAD_HEAD.unpack_from(value)[0]
    return value[_PAYLOAD_HEAD.size : _PAYLOAD_HEAD.size + length]


def age_of(value: bytes) -> tuple[int, str]:
    """What decides which of two messages of one topic is the newer: accept time, message id."""
    key_length, id_length, accepted_at_ms = _PAYLOAD_HEAD.unpack_from(value)
    id_at = _PAYLOAD_HEAD.size + key_length
    return accepted_at_ms, value[id_at : id_at + id_length].decode()


# SimplePush versions have no bound of ours, so they take the bytes they need; the time of an update
# comes before them, behind a zero byte, with which no version of several bytes begins


def encode_version(version: int) -> bytes:
    return version.to_bytes((version.bit_length() + 7) // 8 or 1, "big")


def decode_version(value: bytes) -> int:
    return int.from_bytes(value, "big")


def encode_update(update: Update) -> bytes:
    version = encode_version(update.version)
    if not 0 < update.accepted_at_ms < 1 << 8 * _TIME_BYTES:
        return version  # unknown, or a mistake of whoever told it
    return b"\0" + update.accepted_at_ms.to_bytes(_TIME_BYTES, "big") + version


def decode_update(channel_id: ChannelId, value: bytes) -> Update:
    accepted_at_ms = 0
    if len(value) > 1 and not value[0]:
        accepted_at_ms = int.from_bytes(value[1 : 1 + _TIME_BYTES], "big")
        value = value[1 + _TIME_BYTES :]
    return Update(channel_id, decode_version(value), accepted_at_ms=accepted_at_ms)


# Statuses and tracked messages


class _StatusRow(msgspec.Struct, array_like=True):
    keep_until_ms: int
    sender: bytes
    milestones: dict[str, int]


class TrackedRow(msgspec.Struct, array_like=True, frozen=True):
    milestone: Milestone
    expires_at_ms: int


_decode_status = msgspec.msgpack.Decoder(_StatusRow).decode
decode_tracked = msgspec.msgpack.Decoder(TrackedRow).decode


def encode_tracked(row: TrackedRow) -> bytes:
    return _encode(row)


def status_key(message_id: MessageId) -> bytes:
    """A Fernet text begins with its time: kept in front, messages of one hour lie together."""
    raw = message_id.encode()
    return raw[:12] + hashlib.blake2b(raw, digest_size=16).digest()


def encode_status(status: MessageStatus) -> bytes:
    return _encode(_StatusRow(status.keep_until_ms, status.sender, status.milestones))


def decode_status(value: bytes) -> MessageStatus:
    row = _decode_status(value)
    return MessageStatus(row.sender, row.milestones, row.keep_until_ms)


def tracked_key(reliability_id: str) -> bytes:
    """Senders choose these ids; a long one is known by its hash."""
    raw = reliability_id.encode()
    return raw if 0 < len(raw) <= 128 else b"\0" + hashlib.sha256(raw).digest()
