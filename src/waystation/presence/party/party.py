"""A party as one node follows it: the log in order, who is there, and which sessions are ours.

Rule 1: entries are applied in `seq` order. One that was applied is ignored; one that comes too
        early is a gap, and the caller fetches what is missing.
Rule 2: the roster always describes exactly the entries up to `seq`, so a LIST made of it and what
        is sent after it have neither a gap nor an overlap.
Rule 3: until the party is loaded (`load`), entries are held back.
Rule 4: of those here with a stream who want party messages, whoever has been sent everything and
        has room for more is in `flowing`: the party's position is theirs. Everybody else is in
        `behind` and has a position of its own (`behind_at`), which is None for the others.
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
# Asking an enum's class for a member costs a third of a delivery.
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
        self.at_ms = 0  # of the last entry: time along the log never goes back
        self.message_id = 0
        self.log = PartyLog(0, log_max)
        self.roster = Roster()
        self.flowing: dict[Delivery, Stream] = {}
        self.behind: dict[Delivery, None] = {}
        self.sessions: dict[tuple[ClientId, SessionId], Session] = {}  # ours, detached ones too
        self.loaded = False
        self.catching_up = False
        self.busy = 0  # joins and attaches under way, which will need it
        self._held: list[Entry] = []
        self.opened_mono = mono
        self.size_max = 0
        self.joins = 0

    def load(self, *, seq: int, epoch: int, members: Iterable[Member]) -> None:
        """How the party stands at `seq`; what was held back above it is applied by the caller."""
        for delivery in tuple(self.flowing):
            self.fall_behind(delivery)  # where they are, they are in the log before
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
                self._held.append(entry)  # beyond, the gap shows itself after loading
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
        """Entries before what the log holds, for somebody who was away."""
        self.log.prepend(announce(self.party_id, self.epoch, entry) for entry in older)

    # --- who is told -----------------------------------------------------------------------------

    def enter(self, delivery: "Delivery") -> None:
        """It has a stream now, and is where it says."""
        self.behind[delivery] = None

    def keep_up(self, delivery: "Delivery") -> None:
        """If it has been sent everything, and has room, what comes next is sent at once."""
        stream, wanted = delivery.stream, not delivery.muted
        if delivery.behind_at == self.seq and wanted and stream is not None and delivery.has_room():
            del self.behind[delivery]
            self.flowing[delivery] = stream
            delivery.behind_at = None

    def fall_behind(self, delivery: "Delivery") -> None:
        """What comes next waits, or is not for it."""
        if delivery.behind_at is None:
            del self.flowing[delivery]
            self.behind[delivery] = None
            delivery.behind_at = self.seq

    def quit(self, delivery: "Delivery") -> None:
        """It has no stream any more; its position stays."""
        if delivery.behind_at is None:
            del self.flowing[delivery]
            delivery.behind_at = self.seq
        else:
            self.behind.pop(delivery, None)

    @property
    def idle(self) -> bool:
        """Nobody here needs it any more."""
        return not self.sessions and not self.busy
