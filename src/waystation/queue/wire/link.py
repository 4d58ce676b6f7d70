"""The link between an edge and a storage server: many clients' sessions on one connection.

    block   = count:u8, count × frame            16,512 bytes, encrypted like a client's
    frame   = stream:u32 epoch:u32 kind:char Large payload
    kind T  = a client's transmission, unchanged, edge → server
    kind R  = an answer or event, ready to send, server → edge
    kind C  = a message of the link itself

Rule 1: a stream below `REQUESTS_FROM` is one client's session on one server; `SOPEN` opens it.
        Higher numbers identify requests outside of sessions; the answer has the same number.
Rule 2: an edge passes on what a server needs to check a client's proofs: version, session id and
        the private half of the session key. All three end with the client's connection.
Rule 3: errors between edge and server are `CERR`, which clients never see. An error about a
        transmission carries its correlation id.
Rule 4: `epoch` is the low half of the sender's; an end that sees a newer one reads the
        map before it answers.
"""

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

import msgspec

from waystation.queue.model import (
    CorrId,
    DhPrivateKey,
    LinkId,
    MessageId,
    NotifierId,
    RecipientId,
    RefKind,
    SenderId,
    SessionId,
    Slot,
)
from waystation.queue.wire import fields
from waystation.queue.wire.boxes import TAG_BYTES
from waystation.queue.wire.fields import FieldError, Reader
from waystation.queue.wire.link_messages import (
    Busy,
    Cok,
    CopyAck,
    CopyPart,
    Cping,
    Cpong,
    DelRef,
    Duplicate,
    Frozen,
    GetRef,
    Knows,
    LinkMessage,
    Moderate,
    Moderated,
    Moved,
    Newc,
    Newq,
    Newr,
    Newx,
    NotFound,
    RefIs,
    Sagain,
    Sclose,
    Sdlv,
    SetRef,
    Sopen,
    Spause,
    Sres,
    Sresume,
    Unknown,
    WrongSlot,
)

LINK_BLOCK_BYTES: Final = 16512
CONTENT_BYTES_MAX: Final = LINK_BLOCK_BYTES - TAG_BYTES - 2
FRAMES_MAX: Final = 255
_FRAME_HEAD: Final = 11
PAYLOAD_BYTES_MAX: Final = CONTENT_BYTES_MAX - 1 - _FRAME_HEAD
COPY_BYTES_MAX: Final = 16_384  # of a copy's frame, in one frame of the link
REQUESTS_FROM: Final = 1 << 31
TX_BYTES: Final = 16


class ClientTransmission(msgspec.Struct, frozen=True, gc=False):
    """A client's transmission."""

    transmission: bytes


class ServerTransmission(msgspec.Struct, frozen=True, gc=False):
    """A server's transmission for a client."""

    transmission: bytes


Body: TypeAlias = ClientTransmission | ServerTransmission | LinkMessage


class Frame(msgspec.Struct, frozen=True, gc=False):
    stream: int
    epoch: int  # the low 32 bits
    body: Body


# --- writing -------------------------------------------------------------------------------------


def encode_frame(frame: Frame) -> bytes:
    body = frame.body
    match body:
        case ClientTransmission(payload):
            kind = b"T"
        case ServerTransmission(payload):
            kind = b"R"
        case _:
            kind, payload = b"C", encode_message(body)
    assert len(payload) <= PAYLOAD_BYTES_MAX, "no block of a link can hold it"
    head = frame.stream.to_bytes(4, "big") + (frame.epoch & 0xFFFFFFFF).to_bytes(4, "big")
    return b"%b%b%b%b" % (head, kind, len(payload).to_bytes(2, "big"), payload)


def join_frames(frames: Iterable[bytes]) -> list[bytes]:
    """The contents of as few blocks as possible, in order."""
    contents: list[bytes] = []
    taken: list[bytes] = []
    size = 1
    for frame in frames:
        if taken and (size + len(frame) > CONTENT_BYTES_MAX or len(taken) == FRAMES_MAX):
            contents.append(bytes((len(taken),)) + b"".join(taken))
            taken, size = [], 1
        taken.append(frame)
        size += len(frame)
    if taken:
        contents.append(bytes((len(taken),)) + b"".join(taken))
    return contents


def encode_message(message: LinkMessage) -> bytes:
    start = message.tag + b" "
    match message:
        case Sopen(version, session_id, session_key, forwarded):
            key = fields.maybe_short(session_key)
            session = fields.u16(version) + fields.short(session_id)
            return start + session + key + fields.flag(forwarded)
        case Newq(home, tx_id, transmission):
            return start + fields.u16(home) + tx_id + transmission
        case Newr():
            return start + _encode_newr(message)
        case Newc(tx_id) | Newx(tx_id):
            return start + tx_id
        case SetRef() | GetRef() | DelRef() | RefIs() | Knows():
            return start + _encode_reference(message)
        case Sres(entity_id) | Sagain(entity_id):
            return start + fields.short(entity_id)
        case Moderate(entity_id, order):
            return start + fields.short(entity_id) + fields.short(order.encode())
        case Moderated(text):
            return start + fields.short(text.encode())
        case Sdlv(recipient_id, gets, message_id):
            return start + fields.short(recipient_id) + fields.flag(gets) + fields.short(message_id)
        case CopyPart(copy, slot, move, last, data):
            numbers = fields.i64(copy) + fields.u16(slot) + fields.i64(move)
            return start + numbers + fields.flag(last) + data
        case CopyAck(copy, seq, broken):
            return start + fields.i64(copy) + fields.i64(seq) + fields.flag(broken)
        case Cpong(epoch):
            return start + fields.i64(epoch)
        case WrongSlot() | Unknown() | Moved() | Frozen() | Busy():
            return start + _encode_failure(message)
        case _:
            return message.tag


def _encode_reference(message: SetRef | GetRef | DelRef | RefIs | Knows) -> bytes:
    match message:
        case SetRef(kind, entity_id, home, tx_id):
            return _ref(kind, entity_id) + fields.u16(home) + tx_id
        case GetRef(kind, entity_id):
            return _ref(kind, entity_id)
        case DelRef(kind, entity_id, tx_id):
            return _ref(kind, entity_id) + fields.maybe(tx_id)
        case RefIs(home):
            return fields.u16(home)
        case Knows(kind, entity_id, home):
            return _ref(kind, entity_id) + fields.u16(home)


def _encode_failure(message: WrongSlot | Unknown | Moved | Frozen | Busy) -> bytes:
    corr_id = fields.short(message.corr_id)
    match message:
        case WrongSlot(_, epoch) | Unknown(_, epoch):
            return corr_id + fields.i64(epoch)
        case Moved(_, kind, home):
            return corr_id + kind.value.encode() + fields.u16(home)
        case _:
            return corr_id


def _ref(kind: RefKind, entity_id: bytes) -> bytes:
    return kind.value.encode() + fields.short(entity_id)


def _encode_newr(message: Newr) -> bytes:
    ids = fields.short(message.recipient_id) + fields.short(message.sender_id)
    ids += fields.maybe_short(message.notifier_id) + fields.maybe_short(message.link_id)
    needs = "".join(kind.value for kind in message.needs).encode()
    return message.tx_id + ids + fields.short(needs)


# --- reading -------------------------------------------------------------------------------------


def decode_frames(content: bytes) -> list[Frame]:
    """All frames of a block. After a `FieldError` the link must be closed."""
    reader = Reader(content)
    count = reader.byte()
    if not count:
        raise FieldError("empty block")
    frames: list[Frame] = []
    for _ in range(count):
        stream, epoch = reader.u32(), reader.u32()
        kind, payload = reader.byte(), reader.large()
        match kind:
            case 0x54:
                body: Body = ClientTransmission(payload)
            case 0x52:
                body = ServerTransmission(payload)
            case 0x43:
                body = decode_message(payload)
            case _:
                raise FieldError("unknown kind of frame")
        frames.append(Frame(stream, epoch, body))
    reader.end()
    return frames


def decode_message(data: bytes) -> LinkMessage:
    bare = _BARE.get(data)
    if bare is not None:
        return bare
    tag, blank, _ = data.partition(b" ")
    read = _READERS.get(tag)
    if read is None or not blank:
        raise FieldError("unknown link message")
    reader = Reader(data, len(tag) + 1)
    message = read(reader)
    reader.end()
    return message


_KINDS: Final = {ord(kind.value): kind for kind in RefKind}


def _kind(letter: int) -> RefKind:
    kind = _KINDS.get(letter)
    if kind is None:
        raise FieldError("unknown kind of reference")
    return kind


def _sopen(r: Reader) -> LinkMessage:
    version, session_id, key = r.u16(), SessionId(r.short()), r.maybe_short()
    if key is not None and len(key) != 32:
        raise FieldError("a private key must have 32 bytes")
    return Sopen(version, session_id, None if key is None else DhPrivateKey(key), r.flag())


def _newr(r: Reader) -> LinkMessage:
    tx_id, recipient_id, sender_id = r.take(TX_BYTES), r.short(), r.short()
    notifier_id, link_id, needs = r.maybe_short(), r.maybe_short(), r.short()
    return Newr(
        tx_id,
        RecipientId(recipient_id),
        SenderId(sender_id),
        None if notifier_id is None else NotifierId(notifier_id),
        None if link_id is None else LinkId(link_id),
        tuple(_kind(letter) for letter in needs),
    )


def _text(reader: Reader) -> str:
    try:
        return reader.short().decode()
    except UnicodeDecodeError as error:
        raise FieldError("not UTF-8") from error


def _slot(r: Reader) -> Slot:
    slot = r.u16()
    if slot >= 4096:
        raise FieldError("slot above 4095")
    return Slot(slot)


def _corr(r: Reader) -> CorrId:
    return CorrId(r.short())


def _tx_maybe(r: Reader) -> bytes | None:
    return r.take(TX_BYTES) if r.maybe() else None


def _sdlv(r: Reader) -> LinkMessage:
    return Sdlv(RecipientId(r.short()), r.flag(), MessageId(r.short()))


def _copy_part(r: Reader) -> LinkMessage:
    return CopyPart(r.i64(), _slot(r), r.i64(), r.flag(), r.tail())


_BARE: Final[dict[bytes, LinkMessage]] = {
    message.tag: message
    for message in (Sclose(), Spause(), Sresume(), Cok(), Cping(), Duplicate(), NotFound())
}

_READERS: Final[dict[bytes, Callable[[Reader], LinkMessage]]] = {
    Sopen.tag: _sopen,
    Newq.tag: lambda r: Newq(_slot(r), r.take(TX_BYTES), r.tail()),
    Newr.tag: _newr,
    Newc.tag: lambda r: Newc(r.take(TX_BYTES)),
    Newx.tag: lambda r: Newx(r.take(TX_BYTES)),
    SetRef.tag: lambda r: SetRef(_kind(r.byte()), r.short(), _slot(r), r.take(TX_BYTES)),
    GetRef.tag: lambda r: GetRef(_kind(r.byte()), r.short()),
    DelRef.tag: lambda r: DelRef(_kind(r.byte()), r.short(), _tx_maybe(r)),
    RefIs.tag: lambda r: RefIs(_slot(r)),
    Sres.tag: lambda r: Sres(RecipientId(r.short())),
    Sagain.tag: lambda r: Sagain(r.short()),
    Knows.tag: lambda r: Knows(_kind(r.byte()), r.short(), _slot(r)),
    Moderate.tag: lambda r: Moderate(r.short(), _text(r)),
    Moderated.tag: lambda r: Moderated(_text(r)),
    Sdlv.tag: _sdlv,
    Cpong.tag: lambda r: Cpong(r.i64()),
    WrongSlot.tag: lambda r: WrongSlot(_corr(r), r.i64()),
    Unknown.tag: lambda r: Unknown(_corr(r), r.i64()),
    Moved.tag: lambda r: Moved(_corr(r), _kind(r.byte()), _slot(r)),
    Frozen.tag: lambda r: Frozen(_corr(r)),
    Busy.tag: lambda r: Busy(_corr(r)),
    CopyPart.tag: _copy_part,
    CopyAck.tag: lambda r: CopyAck(r.i64(), r.i64(), r.flag()),
}
