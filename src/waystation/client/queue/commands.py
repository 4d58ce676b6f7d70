"""The commands of a client, one struct each, and their encoding by version.

Rule 1: a command contains no ids and keys; those belong to the transmission around it.
Rule 2: a command that a version does not support is refused, not sent in another form.
"""

from typing import Literal

import msgspec

from .encoding import BadBytesError, flag, large, maybe, short, some, u16
from .keys import PublicKey

VERSION_MIN = 8
VERSION_MAX = 18
Mode = Literal["M", "C"]  # messaging: the sender may secure the queue; contact: it may not


def message_bytes_max(version: int) -> int:
    """The longest body for the version of the sender's session."""
    return 16_048 if version >= 11 else 16_064 if version >= 8 else 16_088


class LinkData(msgspec.Struct, frozen=True):
    """The data of a queue's short link; both parts are ciphertext to the server."""

    fixed: bytes
    user: bytes


class NewLink(msgspec.Struct, frozen=True):
    sender_id: bytes
    data: LinkData
    link_id: bytes = b""  # of a contact address; the server draws that of an invitation


class NewNotifier(msgspec.Struct, frozen=True):
    key: PublicKey
    dh: PublicKey


class New(msgspec.Struct, frozen=True, kw_only=True):
    recipient_key: PublicKey
    dh: PublicKey
    password: bytes | None = None
    subscribe: bool = True
    mode: Mode | None = "M"
    link: NewLink | None = None
    notifier: NewNotifier | None = None


class Sub(msgspec.Struct, frozen=True):
    pass


class Key(msgspec.Struct, frozen=True):
    sender_key: PublicKey


class RecipientKeys(msgspec.Struct, frozen=True):
    keys: tuple[PublicKey, ...]


class SetLink(msgspec.Struct, frozen=True):
    link_id: bytes
    data: LinkData


class DeleteLink(msgspec.Struct, frozen=True):
    pass


class NotifierKey(msgspec.Struct, frozen=True):
    key: PublicKey
    dh: PublicKey


class DeleteNotifier(msgspec.Struct, frozen=True):
    pass


class Get(msgspec.Struct, frozen=True):
    pass


class Ack(msgspec.Struct, frozen=True):
    message_id: bytes


class Off(msgspec.Struct, frozen=True):
    pass


class Delete(msgspec.Struct, frozen=True):
    pass


class Inspect(msgspec.Struct, frozen=True):
    pass


class SenderKey(msgspec.Struct, frozen=True):
    key: PublicKey


class Send(msgspec.Struct, frozen=True):
    body: bytes
    notify: bool = False


class SecureByLink(msgspec.Struct, frozen=True):
    key: PublicKey


class GetLink(msgspec.Struct, frozen=True):
    pass


class NotifierSub(msgspec.Struct, frozen=True):
    pass


class ServiceNotifiers(msgspec.Struct, frozen=True):
    """All notifiers of a service, at once."""


class Ping(msgspec.Struct, frozen=True):
    pass


class OpenRelay(msgspec.Struct, frozen=True):
    """Asks a proxy for its session with another server."""

    hosts: tuple[str, ...]
    port: str
    fingerprint: bytes
    password: bytes | None = None


class Forward(msgspec.Struct, frozen=True):
    """An encrypted command for a relay, sent to a proxy."""

    version: int
    key: PublicKey
    sealed: bytes


class Relay(msgspec.Struct, frozen=True):
    """The same, from a proxy to its relay."""

    sealed: bytes


Command = (
    New
    | Sub
    | Key
    | RecipientKeys
    | SetLink
    | DeleteLink
    | NotifierKey
    | DeleteNotifier
    | Get
    | Ack
    | Off
    | Delete
    | Inspect
    | SenderKey
    | Send
    | SecureByLink
    | GetLink
    | NotifierSub
    | ServiceNotifiers
    | Ping
    | OpenRelay
    | Forward
    | Relay
)

_BARE: dict[type[object], bytes] = {
    Sub: b"SUB",
    DeleteLink: b"LDEL",
    DeleteNotifier: b"NDEL",
    Get: b"GET",
    Off: b"OFF",
    Delete: b"DEL",
    Inspect: b"QUE",
    GetLink: b"LGET",
    NotifierSub: b"NSUB",
    ServiceNotifiers: b"NSUBS",
    Ping: b"PING",
}


def encode_command(command: Command, version: int) -> bytes:
    bare = _BARE.get(type(command))
    if bare is not None:
        return bare
    match command:
        case New():
            return b"NEW " + _new(command, version)
        case Key(key):
            return b"KEY " + short(key.der)
        case RecipientKeys(keys):
            return b"RKEY " + some(short(key.der) for key in keys)
        case SetLink(link_id, data):
            return b"LSET " + short(link_id) + _link_data(data)
        case NotifierKey(key, dh):
            return b"NKEY " + short(key.der) + short(dh.der)
        case Ack(message_id):
            return b"ACK " + short(message_id)
        case SenderKey(key):
            return b"SKEY " + short(key.der)
        case Send(body, notify):
            return b"SEND " + flag(notify) + b" " + body
        case SecureByLink(key):
            return b"LKEY " + short(key.der)
        case OpenRelay():
            return b"PRXY " + _relay(command)
        case Forward(fwd_version, key, sealed):
            return b"PFWD " + u16(fwd_version) + short(key.der) + sealed
        case Relay(sealed):
            return b"RFWD " + sealed
        case _:
            raise AssertionError(type(command))  # _BARE has the others


def _relay(command: OpenRelay) -> bytes:
    return (
        some(short(host.encode()) for host in command.hosts)
        + short(command.port.encode())
        + short(command.fingerprint)
        + maybe(None if command.password is None else short(command.password))
    )


def _new(new: New, version: int) -> bytes:
    head = short(new.recipient_key.der) + short(new.dh.der)
    password = None if new.password is None else short(new.password)
    sub_mode = b"S" if new.subscribe else b"C"
    if version < 15 and new.link is not None:
        raise BadBytesError("links need version 15")
    if version < 17 and new.notifier is not None:
        raise BadBytesError("a notifier within NEW needs version 17")
    if version < 9:
        return head + (b"" if password is None else b"A" + password) + sub_mode
    if version < 15:
        return head + maybe(password) + sub_mode + flag(new.mode == "M")
    request = None if new.mode is None else _queue_request(new.mode, new.link)
    encoded = head + maybe(password) + sub_mode + maybe(request)
    if version < 17:
        return encoded
    notifier = new.notifier
    keys = None if notifier is None else short(notifier.key.der) + short(notifier.dh.der)
    return encoded + maybe(keys)


def _queue_request(mode: Mode, link: NewLink | None) -> bytes:
    if link is None:
        return mode.encode() + maybe(None)
    ids = short(link.sender_id)
    if mode == "C":
        ids = short(link.link_id) + ids
    return mode.encode() + maybe(ids + _link_data(link.data))


def _link_data(data: LinkData) -> bytes:
    return large(data.fixed) + large(data.user)
