"""The layout of push rows in LMDB.

| table | key | value |
|---|---|---|
| agents | uaid | lifetime, time of its entry in `expiry`, channels, record: all that a POST needs |
| notifications | uaid, sort key | key of the payload, channel |
| payloads | second of expiry, transaction, number in it | the whole notification |
| updates | uaid, channel | version; or a zero byte, time in ms, version |
| broadcasts | id | version |
| statuses | time and hash of the message id | keep until, sender, milestones |
| tracked | reliability id | milestone, expiry |
| counts | milestone | how many tracked messages are in it |
| expiry | kind, time in ms, key of the row | nothing |

The channels of a user agent are in its row: one look-up serves a POST, and one write renews or
removes them all.

Uaids are random, so each row keyed by uaid costs one page per commit. Hence those rows are small.
Large values are in `payloads`, ordered by expiry: rows that are written together share pages, and
the sweep deletes from the beginning. The transaction number makes a payload key unique among all
processes.

The time of an entry in `expiry` is at or before the end of its row. For statuses and tracked
messages it is the end. The entry of a user agent keeps the time at which the record was created
until the sweep moves it, because hellos are frequent and records live sixty days.
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
TRACKED: Final = b"T"  # not in a terminal state
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
# Every POST reads the row, so decoded rows are cached by their bytes.
_known_agent = lru_cache(maxsize=4096)(_decode_agent)
_KNOWN_BYTES_MAX: Final = 512  # a row with two dozen channels; longer ones would fill the memory


# Expiry entries


def expiry_key(kind: bytes, at_ms: int, row_key: bytes) -> bytes:
    return kind + at_ms.to_bytes(_TIME_BYTES, "big") + row_key


def split_expiry_key(key: bytes) -> tuple[bytes, int, bytes]:
    at_ms = int.from_bytes(key[1:_ENTRY_HEAD_BYTES], "big")
    return key[:1], at_ms, key[_ENTRY_HEAD_BYTES:]


# User agents


class AgentRow:
    """A row of `agents`, decoded lazily."""

    __slots__ = ("_value", "expires_at_ms", "indexed_at_ms", "record_at")

    def __init__(self, value: bytes) -> None:
        self.expires_at_ms, self.indexed_at_ms, count = _AGENT_HEAD.unpack_from(value)
        self.record_at = _AGENT_HEAD.size + 16 * count
        self._value = value

    @property
    def channels(self) -> bytes:
        """All channel ids joined, sixteen bytes each."""
        return self._value[_AGENT_HEAD.size : self.record_at]

    def record(self) -> UserAgent:
        return _decode_agent(self._value[self.record_at :])

    def subscribed(self, channel_id: ChannelId) -> bool:
        return channel_at(self.channels, channel_id) >= 0


def read_recipient(value: bytes, channel_id: ChannelId, now_ms: int) -> Recipient | None:
    """What a POST needs of a row of `agents`, in one call because every POST needs it."""
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
    """Offset of the id, or -1. Matches at other offsets than multiples of 16 do not count: clients
    choose ids, so one may span two neighbours."""
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
    """Second in which the payload with this key expires."""
    return int.from_bytes(place[:_SECOND_BYTES], "big")


class _PayloadRest(msgspec.Struct, array_like=True, gc=False):
    """The fields that the store never inspects. New fields go last and have defaults."""

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
    """The key in `notifications` of this payload's row."""
    length = _PAYLOAD_HEAD.unpack_from(value)[0]
    return value[_PAYLOAD_HEAD.size : _PAYLOAD_HEAD.size + length]


def age_of(value: bytes) -> tuple[int, str]:
    """Accept time and message id, which decide the newer of two messages of one topic."""
    key_length, id_length, accepted_at_ms = _PAYLOAD_HEAD.unpack_from(value)
    id_at = _PAYLOAD_HEAD.size + key_length
    return accepted_at_ms, value[id_at : id_at + id_length].decode()


# SimplePush versions are unbounded, so they have a variable length. A zero byte and the time of an
# update may precede the version; no version of several bytes begins with a zero byte.


def encode_version(version: int) -> bytes:
    return version.to_bytes((version.bit_length() + 7) // 8 or 1, "big")


def decode_version(value: bytes) -> int:
    return int.from_bytes(value, "big")


def encode_update(update: Update) -> bytes:
    version = encode_version(update.version)
    if not 0 < update.accepted_at_ms < 1 << 8 * _TIME_BYTES:
        return version  # unknown or invalid time
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
    """Begins with the time of the Fernet text, so that messages of one hour are adjacent."""
    raw = message_id.encode()
    return raw[:12] + hashlib.blake2b(raw, digest_size=16).digest()


def encode_status(status: MessageStatus) -> bytes:
    return _encode(_StatusRow(status.keep_until_ms, status.sender, status.milestones))


def decode_status(value: bytes) -> MessageStatus:
    row = _decode_status(value)
    return MessageStatus(row.sender, row.milestones, row.keep_until_ms)


def tracked_key(reliability_id: str) -> bytes:
    """The id, or the hash of a long one: app servers choose these ids."""
    raw = reliability_id.encode()
    return raw if 0 < len(raw) <= 128 else b"\0" + hashlib.sha256(raw).digest()
