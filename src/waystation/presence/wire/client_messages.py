"""Decodes the messages of clients and checks every rule that needs no session.

Bytes that are not a ClientMessage raise `MalformedMessageError`. A message that breaks a rule
becomes `Unfit`, with the status that answers it.
"""

from collections.abc import Sequence
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
)

from .party_presence_pb2 import ClientMessage


class MalformedMessageError(RejectedError):
    """The bytes are not a ClientMessage.

    The stream ends; correct the client.
    """

    label = "malformed_message"


class Input(msgspec.Struct, frozen=True, gc=False):
    """Fields that every message of a client may carry."""

    message_id: int
    ack_ids: Sequence[int] = ()
    party_seq: int = 0
    names: tuple[int, int, int] | None = None
    """Party, client and session id, if a message other than JOIN carries any."""


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
        """The flags that the store keeps for the session."""
        return self.flags & FLAGS_KEPT | (EXTENDED if self.extended else 0)


class Unfit(Input, frozen=True, gc=False, kw_only=True):
    status: Status
    detail: str
    is_join: bool = False


ClientInput = Ack | Ping | Leave | ListRequest | Promote | Auth | Signal | Join | Unfit

# Keyed by wire numbers: reading an enum member takes longer than reading a field.
_PLAIN: Final[dict[int, type[Ack | Ping | Leave | ListRequest | Promote]]] = {
    int(MessageType.ACK): Ack,
    int(MessageType.PING): Ping,
    int(MessageType.LEAVE): Leave,
    int(MessageType.LIST): ListRequest,
    int(MessageType.PROMOTE): Promote,
}
_ACK: Final = int(MessageType.ACK)
_JOIN: Final = int(MessageType.JOIN)
_AUTH: Final = int(MessageType.AUTH)
_SIGNAL: Final = int(MessageType.SIGNAL)
_FROM_CLIENTS: Final = frozenset((*_PLAIN, _JOIN, _AUTH, _SIGNAL))
_FLAGS_KNOWN: Final = 15
_from_bytes: Final = ClientMessage.FromString


def decode_client(data: bytes, ack_ids_max: int) -> ClientInput:
    try:
        message = _from_bytes(data)
    except DecodeError as exc:
        raise MalformedMessageError("not a ClientMessage") from exc
    kind: int = message.message_type
    message_id = message.message_id
    acks = tuple(message.ack_message_ids[:])  # a slice takes half the time of iterating
    if kind not in _FROM_CLIENTS:
        return _unfit(message, Status.BAD_MESSAGE_TYPE, f"clients do not send message type {kind}")
    if message.timestamp:
        return _unfit(message, Status.INVALID_FIELD, "timestamp is set by the broker only")
    if message.participant_client_ids:
        return _unfit(
            message, Status.INVALID_FIELD, "participant_client_ids is set by the broker only"
        )
    if not message_id and kind != _ACK:
        return _unfit(message, Status.MISSING_MESSAGE_ID, "message_id is missing or 0")
    if len(acks) > ack_ids_max:
        return _unfit(
            message,
            Status.TOO_MANY_ACK_IDS,
            f"{len(acks)} ids in one message (limit {ack_ids_max})",
        )
    seq = message.party_seq
    if kind == _JOIN:
        return _join(message, acks, seq)
    names = None
    if message.session_id or message.client_id or message.party_id:
        names = (message.party_id, message.client_id, message.session_id)
    if kind == _AUTH:
        return Auth(message_id, acks, seq, names, token=message.auth_token)
    if kind == _SIGNAL:
        return Signal(message_id, acks, seq, names, payload=message.payload)
    return _PLAIN[kind](message_id, acks, seq, names)


def _unfit(message: ClientMessage, status: Status, detail: str) -> Unfit:
    is_join = message.message_type == _JOIN
    return Unfit(message.message_id, status=status, detail=detail, is_join=is_join)


def _join(message: ClientMessage, acks: Sequence[int], seq: int) -> Join:
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
