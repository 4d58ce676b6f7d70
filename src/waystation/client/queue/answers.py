"""Messages of a server: responses to commands, and events.

Rule 1: decoding is strict: an answer in the form of another version is refused.
Rule 2: bodies that the server encrypted for the recipient are decrypted in `bodies`, not here.
"""

from collections.abc import Callable
from typing import Any, cast

import msgspec

from waystation.base.decode_errors import DECODE_ERRORS

from .commands import LinkData, Mode
from .encoding import BadBytesError, Reader
from .error_replies import ErrorReply, decode_error_reply
from .keys import dh_key

NOTIFICATION_BYTES = 144


class Ok(msgspec.Struct, frozen=True):
    pass


class Subscribed(msgspec.Struct, frozen=True):
    """SOK, from version 16."""

    service_id: bytes | None = None


class ServiceSubscribed(msgspec.Struct, frozen=True):
    count: int


class ServiceEnded(msgspec.Struct, frozen=True):
    count: int


class NotifierIds(msgspec.Struct, frozen=True):
    notifier_id: bytes
    server_dh: bytes


class Ids(msgspec.Struct, frozen=True, kw_only=True):
    """A new queue."""

    recipient_id: bytes
    sender_id: bytes
    server_dh: bytes
    mode: Mode | None = None
    link_id: bytes | None = None
    service_id: bytes | None = None
    notifier: NotifierIds | None = None


class Message(msgspec.Struct, frozen=True):
    message_id: bytes
    sealed: bytes


class Notification(msgspec.Struct, frozen=True):
    nonce: bytes
    sealed: bytes


class Link(msgspec.Struct, frozen=True):
    sender_id: bytes
    data: LinkData


class Info(msgspec.Struct, frozen=True):
    """The content of `QUE`, with the names of the protocol."""

    fields: dict[str, Any]


class End(msgspec.Struct, frozen=True):
    """Another connection has replaced the subscription."""


class Deleted(msgspec.Struct, frozen=True):
    """The queue, or the notifier, was deleted elsewhere."""


class Pong(msgspec.Struct, frozen=True):
    pass


class RelaySession(msgspec.Struct, frozen=True):
    """PKEY: a proxy's session with a relay."""

    session_id: bytes
    version_min: int
    version_max: int
    chain: tuple[bytes, ...]
    signed_key: bytes


class Forwarded(msgspec.Struct, frozen=True):
    """PRES: the encrypted answer of a relay."""

    sealed: bytes


class Relayed(msgspec.Struct, frozen=True):
    """RRES: the same, from relay to proxy."""

    sealed: bytes


class Refused(msgspec.Struct, frozen=True):
    error_reply: ErrorReply


Answer = (
    Ok
    | Subscribed
    | ServiceSubscribed
    | ServiceEnded
    | NotifierIds
    | Ids
    | Message
    | Notification
    | Link
    | Info
    | End
    | Deleted
    | Pong
    | RelaySession
    | Forwarded
    | Relayed
    | Refused
)

# Answers that may have no queue id; all others name their queue.
WITHOUT_ENTITY = (Ids, Refused, Pong, RelaySession, Relayed)

_BARE: dict[bytes, Answer] = {b"OK": Ok(), b"END": End(), b"DELD": Deleted(), b"PONG": Pong()}


def decode_answer(data: bytes, version: int) -> Answer:
    bare = _BARE.get(data)
    if bare is not None:
        return bare
    tag, space, rest = data.partition(b" ")
    parse = _PARSERS.get(tag)
    if parse is None or not space:
        raise BadBytesError("unknown answer of a server")
    reader = Reader(rest)
    answer = parse(reader, version)
    reader.end()
    return answer


def _chain(reader: Reader) -> tuple[bytes, ...]:
    return tuple(reader.large() for _ in range(reader.count()))


def _subscribed(reader: Reader, _version: int) -> Answer:
    return Subscribed(reader.short() if reader.maybe() else None)


def _ids(reader: Reader, version: int) -> Answer:
    recipient_id, sender_id = reader.short(), reader.short()
    server_dh = dh_key(reader.short())
    mode: Mode | None = None
    link_id = service_id = notifier = None
    if 9 <= version < 15:
        mode = "M" if reader.flag() else "C"
    if version >= 15:
        if reader.maybe():
            mode = cast(Mode, reader.one_of(b"MC").decode())
        link_id = reader.short() if reader.maybe() else None
    if version >= 16:
        service_id = reader.short() if reader.maybe() else None
    if version >= 17 and reader.maybe():
        notifier = NotifierIds(reader.short(), dh_key(reader.short()))
    return Ids(
        recipient_id=recipient_id,
        sender_id=sender_id,
        server_dh=server_dh,
        mode=mode,
        link_id=link_id,
        service_id=service_id,
        notifier=notifier,
    )


def _message(reader: Reader, _version: int) -> Answer:
    return Message(reader.short(), reader.tail())


def _notifier_ids(reader: Reader, _version: int) -> Answer:
    return NotifierIds(reader.short(), dh_key(reader.short()))


def _notification(reader: Reader, _version: int) -> Answer:
    nonce, sealed = reader.take(24), reader.short()
    if len(sealed) != NOTIFICATION_BYTES:
        raise BadBytesError(f"a notification of {len(sealed)} bytes")
    return Notification(nonce, sealed)


def _link(reader: Reader, _version: int) -> Answer:
    return Link(reader.short(), LinkData(reader.large(), reader.large()))


def _info(reader: Reader, _version: int) -> Answer:
    try:
        return Info(msgspec.json.decode(reader.tail(), type=dict[str, Any]))
    except DECODE_ERRORS as exc:
        raise BadBytesError("INFO that is not JSON") from exc


def _relay_session(reader: Reader, _version: int) -> Answer:
    session_id, low, high = reader.short(), reader.u16(), reader.u16()
    if low > high:
        raise BadBytesError("version range ends before it begins")
    return RelaySession(session_id, low, high, _chain(reader), reader.large())


_PARSERS: dict[bytes, Callable[[Reader, int], Answer]] = {
    b"IDS": _ids,
    b"MSG": _message,
    b"NID": _notifier_ids,
    b"NMSG": _notification,
    b"LNK": _link,
    b"INFO": _info,
    b"SOK": _subscribed,
    b"SOKS": lambda reader, _: ServiceSubscribed(reader.i64()),
    b"ENDS": lambda reader, _: ServiceEnded(reader.i64()),
    b"PKEY": _relay_session,
    b"PRES": lambda reader, _: Forwarded(reader.tail()),
    b"RRES": lambda reader, _: Relayed(reader.tail()),
    b"ERR": lambda reader, _: Refused(decode_error_reply(reader.tail())),
}
