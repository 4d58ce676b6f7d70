"""The answers and events of servers and their encoding by version.

Older clients get older responses: `OK` for `SOK` (before 16), `END` for `DELD` (before 10), `AUTH`
for `BLOCKED` (before 12).
"""

from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from waystation.queue.errors import Fault
from waystation.queue.model import (
    DhKey,
    LinkData,
    LinkId,
    MessageId,
    NotifierId,
    QueueMode,
    RecipientId,
    SenderId,
    ServiceId,
    SessionId,
    VersionRange,
)
from waystation.queue.wire import fields
from waystation.queue.wire.error_forms import decode_fault, encode_fault
from waystation.queue.wire.fields import FieldError, Reader


class Ok(msgspec.Struct, frozen=True, gc=False):
    pass


class Sok(msgspec.Struct, frozen=True, gc=False):
    """The answer to a subscription, from version 16 on."""

    service_id: ServiceId | None = None


class Soks(msgspec.Struct, frozen=True, gc=False):
    count: int


class Ends(msgspec.Struct, frozen=True, gc=False):
    count: int


class NewNotifierIds(msgspec.Struct, frozen=True, gc=False):
    notifier_id: NotifierId
    dh_key: DhKey


class Ids(msgspec.Struct, frozen=True, gc=False):
    """The ids and keys of a queue that `NEW` created."""

    recipient_id: RecipientId
    sender_id: SenderId
    dh_key: DhKey
    mode: QueueMode | None = None
    link_id: LinkId | None = None
    service_id: ServiceId | None = None
    notifier: NewNotifierIds | None = None


class Msg(msgspec.Struct, frozen=True, gc=False):
    message_id: MessageId
    encrypted: bytes  # see `delivery`


class Nid(msgspec.Struct, frozen=True, gc=False):
    notifier_id: NotifierId
    dh_key: DhKey


class Nmsg(msgspec.Struct, frozen=True, gc=False):
    nonce: bytes
    encrypted_meta: bytes


class Lnk(msgspec.Struct, frozen=True, gc=False):
    sender_id: SenderId
    data: LinkData


class Info(msgspec.Struct, frozen=True, gc=False):
    json: bytes


class End(msgspec.Struct, frozen=True, gc=False):
    """Another connection has replaced the subscription."""


class Deld(msgspec.Struct, frozen=True, gc=False):
    """The queue, or its notifier, was deleted."""


class Pong(msgspec.Struct, frozen=True, gc=False):
    pass


class Pkey(msgspec.Struct, frozen=True, gc=False):
    """The session between proxy and relay that a client may use."""

    session_id: SessionId
    versions: VersionRange
    chain: tuple[bytes, ...]
    signed_key: bytes


class Pres(msgspec.Struct, frozen=True, gc=False):
    encrypted: bytes


class Rres(msgspec.Struct, frozen=True, gc=False):
    encrypted: bytes


class Err(msgspec.Struct, frozen=True, gc=False):
    fault: Fault


Response: TypeAlias = (
    Ok
    | Sok
    | Soks
    | Ends
    | Ids
    | Msg
    | Nid
    | Nmsg
    | Lnk
    | Info
    | End
    | Deld
    | Pong
    | Pkey
    | Pres
    | Rres
    | Err
)

OK: Final = Ok()
SUBSCRIBED: Final = Sok()
END: Final = End()
DELETED: Final = Deld()
PONG: Final = Pong()

NONCE_BYTES: Final = 24

# --- writing -------------------------------------------------------------------------------------


def encode_response(response: Response, version: int) -> bytes:
    match response:
        case Ok():
            return b"OK"
        case Msg(message_id, encrypted):
            return b"MSG " + fields.short(message_id) + encrypted
        case Sok(service_id):
            return b"SOK " + fields.maybe_short(service_id) if version >= 16 else b"OK"
        case Err(fault):
            return b"ERR " + encode_fault(fault, version)
        case Ids():
            return b"IDS " + _encode_ids(response, version)
        case Nmsg(nonce, encrypted_meta):
            return b"NMSG " + nonce + fields.short(encrypted_meta)
        case Nid(notifier_id, dh_key):
            return b"NID " + fields.short(notifier_id) + fields.dh_key(dh_key)
        case Lnk(sender_id, data):
            link = fields.large(data.fixed) + fields.large(data.user)
            return b"LNK " + fields.short(sender_id) + link
        case Pkey(session_id, versions, chain, signed_key):
            start = fields.short(session_id) + fields.versions(versions)
            return b"PKEY " + start + fields.larges(chain) + fields.large(signed_key)
        case _:
            return _encode_short(response, version)


def _encode_short(
    response: Soks | Ends | Info | End | Deld | Pong | Pres | Rres, version: int
) -> bytes:
    match response:
        case Pong():
            return b"PONG"
        case End():
            return b"END"
        case Deld():
            return b"DELD" if version >= 10 else b"END"
        case Info(json):
            return b"INFO " + json
        case Pres(encrypted):
            return b"PRES " + encrypted
        case Rres(encrypted):
            return b"RRES " + encrypted
        case Soks(count):
            return b"SOKS " + fields.i64(count)
        case Ends(count):
            return b"ENDS " + fields.i64(count)


def _encode_ids(ids: Ids, version: int) -> bytes:
    start = fields.short(ids.recipient_id) + fields.short(ids.sender_id)
    start += fields.dh_key(ids.dh_key)
    if version < 9:
        return start
    if version < 15:
        return start + fields.flag(ids.mode is QueueMode.MESSAGING)
    start += fields.maybe(None if ids.mode is None else ids.mode.value.encode())
    start += fields.maybe_short(ids.link_id)
    if version >= 16:
        start += fields.maybe_short(ids.service_id)
    if version >= 17:
        notifier = ids.notifier
        start += fields.maybe(
            None
            if notifier is None
            else fields.short(notifier.notifier_id) + fields.dh_key(notifier.dh_key)
        )
    return start


# --- reading -------------------------------------------------------------------------------------


def decode_response(data: bytes, version: int) -> Response:
    """Decodes a relay's response; raises `FieldError` if it is invalid."""
    bare = _BARE.get(data)
    if bare is not None:
        return bare
    tag, blank, _ = data.partition(b" ")
    read = _READERS.get(tag)
    if read is None or not blank:
        raise FieldError("unknown response")
    reader = Reader(data, len(tag) + 1)
    response = read(reader, version)
    reader.end()
    return response


def _ids(reader: Reader, version: int) -> Ids:
    recipient_id, sender_id = RecipientId(reader.short()), SenderId(reader.short())
    dh_key = reader.dh_key()
    if version < 9:
        return Ids(recipient_id, sender_id, dh_key)
    if version < 15:
        mode = QueueMode.MESSAGING if reader.flag() else QueueMode.CONTACT
        return Ids(recipient_id, sender_id, dh_key, mode)
    mode, link_id, service_id, notifier = None, None, None, None
    if reader.maybe():
        letter = reader.byte()
        mode = next((mode for mode in QueueMode if ord(mode.value) == letter), None)
        if mode is None:
            raise FieldError("unknown queue mode")
    if reader.maybe():
        link_id = LinkId(reader.short())
    if version >= 16 and reader.maybe():
        service_id = ServiceId(reader.short())
    if version >= 17 and reader.maybe():
        notifier = NewNotifierIds(NotifierId(reader.short()), reader.dh_key())
    return Ids(recipient_id, sender_id, dh_key, mode, link_id, service_id, notifier)


def _sok(reader: Reader, _version: int) -> Sok:
    return Sok(ServiceId(reader.short()) if reader.maybe() else None)


def _lnk(reader: Reader, _version: int) -> Lnk:
    return Lnk(SenderId(reader.short()), LinkData(reader.large(), reader.large()))


def _pkey(reader: Reader, _version: int) -> Pkey:
    session_id, versions = SessionId(reader.short()), reader.versions()
    return Pkey(session_id, versions, reader.larges(), reader.large())


_BARE: Final[dict[bytes, Response]] = {b"OK": OK, b"END": END, b"DELD": DELETED, b"PONG": PONG}

_READERS: Final[dict[bytes, Callable[[Reader, int], Response]]] = {
    b"SOK": _sok,
    b"SOKS": lambda r, _: Soks(r.i64()),
    b"ENDS": lambda r, _: Ends(r.i64()),
    b"IDS": _ids,
    b"MSG": lambda r, _: Msg(MessageId(r.short()), r.tail()),
    b"NID": lambda r, _: Nid(NotifierId(r.short()), r.dh_key()),
    b"NMSG": lambda r, _: Nmsg(r.take(NONCE_BYTES), r.short()),
    b"LNK": _lnk,
    b"INFO": lambda r, _: Info(r.tail()),
    b"PKEY": _pkey,
    b"PRES": lambda r, _: Pres(r.tail()),
    b"RRES": lambda r, _: Rres(r.tail()),
    b"ERR": lambda r, _: Err(decode_fault(r.tail())),
}
