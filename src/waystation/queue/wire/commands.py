"""The commands of clients and their encoding by version.

Rule 1: the tag is everything before the first blank. An unknown tag is `CMD UNKNOWN`, and so are
        `SUB=` and the tags of responses; a missing, malformed or surplus parameter is `CMD SYNTAX`.
Rule 2: all tags are accepted at all versions, such as `LGET` at version 9. Only encodings change.
Rule 3: each command defines whether authorisation and entity id are required, allowed or
        forbidden; that is checked before any look-up.
"""

import enum
from collections.abc import Callable
from typing import ClassVar, Final, TypeAlias

import msgspec

from waystation.queue.errors import Code, RefusedError
from waystation.queue.model import (
    AuthKey,
    DhKey,
    Fingerprint,
    LinkData,
    LinkId,
    MessageId,
    QueueMode,
    SenderId,
    SubMode,
)
from waystation.queue.wire import fields
from waystation.queue.wire.fields import FieldError, Reader


class Party(enum.Enum):
    """The party whose id a command names; selects the map for its look-up."""

    RECIPIENT = "recipient"
    SENDER = "sender"
    NOTIFIER = "notifier"
    LINK = "link"
    SERVICE = "service"
    CREATOR = "creator"
    PROXY = "proxy"  # SMP proxying: no queue of ours is named
    NOBODY = "nobody"


class Presence(enum.Enum):
    """Which of authorisation and entity id a command needs."""

    BOTH = "authorisation and entity"
    AUTH_ONLY = "authorisation, no entity"
    ENTITY = "entity, authorisation as the queue has it"
    ENTITY_ONLY = "entity, no authorisation"
    NEITHER = "neither"


class _Command(msgspec.Struct, frozen=True, gc=False):
    tag: ClassVar[bytes]
    party: ClassVar[Party] = Party.RECIPIENT
    presence: ClassVar[Presence] = Presence.BOTH


class NewLink(msgspec.Struct, frozen=True, gc=False):
    """Link data that comes with `NEW`; a contact address brings its own link id."""

    sender_id: SenderId
    data: LinkData
    link_id: LinkId | None = None


class NewNotifier(msgspec.Struct, frozen=True, gc=False):
    key: AuthKey
    dh_key: DhKey


class New(_Command, frozen=True):
    tag = b"NEW"
    party = Party.CREATOR
    presence = Presence.AUTH_ONLY
    recipient_key: AuthKey
    dh_key: DhKey
    password: bytes | None = None
    sub_mode: SubMode = SubMode.SUBSCRIBE
    mode: QueueMode | None = None
    link: NewLink | None = None
    notifier: NewNotifier | None = None


class Sub(_Command, frozen=True):
    tag = b"SUB"


class Subs(_Command, frozen=True):
    tag = b"SUBS"
    party = Party.SERVICE


class Key(_Command, frozen=True):
    tag = b"KEY"
    sender_key: AuthKey


class Rkey(_Command, frozen=True):
    tag = b"RKEY"
    keys: tuple[AuthKey, ...]


class Lset(_Command, frozen=True):
    tag = b"LSET"
    link_id: LinkId
    data: LinkData


class Ldel(_Command, frozen=True):
    tag = b"LDEL"


class Nkey(_Command, frozen=True):
    tag = b"NKEY"
    key: AuthKey
    dh_key: DhKey


class Ndel(_Command, frozen=True):
    tag = b"NDEL"


class Get(_Command, frozen=True):
    tag = b"GET"


class Ack(_Command, frozen=True):
    tag = b"ACK"
    message_id: MessageId  # empty: the message that was delivered


class Off(_Command, frozen=True):
    tag = b"OFF"


class Del(_Command, frozen=True):
    tag = b"DEL"


class Que(_Command, frozen=True):
    tag = b"QUE"


class Skey(_Command, frozen=True):
    tag = b"SKEY"
    party = Party.SENDER
    sender_key: AuthKey


class Send(_Command, frozen=True):
    tag = b"SEND"
    party = Party.SENDER
    presence = Presence.ENTITY
    notify: bool
    body: bytes


class Lkey(_Command, frozen=True):
    tag = b"LKEY"
    party = Party.LINK
    sender_key: AuthKey


class Lget(_Command, frozen=True):
    tag = b"LGET"
    party = Party.LINK
    presence = Presence.ENTITY_ONLY


class Nsub(_Command, frozen=True):
    tag = b"NSUB"
    party = Party.NOTIFIER


class Nsubs(_Command, frozen=True):
    tag = b"NSUBS"
    party = Party.SERVICE


class Ping(_Command, frozen=True):
    tag = b"PING"
    party = Party.NOBODY
    presence = Presence.NEITHER


class RelayAddress(msgspec.Struct, frozen=True):
    """A server as `PRXY` names it."""

    hosts: tuple[bytes, ...]
    port: bytes  # empty: the default
    fingerprint: Fingerprint


class Prxy(_Command, frozen=True):
    tag = b"PRXY"
    party = Party.PROXY
    presence = Presence.NEITHER
    relay: RelayAddress
    password: bytes | None = None


class Pfwd(_Command, frozen=True):
    tag = b"PFWD"
    party = Party.PROXY
    presence = Presence.ENTITY_ONLY
    version: int
    key: DhKey
    encrypted: bytes


class Rfwd(_Command, frozen=True):
    tag = b"RFWD"
    party = Party.PROXY
    presence = Presence.NEITHER
    encrypted: bytes


# fmt: off
Command: TypeAlias = (
    New | Sub | Subs | Key | Rkey | Lset | Ldel | Nkey | Ndel | Get | Ack | Off | Del | Que
    | Skey | Send | Lkey | Lget | Nsub | Nsubs | Ping | Prxy | Pfwd | Rfwd
)
# fmt: on

# --- reading -------------------------------------------------------------------------------------

_FLAGS_BYTES_MAX: Final = 7
_MODES: Final = {ord(mode.value): mode for mode in QueueMode}
_SUB_MODES: Final = {ord(mode.value): mode for mode in SubMode}


def decode_command(data: bytes, version: int, at: int = 0) -> Command:
    """The command that begins at `at`; `RefusedError` with `CMD UNKNOWN` or `CMD SYNTAX` if it is
    invalid. An offset, because the longest commands fill a block and copying them is slow.
    """
    if len(data) - at <= _BARE_BYTES_MAX:
        bare = _BARE.get(data[at:])
        if bare is not None:
            return bare
    if data.startswith(b"SEND ", at):
        return _send(data, at + 5)
    blank = data.find(b" ", at)
    tag = data[at:] if blank < 0 else data[at:blank]
    read = _READERS.get(tag)
    if read is None:
        known = tag in _BARE or tag == Send.tag
        raise RefusedError(Code.CMD_SYNTAX if known else Code.CMD_UNKNOWN)
    if blank < 0:
        raise RefusedError(Code.CMD_SYNTAX)
    reader = Reader(data, blank + 1)
    try:
        command = read(reader, version)
        reader.end()
    except FieldError as error:
        raise RefusedError(Code.CMD_SYNTAX) from error
    return command


def _send(data: bytes, at: int) -> Command:
    """A flag, optional fields of later versions, then the body."""
    blank = data.find(b" ", at, at + _FLAGS_BYTES_MAX + 1)
    if blank <= at or data[at] not in (fields.TRUE, fields.FALSE):
        raise RefusedError(Code.CMD_SYNTAX)
    return Send(data[at] == fields.TRUE, data[blank + 1 :])


def _new(reader: Reader, version: int) -> Command:
    key, dh_key = reader.auth_key(), reader.dh_key()
    if version < 9:
        return _new_before_9(reader, key, dh_key)
    password = reader.maybe_short()
    sub_mode = _sub_mode(reader.byte())
    if version < 15:
        mode = QueueMode.MESSAGING if reader.flag() else QueueMode.CONTACT
        return New(key, dh_key, password, sub_mode, mode)
    mode, link, notifier = None, None, None
    if reader.maybe():
        mode = _mode(reader.byte())
        if reader.maybe():
            link_id = LinkId(reader.short()) if mode is QueueMode.CONTACT else None
            sender_id = SenderId(reader.short())
            link = NewLink(sender_id, LinkData(reader.large(), reader.large()), link_id)
    if version >= 17 and reader.maybe():
        notifier = NewNotifier(reader.auth_key(), reader.dh_key())
    return New(key, dh_key, password, sub_mode, mode, link, notifier)


def _new_before_9(reader: Reader, key: AuthKey, dh_key: DhKey) -> Command:
    """There the password has its own letter, which is no sub mode."""
    password = None
    letter = reader.byte()
    if letter == ord("A"):
        password = reader.short()
        letter = reader.byte()
    return New(key, dh_key, password, _sub_mode(letter))


def _sub_mode(letter: int) -> SubMode:
    mode = _SUB_MODES.get(letter)
    if mode is None:
        raise FieldError("unknown subscription mode")
    return mode


def _mode(letter: int) -> QueueMode:
    mode = _MODES.get(letter)
    if mode is None:
        raise FieldError("unknown queue mode")
    return mode


def _rkey(reader: Reader, _version: int) -> Command:
    count = reader.byte()
    if not count:
        raise FieldError("no keys")
    return Rkey(tuple(reader.auth_key() for _ in range(count)))


def _prxy(reader: Reader, _version: int) -> Command:
    count = reader.byte()
    if not count:
        raise FieldError("no hosts")
    hosts = tuple(reader.short() for _ in range(count))
    port, fingerprint = reader.short(), reader.short()
    if len(fingerprint) != 32:
        raise FieldError("invalid fingerprint")
    return Prxy(RelayAddress(hosts, port, Fingerprint(fingerprint)), reader.maybe_short())


_BARE: Final[dict[bytes, Command]] = {
    command.tag: command
    for command in (
        Sub(), Subs(), Ldel(), Ndel(), Get(), Off(), Del(), Que(), Lget(), Nsub(), Nsubs(), Ping(),
    )
}  # fmt: skip

_BARE_BYTES_MAX: Final = max(map(len, _BARE))

_READERS: Final[dict[bytes, Callable[[Reader, int], Command]]] = {
    b"ACK": lambda r, _: Ack(MessageId(r.short())),
    b"NEW": _new,
    b"KEY": lambda r, _: Key(r.auth_key()),
    b"SKEY": lambda r, _: Skey(r.auth_key()),
    b"LKEY": lambda r, _: Lkey(r.auth_key()),
    b"RKEY": _rkey,
    b"LSET": lambda r, _: Lset(LinkId(r.short()), LinkData(r.large(), r.large())),
    b"NKEY": lambda r, _: Nkey(r.auth_key(), r.dh_key()),
    b"PRXY": _prxy,
    b"PFWD": lambda r, _: Pfwd(r.u16(), r.dh_key(), r.tail()),
    b"RFWD": lambda r, _: Rfwd(r.tail()),
}


def misplaced(command: Command, proof: bytes, entity_id: bytes) -> Code | None:
    """The fault if authorisation or entity id is missing or not allowed; otherwise None."""
    match command.presence:
        case Presence.BOTH:
            return None if proof and entity_id else Code.CMD_NO_AUTH
        case Presence.ENTITY:
            return None if entity_id else Code.CMD_NO_ENTITY
        case Presence.AUTH_ONLY:
            if not proof:
                return Code.CMD_NO_AUTH
            return Code.CMD_HAS_AUTH if entity_id else None
        case Presence.ENTITY_ONLY:
            if not entity_id:
                return Code.CMD_NO_ENTITY
            return Code.CMD_HAS_AUTH if proof else None
        case Presence.NEITHER:
            return Code.CMD_HAS_AUTH if proof or entity_id else None


# --- writing -------------------------------------------------------------------------------------


def encode_command(command: Command, version: int) -> bytes:
    match command:
        case Send(notify, body):
            return (b"SEND T " if notify else b"SEND F ") + body
        case Ack(message_id):
            return b"ACK " + fields.short(message_id)
        case New():
            return b"NEW " + _encode_new(command, version)
        case Key(key) | Skey(key) | Lkey(key):
            return command.tag + b" " + fields.auth_key(key)
        case Rkey(keys):
            return b"RKEY " + bytes((len(keys),)) + b"".join(map(fields.auth_key, keys))
        case Lset(link_id, data):
            return (
                b"LSET "
                + fields.short(link_id)
                + fields.large(data.fixed)
                + fields.large(data.user)
            )
        case Nkey(key, dh_key):
            return b"NKEY " + fields.auth_key(key) + fields.dh_key(dh_key)
        case Prxy(relay, password):
            server = fields.shorts(relay.hosts) + fields.short(relay.port)
            return (
                b"PRXY " + server + fields.short(relay.fingerprint) + fields.maybe_short(password)
            )
        case Pfwd(forward_version, key, encrypted):
            return b"PFWD " + fields.u16(forward_version) + fields.dh_key(key) + encrypted
        case Rfwd(encrypted):
            return b"RFWD " + encrypted
        case _:
            return command.tag


def _encode_new(new: New, version: int) -> bytes:
    keys = fields.auth_key(new.recipient_key) + fields.dh_key(new.dh_key)
    sub_mode = new.sub_mode.value.encode()
    if version < 9:
        password = b"" if new.password is None else b"A" + fields.short(new.password)
        return keys + password + sub_mode
    start = keys + fields.maybe_short(new.password) + sub_mode
    if version < 15:
        return start + fields.flag(new.mode is QueueMode.MESSAGING)
    request = None if new.mode is None else new.mode.value.encode() + _encode_link(new.link)
    start += fields.maybe(request)
    if version < 17:
        return start
    notifier = new.notifier
    if notifier is None:
        return start + fields.NOTHING
    keys = fields.auth_key(notifier.key) + fields.dh_key(notifier.dh_key)
    return start + fields.SOMETHING + keys


def _encode_link(link: NewLink | None) -> bytes:
    if link is None:
        return fields.NOTHING
    link_id = b"" if link.link_id is None else fields.short(link.link_id)
    data = fields.large(link.data.fixed) + fields.large(link.data.user)
    return fields.SOMETHING + link_id + fields.short(link.sender_id) + data
