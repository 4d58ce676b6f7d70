"""A party as one node follows it: its log, its roster and the sessions of this node.

Rule 1: entries are applied in `seq` order. An applied one is ignored; after a gap the caller reads
        the missing entries.
Rule 2: the roster describes exactly the entries up to `seq`, so between a LIST and the
        announcements after it there is neither a gap nor an overlap.
Rule 3: until the party is loaded (`load`), entries are held back.
Rule 4: deliveries with a stream are in `flowing` or in `behind`. Those in `flowing` were sent
        everything and have room for more; the position of the party is theirs. Those in `behind`
        have a position of their own (`behind_at`, which is None in `flowing`).
"""

import enum
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from waystation.presence.model import ClientId, Entry, Member, MessageType, PartyId, SessionId

from .log import Announcement, PartyLog, announce
from .roster import Roster

if TYPE_CHECKING:
    from waystation.net.http2.port import Stream
    from waystation.presence.session.delivery import Delivery
    from waystation.presence.session.session import Session

HELD_MAX: Final = 4096  # entries that may wait for a party to be loaded
# Module constants: reading an enum member takes a third of a delivery's time.
_JOIN: Final = MessageType.JOIN
_LEAVE: Final = MessageType.LEAVE


class Place(enum.Enum):
    """Why an entry was not applied."""

    OLD = enum.auto()
    GAP = enum.auto()
    HELD = enum.auto()


class Party:
    __slots__ = (
        "_held",
        "_log_max",
        "at_ms",
        "behind",
        "busy",
        "catching_up",
        "epoch",
        "flowing",
        "joins",
        "loaded",
        "log",
        "message_id",
        "opened_mono",
        "party_id",
        "roster",
        "seq",
        "sessions",
        "size_max",
    )

    def __init__(self, party_id: PartyId, *, log_max: int, mono: float) -> None:
        self.party_id = party_id
        self._log_max = log_max
        self.epoch = 0
        self.seq = 0
        self.at_ms = 0  # of the last entry; never decreases along the log
        self.message_id = 0
        self.log = PartyLog(0, log_max)
        self.roster = Roster()
        self.flowing: dict[Delivery, Stream] = {}
        self.behind: dict[Delivery, None] = {}
        self.sessions: dict[
            tuple[ClientId, SessionId], Session
        ] = {}  # of this node, detached ones too
        self.loaded = False
        self.catching_up = False
        self.busy = 0  # joins and attaches that are waiting for the store
        self._held: list[Entry] = []
        self.opened_mono = mono
        self.size_max = 0
        self.joins = 0

    def load(self, *, seq: int, epoch: int, members: Iterable[Member]) -> None:
        """Sets the state at `seq`; the caller applies the entries that were held back."""
        for delivery in tuple(self.flowing):
            self.fall_behind(delivery)  # their position is in the previous log
        self.seq = seq
        self.epoch = epoch
        self.log = PartyLog(seq, self._log_max)
        self.roster = Roster(members)
        self.size_max = max(self.size_max, self.roster.size)
        self.loaded = True

    def held(self) -> Sequence[Entry]:
        held, self._held = self._held, []
        return sorted(held, key=lambda entry: entry.seq)

    def apply(self, entry: Entry) -> Announcement | Place:
        if not self.loaded:
            if len(self._held) < HELD_MAX:
                self._held.append(entry)  # dropped ones show as a gap after loading
            return Place.HELD
        seq = entry.seq
        if seq <= self.seq:
            return Place.OLD
        if seq != self.seq + 1:
            return Place.GAP
        kind = entry.kind
        roster = self.roster
        if kind is _JOIN:
            roster.add(entry.client_id, entry.session_id)
            self.joins += 1
            if roster.size > self.size_max:  # noqa: PLR1730 for every join
                self.size_max = roster.size
        elif kind is _LEAVE:
            roster.remove(entry.client_id, entry.session_id)
        one = announce(self.party_id, self.epoch, entry)
        self.log.append(one)
        self.seq = seq
        self.message_id = entry.message_id
        if entry.at_ms > self.at_ms:  # noqa: PLR1730 for every entry
            self.at_ms = entry.at_ms
        return one

    def has_reached(self, seq: int, epoch: int) -> bool:
        return self.seq >= seq and self.epoch == epoch and self.loaded

    def reach_back(self, older: Iterable[Entry]) -> None:
        """Adds entries older than the log, for a session that was detached."""
        self.log.prepend(announce(self.party_id, self.epoch, entry) for entry in older)

    # --- recipients ------------------------------------------------------------------------------

    def enter(self, delivery: "Delivery") -> None:
        """A delivery has a stream now, at its own position."""
        self.behind[delivery] = None

    def keep_up(self, delivery: "Delivery") -> None:
        """Moves a delivery to `flowing` if it was sent everything and has room."""
        stream, wanted = delivery.stream, not delivery.muted
        if delivery.behind_at == self.seq and wanted and stream is not None and delivery.has_room():
            del self.behind[delivery]
            self.flowing[delivery] = stream
            delivery.behind_at = None

    def fall_behind(self, delivery: "Delivery") -> None:
        """Moves a delivery to `behind`: it is not sent the next entry at once."""
        if delivery.behind_at is None:
            del self.flowing[delivery]
            self.behind[delivery] = None
            delivery.behind_at = self.seq

    def quit(self, delivery: "Delivery") -> None:
        """A delivery has no stream any more; it keeps its position."""
        if delivery.behind_at is None:
            del self.flowing[delivery]
            delivery.behind_at = self.seq
        else:
            self.behind.pop(delivery, None)

    @property
    def idle(self) -> bool:
        """No session and no request of this node needs it."""
        return not self.sessions and not self.busy
