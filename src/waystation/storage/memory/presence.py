"""The presence store in the memory of one process. Every operation completes without waiting."""

import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from waystation.base.clock import Clock
from waystation.base.decode_errors import DECODE_ERRORS
from waystation.presence.errors import PresenceStoreBusyError
from waystation.presence.model import Entry, PartyId, SessionKey, SessionRecord, Status
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
    Notice,
    Owner,
    PartyListener,
    PartySnapshot,
    Rejected,
    Signalled,
)
from waystation.storage.memory.backend import CAPABILITIES
from waystation.storage.memory.presence_ledger import PartyLedger, PartyState

if TYPE_CHECKING:
    from types import CoroutineType

T = TypeVar("T")

_encode_state = msgspec.msgpack.Encoder().encode
_decode_state = msgspec.msgpack.Decoder(PartyState).decode


async def _no_party() -> None:
    """The result of a leave from a party that does not exist."""


class LedgerStore:
    """Base of the single-process stores: ledgers, one listener, removal of empty parties."""

    def __init__(
        self,
        clock: Clock,
        *,
        log_max: int,
        linger_s: float,
        random_bits: Callable[[int], int] = secrets.randbits,
    ) -> None:
        self._clock = clock
        self._log_max = log_max
        self._linger_ms = int(linger_s * 1000)
        self._random_bits = random_bits
        self._ledgers: dict[PartyId, PartyLedger] = {}
        self._emptied: dict[PartyId, float] = {}  # in the order in which they became empty
        self._tick_floor = 0  # highest tick of removed parties: ids never decrease
        self._subscribed: set[PartyId] = set()
        self._listener: PartyListener | None = None
        self._owner = Owner("", 0)
        self._frozen: set[PartyId] = set()  # moving to another node

    def __len__(self) -> int:
        """Number of parties, including empty ones that are not removed yet."""
        return len(self._ledgers)

    async def start(self, owner: Owner, listener: PartyListener) -> Sequence[SessionRecord]:
        self._owner = owner
        self._listener = listener
        return ()

    async def subscribe(self, party_id: PartyId) -> None:
        self._subscribed.add(party_id)

    def unsubscribe(self, party_id: PartyId) -> None:
        self._subscribed.discard(party_id)

    # --- operations ------------------------------------------------------------------------------

    async def _change(self, party_id: PartyId, operation: Callable[[PartyLedger], T]) -> T:
        raise AssertionError("each store implements persistence")

    def _alter(
        self, party_id: PartyId, operation: Callable[[PartyLedger], T]
    ) -> "CoroutineType[Any, Any, T]":
        if party_id in self._frozen:
            raise PresenceStoreBusyError("the party moves to another node")
        return self._change(party_id, operation)

    def join(
        self, key: SessionKey, spec: JoinSpec
    ) -> "CoroutineType[Any, Any, Joined | Exists | Rejected]":
        owner, now_ms, linger_ms = self._owner, self._clock.now_ms(), self._linger_ms
        return self._alter(
            key.party_id, lambda ledger: ledger.join(key, spec, owner, now_ms, linger_ms)
        )

    async def attach(self, key: SessionKey, spec: AttachSpec) -> Attached | Missing | Rejected:
        if key.party_id not in self._ledgers:
            return Missing()
        owner, now_ms = self._owner, self._clock.now_ms()
        return await self._alter(
            key.party_id, lambda ledger: ledger.attach(key, spec, owner, now_ms)
        )

    async def detach(self, key: SessionKey, fence: int, *, cursor: int, cause: int) -> bool:
        if key.party_id not in self._ledgers:
            return False
        now_ms = self._clock.now_ms()
        return await self._alter(
            key.party_id, lambda ledger: ledger.detach(key, fence, cursor, cause, now_ms)
        )

    def leave(
        self, key: SessionKey, fence: int, code: Status
    ) -> "CoroutineType[Any, Any, Left | None]":
        if key.party_id not in self._ledgers:
            return _no_party()
        now_ms = self._clock.now_ms()
        return self._alter(key.party_id, lambda ledger: ledger.leave(key, fence, code, now_ms))

    async def signal(
        self, key: SessionKey, fence: int, *, origin_id: int, payload: bytes
    ) -> Signalled | Duplicate | None:
        if key.party_id not in self._ledgers:
            return None
        now_ms = self._clock.now_ms()
        return await self._alter(
            key.party_id, lambda ledger: ledger.signal(key, fence, origin_id, payload, now_ms)
        )

    async def save_cursors(self, rows: Sequence[CursorRow]) -> None:
        for row in rows:
            ledger = self._ledgers.get(row.key.party_id)
            if ledger is not None:
                ledger.save_cursor(row)

    async def read_log(
        self, party_id: PartyId, *, after_seq: int, limit: int
    ) -> Sequence[Entry] | None:
        ledger = self._ledgers.get(party_id)
        return None if ledger is None else ledger.read(after_seq, limit)

    async def snapshot(self, party_id: PartyId) -> PartySnapshot | None:
        ledger = self._ledgers.get(party_id)
        if ledger is None:
            return None
        return PartySnapshot(
            epoch=ledger.epoch, seq=ledger.seq, sessions=list(ledger.sessions.values())
        )

    async def tell(self, notice: Notice) -> None:
        if self._listener is not None and notice.key.party_id in self._subscribed:
            self._listener.notice(notice)

    # --- parties that move -----------------------------------------------------------------------

    async def freeze(self, party_id: PartyId) -> bytes | None:
        self._frozen.add(party_id)
        await self._settled(party_id)
        ledger = self._ledgers.get(party_id)
        return None if ledger is None else _encode_state(ledger.state())

    def thaw(self, party_id: PartyId) -> None:
        self._frozen.discard(party_id)

    async def _settled(self, party_id: PartyId) -> None:
        """Waits until no change of the party is being written."""

    async def give_up(self, party_id: PartyId) -> None:
        if party_id in self._ledgers:
            self._emptied.setdefault(party_id, 0.0)
            self._forget(party_id)

    async def take_in(self, party_id: PartyId, state: bytes) -> Sequence[SessionRecord] | None:
        try:
            whole = _decode_state(state)
        except DECODE_ERRORS as exc:
            raise ValueError("not the state of a party") from exc
        if any(record.key.party_id != party_id for record in whole.sessions):
            raise ValueError("the state of another party")
        owner, now_ms = self._owner, self._clock.now_ms()
        return await self._change(party_id, lambda ledger: ledger.take_in(whole, owner, now_ms))

    async def expire_due(self, limit: int) -> int:
        """Removes empty parties only: in a single process a session always has its node."""
        await self._forget_empty(limit)
        return 0

    async def check(self) -> None:
        pass

    async def close(self) -> None:
        self._listener = None

    # --- steps -----------------------------------------------------------------------------------

    def _ledger(self, party_id: PartyId) -> PartyLedger:
        ledger = self._ledgers.get(party_id)
        if ledger is None:
            ledger = self._ledgers[party_id] = PartyLedger(
                party_id,
                log_max=self._log_max,
                tick=self._tick_floor,
                random_bits=self._random_bits,
            )
        return ledger

    def _tell_entries(self, party_id: PartyId, entries: Sequence[Entry]) -> None:
        listener = self._listener
        if listener is not None and party_id in self._subscribed:
            for entry in entries:
                listener.entry(party_id, entry)

    def _note_size(self, ledger: PartyLedger) -> None:
        if ledger.sessions:
            self._emptied.pop(ledger.party_id, None)
        else:
            self._emptied.setdefault(ledger.party_id, self._clock.mono())

    def _over(self, limit: int) -> list[PartyId]:
        """Parties that have been empty for `linger_s`."""
        late = self._clock.mono() - self._linger_ms / 1000
        over: list[PartyId] = []
        for party_id, at in self._emptied.items():
            if at > late or len(over) >= limit:
                break
            over.append(party_id)
        return over

    def _forget(self, party_id: PartyId) -> None:
        del self._emptied[party_id]
        ledger = self._ledgers.pop(party_id, None)
        if ledger is not None:
            self._tick_floor = max(self._tick_floor, ledger.tick)

    async def _forget_empty(self, limit: int) -> None:
        for party_id in self._over(limit):
            self._forget(party_id)


class MemoryPresenceStore(LedgerStore):
    capabilities = CAPABILITIES

    async def _change(self, party_id: PartyId, operation: Callable[[PartyLedger], T]) -> T:
        if self._emptied:
            for over in self._over(1):
                self._forget(over)
        ledger = self._ledgers.get(party_id) or self._ledger(party_id)
        result = operation(ledger)
        entries = ledger.new_entries()
        if self._emptied or not ledger.sessions:
            self._note_size(ledger)
        if entries:
            self._tell_entries(party_id, entries)
        return result
