"""Computes who is in the party from the messages of one session (the view rule). No I/O.

Rule 1: a LIST replaces everything and sets the floor; a JOIN or LEAVE counts only if its
        `party_seq` is above the floor and above the last one that counted for that session.
Rule 2: a message id that was seen before changes nothing, on any stream. A message above the floor
        that arrived on an older stream still counts after the LIST of a newer stream.
Rule 3: a new epoch means that the party's numbers start again.
"""

from waystation.presence.wire.party_presence_pb2 import (
    JOIN,
    LEAVE,
    LIST_RESYNC,
    PARTICIPANT_DETACHED,
    SIGNAL,
    UPDATE,
    ClientMessage,
)

from .model import Event, Joined, Left, Participant, Reachability, Resynced, Signalled, Snapshot

IDS_MAX = 4096  # remembered message ids; the protocol asks for at least so many


class PartyView:
    def __init__(self, ids_max: int = IDS_MAX) -> None:
        self._ids_max = ids_max
        self._ids: dict[int, None] = {}
        self._present: set[Participant] = set()
        self._last: dict[Participant, tuple[int, bool]] = {}  # seq, joined; above the floor only
        self._floor = 0
        self._epoch = 0
        self.seq = 0  # everything up to here was received: where a resume starts

    @property
    def participants(self) -> tuple[Participant, ...]:
        return tuple(sorted(self._present))

    @property
    def epoch(self) -> int:
        return self._epoch

    def forget(self) -> None:
        """Continuity is lost: the view is emptied. Message ids stay remembered."""
        self._present.clear()
        self._last.clear()
        self._floor = self.seq = self._epoch = 0

    def listed(self, message: ClientMessage, *, covers: bool = True) -> Event | None:
        """`covers`: no message below the LIST is still to come, as there is after a resume."""
        if not self._is_new(message.message_id):
            return None
        self._enter(message.party_epoch)
        if message.party_seq < self._floor:
            return None  # older than a LIST from another stream
        self._floor = message.party_seq
        if covers:
            self.seq = max(self.seq, message.party_seq)
        self._present = {
            Participant(entry.client_id, session_id)
            for entry in message.participant_client_ids
            for session_id in entry.session_id
        }
        self._last = {who: last for who, last in self._last.items() if last[0] > self._floor}
        for who, (_, joined) in self._last.items():
            (self._present.add if joined else self._present.discard)(who)
        told = Resynced if message.status_code == LIST_RESYNC else Snapshot
        return told(self.participants, message.party_seq)

    def announced(self, message: ClientMessage) -> Event | None:
        """The event of a JOIN, LEAVE, SIGNAL or UPDATE; None if it changes nothing."""
        if not self._is_new(message.message_id):
            return None
        who = Participant(message.client_id, message.session_id)
        if message.message_type == UPDATE:
            return Reachability(who, message.status_code != PARTICIPANT_DETACHED)
        self._enter(message.party_epoch)
        seq = message.party_seq
        self.seq = max(self.seq, seq)
        if message.message_type == SIGNAL:
            return Signalled(who, message.payload, message.timestamp, seq)
        if seq <= self._floor or seq <= self._last.get(who, (0, True))[0]:
            return None
        self._last[who] = (seq, message.message_type == JOIN)
        sessions, at_ms = message.client_session_count, message.timestamp
        if message.message_type == JOIN:
            self._present.add(who)
            return Joined(who, sessions, at_ms, seq)
        assert message.message_type == LEAVE
        self._present.discard(who)
        return Left(who, message.status_code, sessions, at_ms, seq)

    def _enter(self, epoch: int) -> None:
        if epoch and epoch != self._epoch:
            if self._epoch:
                self._floor = self.seq = 0
                self._last.clear()
            self._epoch = epoch

    def _is_new(self, message_id: int) -> bool:
        ids = self._ids
        if message_id in ids:
            return False
        ids[message_id] = None
        if len(ids) > self._ids_max:
            del ids[next(iter(ids))]
        return True
