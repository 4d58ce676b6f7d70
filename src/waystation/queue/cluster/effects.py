"""Effects of `Replication`, which `ReplicationDriver` performs."""

import msgspec

from waystation.queue.store import Row

from .migration import Cursor, Frame
from .slot_map import NodeId, SlotMap

CopyId = int
Ticket = int


class ReadRows(msgspec.Struct, frozen=True):
    """Read the next chunk of a slot and pass it to `rows` before any later commit."""

    copy: CopyId
    slot: int
    after: Cursor | None


class SendFrame(msgspec.Struct, frozen=True):
    """To the target of the move, or the follower."""

    peer: NodeId
    copy: CopyId
    slot: int
    move: int  # the attempt of the move; 0 for a follower
    frame: Frame


class SendAck(msgspec.Struct, frozen=True):
    """Everything up to `seq` is durable here; `broken` ends the copy instead."""

    peer: NodeId
    copy: CopyId
    seq: int
    broken: bool = False


class Apply(msgspec.Struct, frozen=True, kw_only=True):
    """Make these rows durable in the order of the effects, then call `applied`. `erase` empties
    the slot first."""

    copy: CopyId
    slot: int
    seq: int
    changes: tuple[Row, ...]
    erase: bool


class Freeze(msgspec.Struct, frozen=True):
    """Start no command for this slot; call `drained` when none runs and all rows are passed on."""

    slot: int


class Propose(msgspec.Struct, frozen=True):
    """Commit this map over the epoch before it; call `proposed` with the map in force."""

    slot_map: SlotMap


class Refresh(msgspec.Struct, frozen=True):
    """A peer seems to know a newer map: read it from the store, and call `learned`."""


class Release(msgspec.Struct, frozen=True):
    """Send the answers of these tickets."""

    tickets: tuple[Ticket, ...]


class Refuse(msgspec.Struct, frozen=True):
    """The slot has moved: fail the commands of these tickets. The client asks again."""

    tickets: tuple[Ticket, ...]


class Erase(msgspec.Struct, frozen=True):
    """Another server has had the slot for long enough: remove its rows here."""

    slot: int


Effect = (
    ReadRows | SendFrame | SendAck | Apply | Freeze | Propose | Refresh | Release | Refuse | Erase
)
