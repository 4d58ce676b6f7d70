"""The presence store on LMDB: ledgers in memory, every change on disk before it is answered.

Rule 1: a party has a lane. What arrives while a change of the party is being written is applied
        and written together with the next one; so a party needs one commit at a time, and all
        parties share them (the writer's group commit).
Rule 2: entries are told, and results are given out, after the commit.
Rule 3: what could not be written did not happen: the ledger is read again from the disk, and
        everybody in the lane is told so.
Rule 4: positions of sessions are written now and then, without anybody waiting.
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


class _Waiting(NamedTuple):
    operation: Callable[[PartyLedger], Any]
    future: asyncio.Future[Any]


class _Lane:
    __slots__ = ("waiting", "writing")

    def __init__(self) -> None:
        self.waiting: list[_Waiting] = []
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
        self._lanes: dict[PartyId, _Lane] = {}
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
                    lost += ledger.lost_with_the_process(now_ms, self._restart_ttl_min_ms)
                    self._note_size(ledger)
        except STORE_ERRORS as exc:
            raise store_error(exc) from exc
        return lost

    # --- changes ---------------------------------------------------------------------------------

    async def _change(self, party_id: PartyId, operation: Callable[[PartyLedger], T]) -> T:
        lane = self._lanes.get(party_id)
        if lane is None:
            lane = self._lanes[party_id] = _Lane()
        future: asyncio.Future[T] = self._loop.create_future()
        lane.waiting.append(_Waiting(operation, future))
        if not lane.writing:
            self._apply(party_id, lane)
        return await future

    def _apply(self, party_id: PartyId, lane: _Lane) -> None:
        """Everything that waits, as one change of the party."""
        batch, lane.waiting = lane.waiting, []
        ledger = self._ledger(party_id)
        try:
            results = [one.operation(ledger) for one in batch]
            changes = ledger.changes()
            if not changes:
                self._end_lane(party_id, lane)
                for one, result in zip(batch, results, strict=True):
                    _resolve(one.future, result)
                return
            rows = rows_of(ledger, changes, self._log_max)
            grows = any(entry.kind is not MessageType.LEAVE for entry in changes.entries)
            write = partial(self._write, party_id, rows, anew=changes.epoch_began)
            written = self._writer.submit(write, grows=grows)
        except Exception as exc:
            self._undo(party_id, lane, batch, exc)
            return
        lane.writing = True
        entries = changes.entries

        def done(future: asyncio.Future[None]) -> None:
            lane.writing = False
            error = None if future.cancelled() else future.exception()
            if error is not None:
                assert isinstance(error, Exception)
                self._undo(party_id, lane, batch, error)
                return
            self._note_size(ledger)
            self._tell_entries(party_id, entries)
            for one, result in zip(batch, results, strict=True):
                _resolve(one.future, result)
            if lane.waiting:
                self._apply(party_id, lane)
            else:
                self._end_lane(party_id, lane)

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

    def _end_lane(self, party_id: PartyId, lane: _Lane) -> None:
        if not lane.waiting and self._lanes.get(party_id) is lane:
            del self._lanes[party_id]
        ledger = self._ledgers.get(party_id)
        if ledger is not None and not ledger.epoch:
            del self._ledgers[party_id]  # somebody asked, and nobody came

    def _undo(
        self, party_id: PartyId, lane: _Lane, batch: list[_Waiting], error: Exception
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
        if lane.waiting:
            self._apply(party_id, lane)
        else:
            self._end_lane(party_id, lane)

    async def save_cursors(self, rows: Sequence[CursorRow]) -> None:
        kept = [
            row
            for row in rows
            if (ledger := self._ledgers.get(row.key.party_id)) and ledger.save_cursor(row)
        ]
        if kept:
            await self._writer.submit(lambda txn: self._tables.save_cursors(txn, kept), grows=False)

    async def _settled(self, party_id: PartyId) -> None:
        while party_id in self._lanes:  # noqa: ASYNC110 a commit has no event of its own
            await asyncio.sleep(SETTLE_LOOK_S)

    async def give_up(self, party_id: PartyId) -> None:
        await self._writer.submit(lambda txn: self._tables.forget(txn, party_id), grows=False)
        await super().give_up(party_id)

    async def _forget_empty(self, limit: int) -> None:
        over = [party_id for party_id in self._over(limit) if party_id not in self._lanes]
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
