"""The last announcements of a party, each serialised once for all recipients."""

from collections.abc import Iterable

import msgspec

from waystation.presence.model import ClientId, Entry, MessageType, PartyId, SessionId
from waystation.presence.wire.server_messages import announcement

_SIGNAL = MessageType.SIGNAL


class Announcement(msgspec.Struct, frozen=True, gc=False):
    """A serialised party message; `data` is the same object for every recipient."""

    seq: int
    message_id: int
    data: bytes
    client_id: ClientId
    session_id: SessionId
    is_signal: bool


def announce(party_id: PartyId, epoch: int, entry: Entry) -> Announcement:
    return Announcement(
        entry.seq,
        entry.message_id,
        announcement(party_id, epoch, entry),
        entry.client_id,
        entry.session_id,
        entry.kind is _SIGNAL,
    )


class PartyLog:
    """Announcements by `seq`, without gaps, at most `entries_max`."""

    __slots__ = ("_by_seq", "_entries_max", "first_seq", "last_seq")

    def __init__(self, seq: int, entries_max: int) -> None:
        """An empty log; the next announcement has `seq` + 1."""
        self._by_seq: dict[int, Announcement] = {}
        self._entries_max = entries_max
        self.first_seq = seq + 1
        self.last_seq = seq

    def __len__(self) -> int:
        return len(self._by_seq)

    def append(self, one: Announcement) -> None:
        seq, by_seq = one.seq, self._by_seq
        assert seq == self.last_seq + 1, "a gap in the log of a party"
        by_seq[seq] = one
        self.last_seq = seq
        if len(by_seq) > self._entries_max:
            del by_seq[self.first_seq]
            self.first_seq += 1

    def prepend(self, older: Iterable[Announcement]) -> None:
        """Adds older announcements in front, as far as they connect and there is room."""
        for one in sorted(older, key=lambda a: -a.seq):
            if one.seq == self.first_seq - 1 and len(self._by_seq) < self._entries_max:
                self._by_seq[one.seq] = one
                self.first_seq = one.seq

    def get(self, seq: int) -> Announcement | None:
        return self._by_seq.get(seq)

    def reaches_back_to(self, seq: int) -> bool:
        """Whether the log has everything above `seq`."""
        return seq >= self.first_seq - 1
