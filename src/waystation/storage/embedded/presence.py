"""The presence store on LMDB: parties in memory, every change on disk before it is acknowledged.

Rule 1: operations that arrive while a change of their party is being written are applied and
        written together afterwards. So a party needs one commit at a time, and all parties share
        commits (the writer's group commit).
Rule 2: subscribers and callers get entries and results after the commit.
Rule 3: if a commit fails, the ledger is read from disk again, and the batch's operations fail.
Rule 4: cursors of sessions are written periodically; no client waits for that.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import lmdb
import msgspec

from waystation.base.clock import Clock
from waystation.presence.model import MessageType, PartyId, SessionRecord
from waystation.presence.store import CursorRow, Owner, PartyListener
from waystation.storage.embedded.backend import CAPABILITIES
from waystation.storage.embedded.environment import STORE_ERRORS, Environment, store_error
from waystation.storage.embedded.free_space import FreeSpace
from waystation.storage.embedded.presence_rows import FORMAT, TABLES, PartyTables, Row, rows_of
from waystation.storage.embedded.writer import Writer, WriterStats
from waystation.storage.memory.presence import LedgerStore
from waystation.storage.memory.presence_ledger import PartyLedger
from waystation.storage.settings import Store

T = TypeVar("T")
SETTLE_LOOK_S: Final = 0.002


class _Operation(NamedTuple):
    apply: Callable[[PartyLedger], Any]
    future: asyncio.Future[Any]


class _PendingChanges:
    __slots__ = ("waiting", "writing")

    def __init__(self) -> None:
        self.waiting: list[_Operation] = []
        self.writing = False


class EmbeddedPresenceStore(LedgerStore):
    """One directory on a local disk, for one process."""

    capabilities = msgspec.structs.replace(CAPABILITIES, shared_by_processes=False)

    def __init__(
        self,
        env: Environment,
        writer: Writer,
        clock: Clock,
        *,
        log_max: int,
        linger_s: float,
        restart_ttl_min_s: float,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(clock, log_max=log_max, linger_s=linger_s)
        self._env = env
        self._writer = writer
        self._tables = PartyTables(env)
        self._restart_ttl_min_ms = round(restart_ttl_min_s * 1000)
        self._loop = loop
        self._pending: dict[PartyId, _PendingChanges] = {}
        self._closed = False

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        settings: Store,
        clock: Clock,
        log_max: int = 4096,
        linger_s: float = 60.0,
        restart_ttl_min_s: float = 30.0,
    ) -> "EmbeddedPresenceStore":
        loop = asyncio.get_running_loop()
        env = Environment.open(path, form=FORMAT, tables=TABLES, settings=settings)
        writer = Writer(
            env,
            FreeSpace(env, disk_reserve_bytes=settings.disk_reserve_bytes),
            commit_batch_max=settings.commit_batch_max,
            queue_max=settings.queue_max,
            loop=loop,
        )
        return cls(
            env,
            writer,
            clock,
            log_max=log_max,
            linger_s=linger_s,
            restart_ttl_min_s=restart_ttl_min_s,
            loop=loop,
        )

    def stats(self) -> WriterStats:
        return self._writer.stats

    async def start(self, owner: Owner, listener: PartyListener) -> Sequence[SessionRecord]:
        await super().start(owner, listener)
        now_ms = self._clock.now_ms()
        lost: list[SessionRecord] = []
        try:
            with self._env.lmdb.begin() as txn:
                for party_id in self._tables.party_ids(txn):
                    ledger = self._ledger(party_id)
                    self._tables.load(txn, ledger)
                    lost += ledger.detach_all(now_ms, self._restart_ttl_min_ms)
                    self._note_size(ledger)
        except STORE_ERRORS as exc:
            raise store_error(exc) from exc
        return lost

    # --- changes ---------------------------------------------------------------------------------

    async def _change(self, party_id: PartyId, operation: Callable[[PartyLedger], T]) -> T:
        pending = self._pending.get(party_id)
        if pending is None:
            pending = self._pending[party_id] = _PendingChanges()
        future: asyncio.Future[T] = self._loop.create_future()
        pending.waiting.append(_Operation(operation, future))
        if not pending.writing:
            self._apply(party_id, pending)
        return await future

    def _apply(self, party_id: PartyId, pending: _PendingChanges) -> None:
        """Applies all waiting operations as one change of the party."""
        batch, pending.waiting = pending.waiting, []
        ledger = self._ledger(party_id)
        try:
            results = [one.apply(ledger) for one in batch]
            changes = ledger.changes()
            if not changes:
                self._end_pending(party_id, pending)
                for one, result in zip(batch, results, strict=True):
                    _resolve(one.future, result)
                return
            rows = rows_of(ledger, changes, self._log_max)
            grows = any(entry.kind is not MessageType.LEAVE for entry in changes.entries)
            write = partial(self._write, party_id, rows, anew=changes.epoch_began)
            written = self._writer.submit(write, grows=grows)
        except Exception as exc:
            self._undo(party_id, pending, batch, exc)
            return
        pending.writing = True
        entries = changes.entries

        def done(future: asyncio.Future[None]) -> None:
            pending.writing = False
            error = None if future.cancelled() else future.exception()
            if error is not None:
                assert isinstance(error, Exception)
                self._undo(party_id, pending, batch, error)
                return
            self._note_size(ledger)
            self._tell_entries(party_id, entries)
            for one, result in zip(batch, results, strict=True):
                _resolve(one.future, result)
            if pending.waiting:
                self._apply(party_id, pending)
            else:
                self._end_pending(party_id, pending)

        written.add_done_callback(done)

    def _write(
        self,
        party_id: PartyId,
        rows: Sequence[Row],
        txn: "lmdb.Transaction[bytes]",
        *,
        anew: bool,
    ) -> None:
        if anew:
            self._tables.clear_log(txn, party_id)
        self._tables.write(txn, rows)

    def _end_pending(self, party_id: PartyId, pending: _PendingChanges) -> None:
        if not pending.waiting and self._pending.get(party_id) is pending:
            del self._pending[party_id]
        ledger = self._ledgers.get(party_id)
        if ledger is not None and not ledger.epoch:
            del self._ledgers[party_id]  # looked up, but no session joined

    def _undo(
        self, party_id: PartyId, pending: _PendingChanges, batch: list[_Operation], error: Exception
    ) -> None:
        self._ledgers.pop(party_id, None)
        try:
            with self._env.lmdb.begin() as txn:
                ledger = self._ledger(party_id)
                if not self._tables.load(txn, ledger):
                    del self._ledgers[party_id]
        except STORE_ERRORS as exc:
            error = store_error(exc)
        for one in batch:
            if not one.future.done():
                one.future.set_exception(error)
        if pending.waiting:
            self._apply(party_id, pending)
        else:
            self._end_pending(party_id, pending)

    async def save_cursors(self, rows: Sequence[CursorRow]) -> None:
        kept = [
            row
            for row in rows
            if (ledger := self._ledgers.get(row.key.party_id)) and ledger.save_cursor(row)
        ]
        if kept:
            await self._writer.submit(lambda txn: self._tables.save_cursors(txn, kept), grows=False)

    async def _settled(self, party_id: PartyId) -> None:
        while party_id in self._pending:  # noqa: ASYNC110 a commit has no event of its own
            await asyncio.sleep(SETTLE_LOOK_S)

    async def give_up(self, party_id: PartyId) -> None:
        await self._writer.submit(lambda txn: self._tables.forget(txn, party_id), grows=False)
        await super().give_up(party_id)

    async def _forget_empty(self, limit: int) -> None:
        over = [party_id for party_id in self._over(limit) if party_id not in self._pending]
        if not over:
            return
        for party_id in over:
            self._forget(party_id)

        def write(txn: "lmdb.Transaction[bytes]") -> None:
            for party_id in over:
                self._tables.forget(txn, party_id)

        await self._writer.submit(write, grows=False)

    # --- the end ---------------------------------------------------------------------------------

    async def check(self) -> None:
        try:
            with self._env.lmdb.begin() as txn:
                self._env.used_pages(txn)
        except STORE_ERRORS as exc:
            raise store_error(exc) from exc

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._writer.close()
            self._env.close()
            await super().close()


def _resolve(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)
