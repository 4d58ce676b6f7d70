"""Encodes the messages of the broker.

Frequent messages are packed with `struct`: nearly all their fields are a fixed64 or a varint of one
byte, written in ascending order as protobuf does. A property test compares each layout with
protobuf, which encodes the other messages.
"""

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from waystation.presence.model import Entry, MessageType, PartyId, Status

from .party_presence_pb2 import ClientMessage, HandoffInfo

# Tag bytes are the field's number times 8, plus 1 for a fixed64 and 0 for a varint.
_ack = struct.Struct("<BQBBBQBBQ")
_ack_at = struct.Struct("<BQBBBQBQBBQHQ")
_ack_seq = struct.Struct("<BQBBBQBQBBQ")
_head = struct.Struct("<BQBBBQ")
_announcement = struct.Struct("<BQBQBQBQBBBQBQ")
_join = struct.Struct("<BQBQBQBQBBBQBQBBHQ")
_list_head = struct.Struct("<BQBBBQBQ")
_update = struct.Struct("<BQBQBQBQBBBQBQBB")
_epoch = struct.Struct("<HQ")
_fixed = struct.Struct("<BQ")
_one_session = struct.Struct("<BBBQBBQ")
_joined_head = struct.Struct("<BQBBBQBQBB16sB")
_joined_tail = struct.Struct("<BBQHQ")
_one_id = struct.Struct("<BBQ")
_EPOCH_TAG: Final = 0x0181  # the two bytes of field 16, read as one little-endian number
_DETAIL_BYTES_MAX: Final = 200
_SHORT: Final = tuple(bytes((value,)) for value in range(128))
# Module constants: reading an enum member takes longer than packing a message.
_ACK: Final = int(MessageType.ACK)
_LIST: Final = int(MessageType.LIST)


def varint(value: int) -> bytes:
    return _SHORT[value] if value < 128 else _long_varint(value)


@lru_cache(256)  # few distinct values: TTLs, sizes of entries
def _long_varint(value: int) -> bytes:
    parts = bytearray()
    while value >= 128:
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def ack(message_id: int, at_ms: int, acked: int) -> bytes:
    """The answer to one message."""
    return _ack.pack(0x21, message_id, 0x28, _ACK, 0x31, at_ms, 0x72, 8, acked)


def ack_seq(message_id: int, at_ms: int, acked: int, seq: int) -> bytes:
    """The answer to one message, with its `seq` in the log (never 0)."""
    return _ack_seq.pack(0x21, message_id, 0x28, _ACK, 0x31, at_ms, 0x39, seq, 0x72, 8, acked)


def ack_at(message_id: int, at_ms: int, acked: int, seq: int, epoch: int) -> bytes:
    """The answer to one message, with `seq` and epoch."""
    return _ack_at.pack(
        0x21, message_id, 0x28, _ACK, 0x31, at_ms, 0x39, seq, 0x72, 8, acked, _EPOCH_TAG, epoch
    )


def ack_join(  # noqa: PLR0917 for every join
    message_id: int,
    at_ms: int,
    acked: int,
    seq: int,
    epoch: int,
    token: bytes,
    ttl_ms: int,
    node_id: str,
) -> bytes:
    """The answer to a JOIN that created a session; `token` has 16 bytes."""
    head = _joined_head.pack(
        0x21, message_id, 0x28, _ACK, 0x31, at_ms, 0x39, seq, 0x5A, 16, token, 0x60
    )
    acks = _joined_tail.pack(0x72, 8, acked, _EPOCH_TAG, epoch)
    return b"".join((head, varint(ttl_ms), acks, _node(node_id)))


def ack_with(
    message_id: int,
    at_ms: int,
    acked: Sequence[int],
    *,
    status: Status = Status.OK,
    party_seq: int = 0,
    party_epoch: int = 0,
    resume_token: bytes = b"",
    session_ttl_ms: int = 0,
    node_id: str = "",
) -> bytes:
    """The answer to a JOIN, LEAVE or SIGNAL."""
    parts = [_head.pack(0x21, message_id, 0x28, _ACK, 0x31, at_ms)]
    if party_seq:
        parts.append(_fixed.pack(0x39, party_seq))
    if resume_token:
        parts += (b"\x5a", varint(len(resume_token)), resume_token)
    if session_ttl_ms:
        parts += (b"\x60", varint(session_ttl_ms))
    count = len(acked)
    if count == 1:
        parts.append(_one_id.pack(0x72, 8, acked[0]))
    elif count:
        parts += (b"\x72", varint(8 * count), struct.pack(f"<{count}Q", *acked))
    if status:
        parts += (b"\x78", varint(status))
    if party_epoch:
        parts.append(_epoch.pack(_EPOCH_TAG, party_epoch))
    if node_id:
        parts.append(_node(node_id))
    return b"".join(parts)


@lru_cache(16)
def _node(node_id: str) -> bytes:
    name = node_id.encode()
    return b"\xb2\x01" + varint(len(name)) + name


def error(
    message_id: int,
    at_ms: int,
    status: Status,
    *,
    answers: int = 0,
    detail: str = "",
    retry_after_ms: int = 0,
    handoff: HandoffInfo | None = None,
) -> bytes:
    return ClientMessage(
        message_id=message_id,
        message_type=MessageType.ERROR,  # pyright: ignore[reportArgumentType] the same numbers
        timestamp=at_ms,
        ack_message_ids=(answers,) if answers else (),
        status_code=status,  # pyright: ignore[reportArgumentType] as above
        status_detail=detail.encode()[:_DETAIL_BYTES_MAX].decode(errors="ignore"),
        retry_after_ms=retry_after_ms,
        handoff=handoff,
    ).SerializeToString()


def announcement(party_id: PartyId, epoch: int, entry: Entry) -> bytes:
    """A party message; the same bytes for every recipient."""
    count = entry.count
    if 0 < count < 128 and not entry.code and not entry.payload:  # a JOIN: one pack
        return _join.pack(
            0x09,
            entry.session_id,
            0x11,
            entry.client_id,
            0x19,
            party_id,
            0x21,
            entry.message_id,
            0x28,
            entry.kind,
            0x31,
            entry.at_ms,
            0x39,
            entry.seq,
            0x48,
            count,
            _EPOCH_TAG,
            epoch,
        )
    parts = _announcement.pack(
        0x09,
        entry.session_id,
        0x11,
        entry.client_id,
        0x19,
        party_id,
        0x21,
        entry.message_id,
        0x28,
        entry.kind,
        0x31,
        entry.at_ms,
        0x39,
        entry.seq,
    )
    if count:
        parts += b"\x48" + varint(count)
    if entry.code:
        parts += b"\x78" + varint(entry.code)
    parts += _epoch.pack(_EPOCH_TAG, epoch)
    if entry.payload:
        parts += b"\xaa\x01" + varint(len(entry.payload)) + entry.payload
    return parts


def repeated(data: bytes, attempt: int) -> bytes:
    """The same message, delivered for the `attempt`-th time."""
    return data + b"\x40" + varint(attempt)


def participants(  # noqa: PLR0917 for every join
    message_id: int, at_ms: int, seq: int, epoch: int, entries: Iterable[bytes], status: Status
) -> bytes:
    """LIST; `entries` are made by `participant`."""
    head = _list_head.pack(0x21, message_id, 0x28, _LIST, 0x31, at_ms, 0x39, seq)
    tail = _epoch.pack(_EPOCH_TAG, epoch)
    if status:
        tail = b"\x78" + varint(status) + tail
    return b"".join((head, *entries, tail))


def participant(client_id: int, sessions: Sequence[int], detached: Sequence[int] = ()) -> bytes:
    """One entry of a LIST, its tag included; sessions ascending."""
    count = len(sessions)
    if count == 1 and not detached:
        return _one_session.pack(0x52, 19, 0x09, client_id, 0x12, 8, sessions[0])
    body = _fixed.pack(0x09, client_id)
    body += b"\x12" + varint(8 * count) + struct.pack(f"<{count}Q", *sessions)
    if detached:
        count = len(detached)
        body += b"\x1a" + varint(8 * count) + struct.pack(f"<{count}Q", *detached)
    return b"\x52" + varint(len(body)) + body


def update(
    message_id: int, at_ms: int, *, key: tuple[int, int, int], seq: int, status: int
) -> bytes:
    """UPDATE: a session lost or regained its stream. `key`: party, client, session."""
    party_id, client_id, session_id = key
    return _update.pack(
        0x09,
        session_id,
        0x11,
        client_id,
        0x19,
        party_id,
        0x21,
        message_id,
        0x28,
        MessageType.UPDATE,
        0x31,
        at_ms,
        0x39,
        seq,
        0x78,
        status,
    )


def advice(
    message_id: int,
    at_ms: int,
    kind: MessageType,
    *,
    status: Status = Status.OK,
    handoff: HandoffInfo | None = None,
) -> bytes:
    """DRAIN, HANDOFF and the broker's AUTH."""
    return ClientMessage(
        message_id=message_id,
        message_type=kind,  # pyright: ignore[reportArgumentType] the same numbers
        timestamp=at_ms,
        status_code=status,  # pyright: ignore[reportArgumentType] as above
        handoff=handoff,
    ).SerializeToString()


def handoff_info(
    endpoints: Sequence[str], *, ticket: bytes = b"", deadline_ms: int = 0
) -> HandoffInfo:
    return HandoffInfo(endpoints=endpoints, ticket=ticket, deadline_ms=deadline_ms)
