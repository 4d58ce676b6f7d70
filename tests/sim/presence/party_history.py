"""The histories of parties, as Redis appended them, and what clients may therefore receive.

The histories are read at Redis itself, so nothing is missing. Checked are

order           a message has one content for all recipients; along the log, ids grow and time never
                decreases; first deliveries of a stream ascend, without a gap but for what a
                LIST_RESYNC covers
at least once   a session that is joined at the end has received everything since its join, or a
                LIST_RESYNC that covers it
no ghosts       a LIST is the membership at its position; at the end every view, the naive one too,
                is the membership, and the membership is the sessions that are joined
no lost leave   JOIN and LEAVE of a session alternate; an acknowledged LEAVE is in the log; a
                session that timed out was silent for a TTL
"""

from typing import Final, NamedTuple

from waystation.presence.model import Entry, MessageType, PartyId, SessionKey, Status
from waystation.storage.redis.presence_rows import decode_entry

UNSEEN_S: Final = 2.2
UNHEARD_S: Final = 2.2  # what was sent before a receipt and arrives after it, by a call that stalls
ROUNDING_S: Final = 0.002

Member = tuple[int, int]


class WrittenEntry(NamedTuple):
    """One entry of a party's log, when it was written, and who was in afterwards."""

    at_s: float
    entry: Entry
    members: frozenset[Member]

    @property
    def member(self) -> Member:
        """Whom it is about."""
        return int(self.entry.client_id), int(self.entry.session_id)


class EpochHistory:
    """One process (epoch) of a party."""

    def __init__(self) -> None:
        self.facts: dict[int, WrittenEntry] = {}

    def members_at(self, seq: int) -> frozenset[Member]:
        fact = self.facts.get(seq)
        return frozenset() if fact is None else fact.members


class PartyHistories:
    def __init__(self) -> None:
        self.histories: dict[tuple[PartyId, int], EpochHistory] = {}
        self.present: dict[PartyId, dict[Member, float]] = {}
        """Who is in, and since when."""
        self.entries = 0
        self.mistakes: list[str] = []

    def published(self, party_id: PartyId, data: bytes, at_s: float) -> WrittenEntry | None:
        """Redis has appended something (or passed on a notice, which is no fact)."""
        if data[:1] != b"e":
            return None
        epoch, _, rest = data[1:].partition(b":")
        entry = decode_entry(rest)
        self.entries += 1
        present = self.present.setdefault(party_id, {})
        member = (int(entry.client_id), int(entry.session_id))
        if entry.kind is MessageType.JOIN:
            if member in present:
                self.mistakes.append(f"{member} joined twice")
            present[member] = at_s
        elif entry.kind is MessageType.LEAVE:
            if member not in present:
                self.mistakes.append(f"{member} left twice")
            present.pop(member, None)
        fact = WrittenEntry(at_s, entry, frozenset(present))
        history = self.histories.setdefault((party_id, int(epoch)), EpochHistory())
        self._compare(history, entry)
        history.facts[entry.seq] = fact
        return fact

    def _compare(self, history: EpochHistory, entry: Entry) -> None:
        if not history.facts:
            return
        before = next(reversed(history.facts.values())).entry
        if entry.seq != before.seq + 1:
            self.mistakes.append(f"{entry.seq} was appended after {before.seq}")
        if entry.message_id <= before.message_id:
            self.mistakes.append(f"the id of {entry.seq} is not above that of {before.seq}")
        if entry.at_ms < before.at_ms:
            self.mistakes.append(f"the time of {entry.seq} is before that of {before.seq}")

    def history(self, party_id: PartyId, epoch: int) -> EpochHistory:
        return self.histories.setdefault((party_id, epoch), EpochHistory())

    def is_in(self, key: SessionKey) -> bool:
        return (key.client_id, key.session_id) in self.present.get(key.party_id, {})


class LastAnswers(NamedTuple):
    """When a client last said something that its broker has certainly read; None: never."""

    answered_s: float | None = None
    entered_s: float | None = None  # a JOIN that was accepted
    settled_s: float | None = None  # receipts, after which it owed none


def excuse(fact: WrittenEntry, heard: LastAnswers, ttl_s: float, *, sent_leave: bool) -> str:
    """Why that LEAVE should not have been; empty if it may be so."""
    code = Status(fact.entry.code)
    if code is Status.OK:
        return "" if sent_leave else "left, and never said so"
    if code is Status.ACK_TIMEOUT:
        # A resume begins anew (8.1), a PING that was answered is no receipt (5).
        reasons = ((heard.entered_s, ROUNDING_S), (heard.settled_s, UNHEARD_S))
    elif code is Status.NODE_LOST:
        # A node that the store has lost answers for a while what it can answer by itself (12.3).
        reasons = ((heard.answered_s, UNSEEN_S),)
    else:
        reasons = ((heard.answered_s, ROUNDING_S),)
    for said_s, earlier_s in reasons:
        if said_s is not None and fact.at_s < said_s + ttl_s - earlier_s:
            return f"was sent away with {code.name} {fact.at_s - said_s:.3f} s after it was heard"
    return ""
