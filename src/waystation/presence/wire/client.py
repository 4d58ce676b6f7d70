"""What clients say, as typed values: one decoder, with every rule that needs no session.

Rule 1: bytes that are no ClientMessage raise `MalformedMessageError`; all others give a value.
Rule 2: what breaks a rule of its own becomes `Unfit`, with the status that answers it.
Rule 3: messages that come all the time (an ACK, a JOIN with nothing unusual, a short SIGNAL, a type
        and an id) are read by their layout; whatever does not match it to the byte goes to
        protobuf, which is the authority.
"""

import struct
from functools import lru_cache
from typing import Final

import msgspec
from google.protobuf.message import DecodeError

from waystation.base.errors import RejectedError
from waystation.presence.model import (
    EXTENDED,
    FLAGS_KEPT,
    ClientId,
    MessageType,
    PartyId,
    SessionId,
    SessionKey,
    Status,
    session_key,
)

from .party_presence_pb2 import ClientMessage

_u64 = struct.Struct("<Q")
_ids: Final = tuple(struct.Struct(f"<{n}Q") for n in range(16))


class MalformedMessageError(RejectedError):
    """The bytes are not a ClientMessage.

    The stream ends; mend the client.
    """

    label = "malformed_message"


class Input(msgspec.Struct, frozen=True, gc=False):
    """What every message of a client may carry."""

    message_id: int
    ack_ids: tuple[int, ...] = ()
    party_seq: int = 0
    names: tuple[int, int, int] | None = None
    """Party, client and session id where a message that needs none carries some."""


class Ack(Input, frozen=True, gc=False):
    pass


class Ping(Input, frozen=True, gc=False):
    pass


class Leave(Input, frozen=True, gc=False):
    pass


class ListRequest(Input, frozen=True, gc=False):
    pass


class Promote(Input, frozen=True, gc=False):
    pass


class Auth(Input, frozen=True, gc=False, kw_only=True):
    token: str


class Signal(Input, frozen=True, gc=False, kw_only=True):
    payload: bytes


class Join(Input, frozen=True, gc=False, kw_only=True):
    key: SessionKey
    resume_token: bytes = b""
    ttl_ms: int = 0
    flags: int = 0
    extended: bool = False

    @property
    def kept_flags(self) -> int:
        """What a store remembers of a session's wishes."""
        return self.flags & FLAGS_KEPT | (EXTENDED if self.extended else 0)


class Unfit(Input, frozen=True, gc=False, kw_only=True):
    status: Status
    detail: str
    is_join: bool = False


ClientInput = Ack | Ping | Leave | ListRequest | Promote | Auth | Signal | Join | Unfit

_PLAIN: Final = {
    MessageType.ACK: Ack,
    MessageType.PING: Ping,
    MessageType.LEAVE: Leave,
    MessageType.LIST: ListRequest,
    MessageType.PROMOTE: Promote,
}
_FROM_CLIENTS: Final = frozenset((*_PLAIN, MessageType.AUTH, MessageType.SIGNAL, MessageType.JOIN))
_FLAGS_KNOWN: Final = 15
_BARE: Final = {
    int(kind): _PLAIN[kind] for kind in (MessageType.PING, MessageType.LEAVE, MessageType.LIST)
}
_join_layout = struct.Struct("<xQxQxQxQxx")
_JOIN_BYTES: Final = _join_layout.size
_JOIN_TAGS: Final = b"\x09\x11\x19\x21\x28"  # every ninth byte
_JOIN: Final = int(MessageType.JOIN)
RECEIPT_BYTES: Final = 12
PING_BYTES: Final = 11
# An ACK of one id and nothing else: what `one_receipt` reads first is then ONE_RECEIPT, and after
# it comes the id. Type ACK, and eight bytes of ids.
ONE_RECEIPT: Final = int.from_bytes(b"\x28\x01\x72\x08", "little")
one_receipt: Final = struct.Struct("<IQ").unpack
_ACKED: Final = b"\x28\x01\x72"
_RECEIPTS: Final = {4 + 8 * n: struct.Struct(f"<4x{n}Q") for n in range(2, 16)}
_PING: Final = b"\x28\x05"
_SIGNALLED: Final = b"\x28\x0b\xaa\x01"  # SIGNAL, and a payload


def several_receipts(data: bytes) -> tuple[int, ...]:
    """The ids that an ACK of two to fifteen ids and nothing else names; () if it is none."""
    layout = _RECEIPTS.get(len(data))
    if layout is None or not data.startswith(_ACKED) or data[3] != len(data) - 4:
        return ()
    return layout.unpack(data)


def bare_ping(data: bytes) -> int:
    """The message_id of a PING that says nothing else; 0 if it is none."""
    if len(data) == PING_BYTES and data[0] == 0x21 and data.endswith(_PING):
        return _u64.unpack_from(data, 1)[0]
    return 0


def decode_client(data: bytes, ack_ids_max: int) -> ClientInput:
    size = len(data)
    if size == 11:
        bare = _BARE.get(data[10])
        if bare is not None and data[0] == 0x21 and data[9] == 0x28:  # message_id, type
            (message_id,) = _u64.unpack_from(data, 1)
            if message_id:
                return bare(message_id)
    elif size > 3 and data[:2] == b"\x28\x01":  # ACK, then one to fifteen ids
        count, rest = divmod(size - 4, 8)
        if data[2] == 0x72 and not rest and 0 < count < 16 and data[3] == count * 8:
            return Ack(0, _ids[count].unpack_from(data, 4))
    elif size > 12 and data[0] == 0x21 and data[9:12] == b"\x28\x01\x72":  # with a message_id
        count, rest = divmod(size - 13, 8)
        if not rest and 0 < count < 16 and data[12] == count * 8:
            (message_id,) = _u64.unpack_from(data, 1)
            return Ack(message_id, _ids[count].unpack_from(data, 13))
    elif size > 14 and data[0] == 0x21 and data[9:13] == _SIGNALLED:
        if data[13] == size - 14 < 128:  # bytes of the payload, as a varint of one byte
            (message_id,) = _u64.unpack_from(data, 1)
            if message_id:
                return Signal(message_id, payload=data[14:])
    elif _JOIN_BYTES <= size <= _JOIN_BYTES + 4 and data[37] == _JOIN:
        join = _plain_join(data, size)
        if join is not None:
            return join
    return _decode_any(data, ack_ids_max)


def _plain_join(data: bytes, size: int) -> Join | None:
    """Ids and type, and perhaps a wish for a TTL."""
    if data[:_JOIN_BYTES:9] != _JOIN_TAGS:
        return None
    session, client, party, message_id = _join_layout.unpack_from(data)
    ttl_ms = _ttl_ms(data[_JOIN_BYTES:]) if size > _JOIN_BYTES else 0
    if not message_id or ttl_ms is None:
        return None
    key = session_key(party, client, session)
    return Join(message_id, key=key, ttl_ms=ttl_ms, extended=ttl_ms > 0)


@lru_cache(64)  # clients of a kind wish for the same
def _ttl_ms(field: bytes) -> int | None:
    """Field 12, if that is all it is."""
    if field[0] != 0x60 or len(field) < 2 or field[-1] > 127:
        return None
    ttl_ms = 0
    for at, byte in enumerate(field[1:]):
        if byte < 128 and at < len(field) - 2:
            return None
        ttl_ms |= (byte & 127) << 7 * at
    return ttl_ms


def _decode_any(data: bytes, ack_ids_max: int) -> ClientInput:
    try:
        message = ClientMessage.FromString(data)
    except DecodeError as exc:
        raise MalformedMessageError("not a ClientMessage") from exc
    kind: int = message.message_type
    message_id = message.message_id

    def unfit(status: Status, detail: str) -> Unfit:
        return Unfit(message_id, status=status, detail=detail, is_join=kind == MessageType.JOIN)

    if kind not in _FROM_CLIENTS:
        return unfit(Status.BAD_MESSAGE_TYPE, "clients do not send this type")
    if message.timestamp:
        return unfit(Status.INVALID_FIELD, "timestamp is the broker's")
    if message.participant_client_ids:
        return unfit(Status.INVALID_FIELD, "participant_client_ids is the broker's")
    if not message_id and kind != MessageType.ACK:
        return unfit(Status.MISSING_MESSAGE_ID, "message_id is 0")
    if len(message.ack_message_ids) > ack_ids_max:
        return unfit(Status.TOO_MANY_ACK_IDS, f"more than {ack_ids_max} ids")
    acks = tuple(message.ack_message_ids)
    seq = message.party_seq
    if kind == MessageType.JOIN:
        return _join(message, acks, seq)
    names = None
    if message.session_id or message.client_id or message.party_id:
        names = (message.party_id, message.client_id, message.session_id)
    if kind == MessageType.AUTH:
        return Auth(message_id, acks, seq, names, token=message.auth_token)
    if kind == MessageType.SIGNAL:
        return Signal(message_id, acks, seq, names, payload=message.payload)
    return _PLAIN[MessageType(kind)](message_id, acks, seq, names)


def _join(message: ClientMessage, acks: tuple[int, ...], seq: int) -> Join:
    extended = bool(
        seq
        or message.resume_token
        or message.session_ttl_ms
        or message.flags
        or message.delivery_attempt
        or message.client_session_count
        or message.party_epoch
        or message.auth_token
        or message.status_detail
        or message.retry_after_ms
        or message.payload
        or message.node_id
        or message.HasField("handoff")
    )
    return Join(
        message.message_id,
        acks,
        seq,
        key=SessionKey(
            PartyId(message.party_id),
            ClientId(message.client_id),
            SessionId(message.session_id),
        ),
        resume_token=message.resume_token,
        ttl_ms=message.session_ttl_ms,
        flags=message.flags & _FLAGS_KNOWN,
        extended=extended,
    )
