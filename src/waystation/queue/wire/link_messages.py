"""The messages between edges and storage servers beside the commands of clients.

An edge sends the first group, a server answers with the second; copies of slots go between two
servers. `link` encodes them.
"""

from typing import ClassVar, TypeAlias

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


class _LinkMessage(msgspec.Struct, frozen=True, gc=False):
    tag: ClassVar[bytes]


class Sopen(_LinkMessage, frozen=True):
    """Opens a client's session on its stream; commands may follow at once."""

    tag = b"SOPEN"
    version: int
    session_id: SessionId
    session_key: DhPrivateKey | None  # None below version 7
    forwarded: bool = False  # from an SMP proxy: only commands that may be forwarded


class Sclose(_LinkMessage, frozen=True):
    tag = b"SCLOSE"


class Spause(_LinkMessage, frozen=True):
    """The client reads slowly: send no deliveries on this stream."""

    tag = b"SPAUSE"


class Sresume(_LinkMessage, frozen=True):
    tag = b"SRESUME"


class Newq(_LinkMessage, frozen=True):
    """A client's `NEW` for this slot; commands do not find the queue before `NEWC`."""

    tag = b"NEWQ"
    home: Slot
    tx_id: bytes
    transmission: bytes


class Newr(_LinkMessage, frozen=True):
    """The ids of an uncommitted queue, and the references that it needs."""

    tag = b"NEWR"
    tx_id: bytes
    recipient_id: RecipientId
    sender_id: SenderId
    notifier_id: NotifierId | None = None
    link_id: LinkId | None = None
    needs: tuple[RefKind, ...] = ()


class Newc(_LinkMessage, frozen=True):
    tag = b"NEWC"
    tx_id: bytes


class Newx(_LinkMessage, frozen=True):
    tag = b"NEWX"
    tx_id: bytes


class SetRef(_LinkMessage, frozen=True):
    tag = b"SET_REF"
    kind: RefKind
    entity_id: bytes
    home: Slot
    tx_id: bytes


class GetRef(_LinkMessage, frozen=True):
    tag = b"GET_REF"
    kind: RefKind
    entity_id: bytes


class DelRef(_LinkMessage, frozen=True):
    tag = b"DEL_REF"
    kind: RefKind
    entity_id: bytes
    tx_id: bytes | None = None  # None: any transaction


class RefIs(_LinkMessage, frozen=True):
    tag = b"REF"
    home: Slot


class Sres(_LinkMessage, frozen=True):
    """Resumes, by its grant, a subscription for which no `SUB` can be repeated."""

    tag = b"SRES"
    recipient_id: RecipientId


class Sagain(_LinkMessage, frozen=True):
    """Commands for this id that were refused are sent again from here on, in order. Until then all
    commands for it are refused."""

    tag = b"SAGAIN"
    entity_id: bytes


class Knows(_LinkMessage, frozen=True):
    """Asks whether a queue of this slot has this id; sent before a reference is swept."""

    tag = b"KNOWS"
    kind: RefKind
    entity_id: bytes
    home: Slot


class Moderate(_LinkMessage, frozen=True):
    """An operator's order for the queue of this sender or link (`control.moderated`)."""

    tag = b"MODERATE"
    entity_id: bytes
    order: str


class Moderated(_LinkMessage, frozen=True):
    tag = b"MODERATED"
    text: str


class Sdlv(_LinkMessage, frozen=True):
    """The client got this message from the slot's former server."""

    tag = b"SDLV"
    recipient_id: RecipientId
    gets: bool
    message_id: MessageId


class Cok(_LinkMessage, frozen=True):
    tag = b"OK"


class Cping(_LinkMessage, frozen=True):
    tag = b"CPING"


class Cpong(_LinkMessage, frozen=True):
    tag = b"CPONG"
    epoch: int


class WrongSlot(_LinkMessage, frozen=True):
    """Another server has the slot, by the map of this epoch or later."""

    tag = b"WRONG_SLOT"
    corr_id: CorrId
    epoch: int


class Unknown(_LinkMessage, frozen=True):
    """No queue here has this id, and its own slot is not ours, by the map of this epoch."""

    tag = b"UNKNOWN"
    corr_id: CorrId
    epoch: int


class Moved(_LinkMessage, frozen=True):
    """The id is a reference to a queue in this slot."""

    tag = b"MOVED"
    corr_id: CorrId
    kind: RefKind
    home: Slot


class Frozen(_LinkMessage, frozen=True):
    """The slot is moving to another server: hold this command and send it again."""

    tag = b"FROZEN"
    corr_id: CorrId


class Duplicate(_LinkMessage, frozen=True):
    tag = b"DUPLICATE"


class NotFound(_LinkMessage, frozen=True):
    tag = b"NOT_FOUND"


class Busy(_LinkMessage, frozen=True):
    """Too much is in flight here; nothing was done."""

    tag = b"BUSY"
    corr_id: CorrId


class CopyPart(_LinkMessage, frozen=True):
    """A part of a frame of a copy (`cluster.migration`); the last one completes it."""

    tag = b"MIGF"
    copy: int
    slot: Slot
    move: int
    last: bool
    data: bytes


class CopyAck(_LinkMessage, frozen=True):
    tag = b"MIGA"
    copy: int
    seq: int
    broken: bool = False


# fmt: off
Failure: TypeAlias = WrongSlot | Unknown | Moved | Frozen | Duplicate | NotFound | Busy
LinkMessage: TypeAlias = (
    Sopen | Sclose | Spause | Sresume | Newq | Newr | Newc | Newx | SetRef | GetRef | DelRef | RefIs
    | Sres | Sagain | Knows | Moderate | Moderated | Sdlv | Cok | Cping | Cpong | Failure
    | CopyPart | CopyAck
)
# fmt: on
