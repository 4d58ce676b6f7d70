"""One party in memory: sessions, roster and log, and every operation on them, without I/O.

The ledger decides; its store persists the `changes` and notifies subscribers. The memory store and
the embedded store share it, so both give the same results.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from waystation.presence.model import (
    ClientId,
    Detached,
    Entry,
    Member,
    MessageType,
    PartyId,
    SessionId,
    SessionKey,
    SessionRecord,
    Status,
    merged_flags,
    next_tick,
    party_message_id,
)
from waystation.presence.store import (
    Attached,
    AttachSpec,
    CursorRow,
    Duplicate,
    Exists,
    Joined,
    JoinSpec,
    Left,
    Missing,
    Owner,
    Rejected,
    Signalled,
    token_before,
    weigh,
)

EPOCH_BITS: Final = 63
_JOIN: Final = MessageType.JOIN  # module constants: reading an enum member is slow
_LEAVE: Final = MessageType.LEAVE
Slot = tuple[ClientId, SessionId]


class Changes(msgspec.Struct):
    """Changes that a durable store must write."""

    sessions: dict[Slot, SessionRecord | None]
    entries: list[Entry]
    epoch_began: bool = False

    def __bool__(self) -> bool:
        return bool(self.sessions or self.entries or self.epoch_began)


class PartyState(msgspec.Struct, array_like=True, frozen=True):
    """A whole party, to move it to another node. New fields go last and have defaults."""

    epoch: int
    seq: int
    at_ms: int
    tick: int
    sessions: list[SessionRecord]
    log: list[Entry]


class PartyLedger:
    __slots__ = (
        "_changes",
        "_random_bits",
        "at_ms",
        "clients",
        "emptied_at_ms",
        "epoch",
        "log",
        "party_id",
        "seq",
        "sessions",
        "tick",
    )

    def __init__(
        self, party_id: PartyId, *, log_max: int, tick: int, random_bits: Callable[[int], int]
    ) -> None:
        self.party_id = party_id
        self.epoch = 0
        self.seq = 0
        self.at_ms = 0
        self.tick = tick
        self.log: deque[Entry] = deque(maxlen=log_max)
        self.sessions: dict[Slot, SessionRecord] = {}
        self.clients: dict[ClientId, int] = {}
        self.emptied_at_ms = 0  # 0: the party has sessions, or never had any
        self._random_bits = random_bits
        self._changes = Changes({}, [])

    def changes(self) -> Changes:
        """Changes since the last call."""
        changes, self._changes = self._changes, Changes({}, [])
        return changes

    def new_entries(self) -> list[Entry]:
        """Only the entries of `changes`, for a store that persists nothing."""
        changes = self._changes
        entries, changes.entries = changes.entries, []
        changes.sessions.clear()
        changes.epoch_began = False
        return entries

    def restore_session(self, record: SessionRecord) -> None:
        """Adds a session that was read from disk or from another node."""
        slot = (record.key.client_id, record.key.session_id)
        self.sessions[slot] = record
        self.clients[slot[0]] = self.clients.get(slot[0], 0) + 1

    # --- operations ------------------------------------------------------------------------------

    def join(
        self, key: SessionKey, spec: JoinSpec, owner: Owner, now_ms: int, linger_ms: int
    ) -> Joined | Exists | Rejected:
        slot = (key.client_id, key.session_id)
        found = self.sessions.get(slot)
        if found is not None:
            return Exists(found)
        if spec.id_unique_in_party and any(one == key.session_id for _, one in self.sessions):
            return Rejected(Status.SESSION_ID_IN_USE)
        sessions_n = self.clients.get(key.client_id, 0)
        if sessions_n >= spec.client_sessions_max:
            if not spec.evict_oldest:
                return Rejected(Status.SESSION_LIMIT)
            self._remove(self._oldest_of(key.client_id), Status.REPLACED_BY_NEWER_SESSION, now_ms)
            sessions_n -= 1
        elif len(self.sessions) >= spec.party_max:
            return Rejected(Status.PARTY_FULL)
        opened = not self.sessions
        if not self.epoch or (
            opened and self.emptied_at_ms and now_ms - self.emptied_at_ms >= linger_ms
        ):
            self._begin_epoch()
        self.emptied_at_ms = 0
        count = self.clients[key.client_id] = sessions_n + 1
        entry = self._append(_JOIN, slot, now_ms, count)
        self._write(
            slot,
            SessionRecord(
                key=key,
                active=True,
                owner=owner.node_id,
                incarnation=owner.incarnation,
                fence=1,
                joined_seq=entry.seq,
                joined_at_ms=entry.at_ms,
                cursor=entry.seq,
                ttl_ms=spec.ttl_ms,
                flags=spec.flags,
                token_hash=spec.token_hash,
                token_exp_ms=spec.token_exp_ms,
            ),
        )
        return Joined(
            seq=entry.seq,
            epoch=self.epoch,
            fence=1,
            at_ms=entry.at_ms,
            device_sessions=count,
            party_size=len(self.sessions),
            opened=opened,
            members=self.members() if spec.known_seq is None else None,
        )

    def attach(
        self, key: SessionKey, spec: AttachSpec, owner: Owner, now_ms: int
    ) -> Attached | Missing | Rejected:
        slot = (key.client_id, key.session_id)
        found = self.sessions.get(slot)
        if found is None:
            return Missing()
        refusal = weigh(found, spec.proof, now_ms)
        if refusal is not None:
            return Rejected(refusal)
        record = replace(
            found,
            active=True,
            owner=owner.node_id,
            incarnation=owner.incarnation,
            fence=found.fence + 1,
            ttl_ms=spec.ttl_ms if spec.ttl_ms is not None else found.ttl_ms,
            flags=merged_flags(found.flags, spec.flags),
            token_hash=spec.new_hash,
            previous_hash=token_before(found, spec.proof),
            previous_until_ms=now_ms + spec.proof.grace_ms,
            token_exp_ms=spec.token_exp_ms,
            detached_at_ms=0,
            deadline_ms=0,
            cause=0,
        )
        self._write(slot, record)
        return Attached(
            record=record,
            was_active=found.active,
            previous_owner=Owner(found.owner, found.incarnation),
            gap_ms=max(0, now_ms - found.detached_at_ms) if found.detached_at_ms else 0,
            seq=self.seq,
            epoch=self.epoch,
            members=self.members() if spec.known_seq is None else None,
        )

    def detach(self, key: SessionKey, fence: int, cursor: int, cause: int, now_ms: int) -> bool:
        slot = (key.client_id, key.session_id)
        found = self.sessions.get(slot)
        if found is None or found.fence != fence:
            return False
        self._write(
            slot,
            replace(
                found,
                active=False,
                cursor=max(cursor, found.cursor),
                cause=cause,
                detached_at_ms=now_ms,
                deadline_ms=now_ms + found.ttl_ms,
            ),
        )
        return True

    def leave(self, key: SessionKey, fence: int, code: Status, now_ms: int) -> Left | None:
        slot = (key.client_id, key.session_id)
        found = self.sessions.get(slot)
        if found is None or (fence and found.fence != fence):
            return None
        entry = self._remove(slot, code, now_ms)
        return Left(entry.seq, len(self.sessions), entry.count)

    def signal(
        self, key: SessionKey, fence: int, origin_id: int, payload: bytes, now_ms: int
    ) -> Signalled | Duplicate | None:
        slot = (key.client_id, key.session_id)
        found = self.sessions.get(slot)
        if found is None or found.fence != fence:
            return None
        if origin_id <= found.last_signal_id:
            return Duplicate()
        self._write(slot, replace(found, last_signal_id=origin_id))
        return Signalled(self._append(MessageType.SIGNAL, slot, now_ms, payload=payload).seq)

    def save_cursor(self, row: CursorRow) -> bool:
        """Not recorded in `changes`: cursors are written separately."""
        slot = (row.key.client_id, row.key.session_id)
        found = self.sessions.get(slot)
        if found is None or found.fence != row.fence or row.cursor <= found.cursor:
            return False
        self.sessions[slot] = replace(found, cursor=row.cursor)
        return True

    # --- moving between nodes --------------------------------------------------------------------

    def state(self) -> PartyState:
        return PartyState(
            self.epoch,
            self.seq,
            self.at_ms,
            self.tick,
            list(self.sessions.values()),
            list(self.log),
        )

    def take_in(
        self, state: PartyState, owner: Owner, now_ms: int
    ) -> Sequence[SessionRecord] | None:
        """Continues a party of another node; None if the party has sessions here."""
        if self.sessions:
            return None
        self.epoch, self.seq, self.at_ms = state.epoch, state.seq, max(self.at_ms, state.at_ms)
        self.tick = max(self.tick, state.tick)
        self.emptied_at_ms = 0 if state.sessions else now_ms
        self.log.clear()
        self.log.extend(state.log)
        self._changes.epoch_began = True
        self._changes.entries.extend(self.log)
        for record in state.sessions:
            waiting = replace(
                record,
                active=False,
                owner=owner.node_id,
                incarnation=owner.incarnation,
                cause=record.cause or int(Detached.DRAIN),
                detached_at_ms=record.detached_at_ms or now_ms,
                deadline_ms=now_ms + record.ttl_ms,
            )
            self.restore_session(waiting)
            self._changes.sessions[record.key.client_id, record.key.session_id] = waiting
        return list(self.sessions.values())

    # --- reading ---------------------------------------------------------------------------------

    def members(self) -> list[Member]:
        return [
            Member(client, session, not record.active)
            for (client, session), record in self.sessions.items()
        ]

    def read(self, after_seq: int, limit: int) -> Sequence[Entry] | None:
        first = self.log[0].seq if self.log else self.seq + 1
        if after_seq < first - 1 or after_seq > self.seq:
            return None
        start = after_seq + 1 - first
        return [self.log[at] for at in range(start, min(len(self.log), start + limit))]

    def detach_all(self, now_ms: int, ttl_min_ms: int) -> list[SessionRecord]:
        """After a restart no session has a stream; each one gets time to reconnect."""
        for slot, record in self.sessions.items():
            left_ms = record.ttl_ms if record.active else record.deadline_ms - now_ms
            self.sessions[slot] = replace(
                record,
                active=False,
                cause=record.cause or Detached.TRANSPORT,
                detached_at_ms=record.detached_at_ms or now_ms,
                deadline_ms=now_ms + max(left_ms, ttl_min_ms),
            )
        return list(self.sessions.values())

    # --- steps -----------------------------------------------------------------------------------

    def _begin_epoch(self) -> None:
        self.epoch = self._random_bits(EPOCH_BITS) or 1
        self.seq = 0
        self.log.clear()
        self._changes.epoch_began = True

    def _append(
        self,
        kind: MessageType,
        slot: Slot,
        now_ms: int,
        count: int = 0,
        code: int = 0,
        *,
        payload: bytes = b"",
    ) -> Entry:
        seq = self.seq = self.seq + 1
        if now_ms > self.at_ms:  # noqa: PLR1730 for every entry
            self.at_ms = now_ms
        tick = self.tick = next_tick(self.tick, now_ms)  # the message id is derived from it
        entry = Entry(
            seq,
            kind,
            slot[0],
            slot[1],
            party_message_id(tick),
            self.at_ms,
            count,
            code,
            payload,
        )
        self.log.append(entry)
        self._changes.entries.append(entry)
        return entry

    def _remove(self, slot: Slot, code: Status, now_ms: int) -> Entry:
        del self.sessions[slot]
        self._changes.sessions[slot] = None
        count = self.clients[slot[0]] - 1
        if count:
            self.clients[slot[0]] = count
        else:
            del self.clients[slot[0]]
        if not self.sessions:
            self.emptied_at_ms = now_ms
        return self._append(_LEAVE, slot, now_ms, count, code)

    def _oldest_of(self, client_id: ClientId) -> Slot:
        def age(slot: Slot) -> tuple[bool, int]:
            record = self.sessions[slot]
            return record.active, record.joined_seq

        return min((slot for slot in self.sessions if slot[0] == client_id), key=age)

    def _write(self, slot: Slot, record: SessionRecord) -> None:
        self.sessions[slot] = record
        self._changes.sessions[slot] = record
