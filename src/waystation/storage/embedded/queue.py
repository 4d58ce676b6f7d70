"""The queue store on LMDB: reads in the loop, writes through the group-commit writer.

A write is on disk when its call returns. `find`, `head` and the other reads complete without
suspending and take a few microseconds, so idle queues use no memory.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from waystation.base.errors import UnavailableError
from waystation.queue.errors import QueueStoreUnavailableError
from waystation.queue.model import (
    AuthKey,
    Blocking,
    Fingerprint,
    Link,
    Message,
    MessageId,
    Notifier,
    NotifierId,
    Queue,
    RecipientId,
    Service,
    ServiceId,
    ServiceRole,
    SessionId,
    Slot,
    Standing,
    slot_of,
)
from waystation.queue.store import (
    Acknowledged,
    Appended,
    Counts,
    Deleted,
    Expired,
    NotifierChange,
    Party,
    PendingNotification,
    Ref,
    Referenced,
    RefKind,
    Row,
    Sink,
    SlotLoad,
)
from waystation.storage.embedded import queue_layout as layout
from waystation.storage.embedded.backend import CAPABILITIES
from waystation.storage.embedded.environment import STORE_ERRORS, Environment, store_error
from waystation.storage.embedded.free_space import FreeSpace
from waystation.storage.embedded.queue_change_feed import ChangeFeed
from waystation.storage.embedded.queue_changes import AppendTerms, QueueChanges, read_queue
from waystation.storage.embedded.queue_slots import QueueSlots
from waystation.storage.embedded.writer import Operation, Writer, WriterStats
from waystation.storage.settings import Store

P = ParamSpec("P")
T = TypeVar("T")

_PORTION = 1000  # messages that one operation may remove, so that other writes run between portions


class EmbeddedQueueStore:
    """One directory on a local disk, for one process."""

    capabilities = CAPABILITIES

    def __init__(self, env: Environment, writer: Writer) -> None:
        self.env = env
        self._writer = writer
        self._changes = QueueChanges(env)
        self._begin = env.lmdb.begin
        self._queues = env.tables["queues"]
        self._links = env.tables["links"]
        self._lines = env.tables["lines"]
        self._messages = env.tables["messages"]
        self._ids = {
            Party.SENDER: env.tables["senders"],
            Party.NOTIFIER: env.tables["notifiers"],
            Party.LINK: env.tables["links"],
        }
        self._slots = QueueSlots(env)
        self._refs = env.tables["refs"]
        self._feed = ChangeFeed(env, writer)
        self._sink: Sink | None = None
        self._closed = False

    @classmethod
    async def open(cls, path: Path, *, settings: Store) -> "EmbeddedQueueStore":
        """Open or create the store in the directory `path`; once per process."""
        try:
            env = Environment.open(
                path, form=layout.FORMAT, tables=layout.TABLES, settings=settings
            )
        except UnavailableError as exc:
            raise QueueStoreUnavailableError(str(exc)) from exc
        writer = Writer(
            env,
            FreeSpace(env, disk_reserve_bytes=settings.disk_reserve_bytes),
            commit_batch_max=settings.commit_batch_max,
            queue_max=settings.queue_max,
            loop=asyncio.get_running_loop(),
        )
        return cls(env, writer)

    def stats(self) -> WriterStats:
        """Counters of the writer: operations, commits, time in commits, refusals."""
        return self._writer.stats

    # Queues

    async def find(self, party: Party, entity_id: bytes) -> Queue | None:
        if len(entity_id) != layout.ID_BYTES:
            return None
        return self._read(self._find, party, entity_id)

    async def create(self, queue: Queue) -> bool:
        return await self._grow(partial(self._changes.create, queue))

    async def secure(self, recipient_id: RecipientId, key: AuthKey) -> bool:
        return await self._change(partial(self._changes.secure, recipient_id, key))

    async def set_recipient_keys(
        self, recipient_id: RecipientId, keys: tuple[AuthKey, ...]
    ) -> bool:
        return await self._grow(partial(self._changes.set_recipient_keys, recipient_id, keys))

    async def set_link(self, recipient_id: RecipientId, link: Link) -> bool:
        return await self._grow(partial(self._changes.set_link, recipient_id, link))

    async def drop_link(self, recipient_id: RecipientId) -> bool:
        return await self._change(partial(self._changes.drop_link, recipient_id))

    async def set_notifier(self, recipient_id: RecipientId, notifier: Notifier) -> NotifierChange:
        return await self._grow(partial(self._changes.set_notifier, recipient_id, notifier))

    async def drop_notifier(self, recipient_id: RecipientId) -> NotifierChange:
        return await self._change(partial(self._changes.drop_notifier, recipient_id))

    async def suspend(self, recipient_id: RecipientId) -> bool:
        return await self._change(partial(self._changes.stand, recipient_id, Standing.OFF, None))

    async def block(self, recipient_id: RecipientId, blocking: Blocking) -> bool:
        stand = partial(self._changes.stand, recipient_id, Standing.BLOCKED, blocking)
        return await self._change(stand)

    async def unblock(self, recipient_id: RecipientId) -> bool:
        stand = partial(
            self._changes.stand,
            recipient_id,
            Standing.ACTIVE,
            None,
            only_from=Standing.BLOCKED,
        )
        return await self._change(stand)

    async def touch(self, recipient_id: RecipientId, day_s: int) -> None:
        await self._change(partial(self._changes.touch, recipient_id, day_s))

    async def delete(self, recipient_id: RecipientId) -> Deleted | None:
        return await self._change(partial(self._changes.delete, recipient_id))

    # Services

    async def register_service(
        self, fingerprint: Fingerprint, service: Service, *, limit: int
    ) -> Service | None:
        register = partial(self._changes.register_service, fingerprint, service, limit)
        return await self._grow(register)

    async def set_queue_service(
        self, recipient_id: RecipientId, service_id: ServiceId | None
    ) -> bool:
        return await self._grow(partial(self._changes.set_queue_service, recipient_id, service_id))

    async def set_notifier_service(
        self, recipient_id: RecipientId, notifier_id: NotifierId, service_id: ServiceId | None
    ) -> bool:
        return await self._grow(
            partial(self._changes.set_notifier_service, recipient_id, notifier_id, service_id)
        )

    async def count_notifiers(self, service_id: ServiceId) -> int:
        return await self._change(partial(self._changes.count_notifiers, service_id))

    # Messages

    async def append(
        self,
        recipient_id: RecipientId,
        message: Message,
        *,
        quota: int,
        day_s: int,
        expire_before_s: int | None = None,
    ) -> Appended:
        terms = AppendTerms(quota, day_s, expire_before_s)
        return await self._grow(partial(self._changes.append, recipient_id, message, terms))

    async def head(self, recipient_id: RecipientId) -> Message | None:
        return self._read(self._head, recipient_id)

    async def size(self, recipient_id: RecipientId) -> int:
        return self._read(self._line, recipient_id).size

    async def acknowledge(
        self, recipient_id: RecipientId, message_id: MessageId
    ) -> Acknowledged | None:
        return await self._change(partial(self._changes.acknowledge, recipient_id, message_id))

    # Upkeep

    async def expire(
        self,
        *,
        before_s: int,
        after: RecipientId | None,
        limit: int,
        only: Callable[[Slot], bool] | None = None,
    ) -> Expired:
        by_slot: dict[Slot, int] = {}
        left = limit
        while left > 0:
            portion = min(left, _PORTION)
            step = partial(self._changes.expire, before_s, after, portion, only)
            expired = await self._change(step)
            for slot, removed in expired.by_slot.items():
                by_slot[slot] = by_slot.get(slot, 0) + removed
            after = expired.after
            if after is None:
                break
            left -= portion
        return Expired(by_slot, after)

    async def scan(
        self, slot: Slot, *, after: RecipientId | None, limit: int
    ) -> Sequence[RecipientId]:
        return self._read(self._scan, slot, after, limit)

    async def counts(self) -> Counts:
        return self._read(self._counts)

    async def slot_load(self, slot: Slot) -> SlotLoad:
        return self._read(self._slots.load, slot)

    async def save_pending(self, notifications: Sequence[PendingNotification]) -> None:
        await self._change(partial(self._changes.save_pending, tuple(notifications)))

    async def take_pending(self) -> Sequence[PendingNotification]:
        return await self._change(self._changes.take_pending)

    # Slots as rows, and references

    async def read_rows(
        self, slot: Slot, *, after: tuple[int, bytes] | None, limit_bytes: int
    ) -> Sequence[Row]:
        return self._read(self._slots.read, slot, after, limit_bytes)

    async def apply_rows(self, slot: Slot, rows: Sequence[Row], *, erase: bool = False) -> None:
        if erase:
            await self.erase_slot(slot)
        if rows:
            await self._untapped(partial(self._slots.apply, tuple(rows)), grows=True)

    async def erase_slot(self, slot: Slot) -> None:
        while await self._untapped(partial(self._slots.erase, slot), grows=False):
            pass

    async def held_slots(self) -> Sequence[Slot]:
        return self._read(self._slots.held)

    def tap(self, sink: Sink | None) -> None:
        self._sink = sink

    async def set_ref(self, kind: RefKind, entity_id: bytes, ref: Ref) -> bool:
        # The queue may be on another server, which needs this reference to create it. The row
        # is small enough for the reserve.
        return await self._change(partial(self._changes.set_ref, kind, entity_id, ref))

    async def write_refs(self, slot: Slot, *, after: RecipientId | None, limit: int) -> Referenced:
        return await self._grow(partial(self._slots.write_refs, slot, after, limit))

    async def get_ref(self, kind: RefKind, entity_id: bytes) -> Ref | None:
        return self._read(self._ref, kind, entity_id)

    async def drop_ref(self, kind: RefKind, entity_id: bytes, tx_id: bytes | None) -> bool:
        return await self._change(partial(self._changes.drop_ref, kind, entity_id, tx_id))

    async def refs_of(
        self, slot: Slot, *, after: tuple[RefKind, bytes] | None, limit: int
    ) -> Sequence[tuple[RefKind, bytes, Ref]]:
        return self._read(self._slots.refs, slot, after, limit)

    async def set_grant(self, recipient_id: RecipientId, session_id: SessionId) -> None:
        await self._change(partial(self._changes.set_grant, recipient_id, session_id))

    async def get_grant(self, recipient_id: RecipientId) -> SessionId | None:
        return self._read(self._grant, recipient_id)

    async def check(self) -> None:
        if self._closed:
            raise QueueStoreUnavailableError("the store is closed")
        self._read(self._head, RecipientId(bytes(layout.ID_BYTES)))

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._writer.close()
            self.env.close()

    # Inside

    def _read(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return read(*args, **kwargs)
        except STORE_ERRORS as exc:
            raise QueueStoreUnavailableError(str(store_error(exc))) from exc

    async def _change(self, operation: Operation[T], *, grows: bool = False) -> T:
        try:
            if self._sink is None:
                return await self._writer.submit(operation, grows=grows)
            return await self._feed.submit(operation, self._sink, grows=grows)
        except UnavailableError as exc:
            raise QueueStoreUnavailableError(str(exc)) from exc

    async def _grow(self, operation: Operation[T]) -> T:
        return await self._change(operation, grows=True)

    async def _untapped(self, operation: Operation[T], *, grows: bool) -> T:
        try:
            return await self._writer.submit(operation, grows=grows)
        except UnavailableError as exc:
            raise QueueStoreUnavailableError(str(exc)) from exc

    def _grant(self, recipient_id: RecipientId) -> SessionId | None:
        with self._begin(self.env.tables["grants"]) as txn:
            value = txn.get(recipient_id)
        return None if value is None else SessionId(value)

    def _ref(self, kind: RefKind, entity_id: bytes) -> Ref | None:
        with self._begin(self._refs) as txn:
            value = txn.get(layout.ref_key(kind, entity_id))
        return None if value is None else layout.decode_ref(value)

    def _find(self, party: Party, entity_id: bytes) -> Queue | None:
        """Takes the same time for unknown ids as for known ones (queues §5.9): the same number of
        reads, and a decoded record."""
        with self._begin(self._queues) as txn:
            recipient_id, is_known = entity_id, True
            if party is not Party.RECIPIENT:
                leads_to = txn.get(entity_id, db=self._ids[party])
                is_known = leads_to is not None
                recipient_id = (leads_to or entity_id)[: layout.ID_BYTES]

            def link(link_id: bytes) -> bytes | None:
                return txn.get(link_id, db=self._links)

            row = txn.get(recipient_id)
            queue = read_queue(RecipientId(recipient_id), row or layout.NOBODYS_RECORD, link)
        return queue if is_known and row is not None else None

    def _line(self, recipient_id: RecipientId) -> layout.MessageRange:
        with self._begin(self._lines) as txn:
            return layout.decode_line(txn.get(recipient_id))

    def _head(self, recipient_id: RecipientId) -> Message | None:
        with self._begin(self._lines) as txn:
            row = txn.get(recipient_id)
            if row is None:
                return None
            key = layout.message_key(recipient_id, layout.decode_line(row).first)
            value = txn.get(key, db=self._messages)
        assert value is not None, "message numbers of a queue have no gaps"
        return layout.decode_message(value)

    def _scan(self, slot: Slot, after: RecipientId | None, limit: int) -> list[RecipientId]:
        first = bytes((slot >> 4, (slot & 15) << 4))
        found: list[RecipientId] = []
        with self._begin(self._queues) as txn, txn.cursor() as cursor:
            there = cursor.set_range(first if after is None else after + b"\0")
            while there and len(found) < limit and slot_of(cursor.key()) == slot:
                found.append(RecipientId(cursor.key()))
                there = cursor.next()
        return found

    def _counts(self) -> Counts:
        tables = self.env.tables
        with self._begin() as txn:
            with txn.cursor(tables["services"]) as cursor:
                roles = [layout.decode_service(value).role for _, value in cursor]
            return Counts(
                queues=txn.stat(self._queues)["entries"],
                messages=txn.stat(self._messages)["entries"],
                notifiers=txn.stat(self._ids[Party.NOTIFIER])["entries"],
                recipient_services=roles.count(ServiceRole.MESSAGING),
                notifier_services=roles.count(ServiceRole.NOTIFIER),
                service_queues=txn.stat(tables["service_queues"])["entries"],
                service_notifiers=txn.stat(tables["service_notifiers"])["entries"],
            )
