"""Reads, applies and erases the rows of a slot of the queue store, and records changes by slot.

In `queues`, `lines`, `messages`, `refs` and `grants` a slot is a key range. Index rows of senders,
notifiers, links and services are not; each is read just before the record that names it, so the
last row of a chunk is always a position to continue from.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import lmdb

from waystation.queue.model import RecipientId, RefKind, Slot, slot_of
from waystation.queue.store import Ref, Referenced, Row, SlotLoad
from waystation.storage.embedded import queue_layout as layout
from waystation.storage.embedded.environment import Database, Environment
from waystation.storage.embedded.writer import WriteTransaction

RANGED: Final = ("queues", "lines", "messages", "refs", "grants")
# Their values begin with the recipient id.
_LEADING: Final = ("senders", "notifiers", "links", "service_queues", "service_notifiers")
_UNSLOTTED: Final = ("pending", "services")
_ERASE_PORTION: Final = 1000
OLDER_THAN_THE_CLUSTER: Final = bytes(16)  # in place of the transaction that created the queue


class QueueSlots:
    def __init__(self, env: Environment) -> None:
        self._tables = [env.tables[name] for name in layout.TABLES]
        self._index = {name: n for n, name in enumerate(layout.TABLES)}
        self._env = env

    def read(self, slot: Slot, after: tuple[int, bytes] | None, limit_bytes: int) -> list[Row]:
        rows: list[Row] = []
        size = 0
        with self._env.lmdb.begin() as txn:
            for row in self.rows(txn, slot, after):
                rows.append(row)
                size += len(row.key) + len(row.value or b"")
                if size >= limit_bytes and row.table < len(RANGED):
                    break
        return rows

    def held(self) -> list[Slot]:
        slots: set[Slot] = set()
        with self._env.lmdb.begin() as txn:
            for name in ("queues", "refs"):
                with txn.cursor(self._env.tables[name]) as cursor:
                    there = cursor.first()
                    while there:
                        slot = slot_of(cursor.key())
                        slots.add(slot)
                        there = slot < 4095 and cursor.set_range(_first(Slot(slot + 1)))
        return sorted(slots)

    def refs(
        self, slot: Slot, after: tuple[RefKind, bytes] | None, limit: int
    ) -> list[tuple[RefKind, bytes, Ref]]:
        found: list[tuple[RefKind, bytes, Ref]] = []
        start = _first(slot) if after is None else layout.ref_key(*after) + b"\0"
        with (
            self._env.lmdb.begin() as txn,
            txn.cursor(self._env.tables["refs"]) as cursor,
        ):
            there = cursor.set_range(start)
            while there and len(found) < limit and slot_of(cursor.key()) == slot:
                kind, entity_id = layout.ref_of(cursor.key())
                found.append((kind, entity_id, layout.decode_ref(cursor.value())))
                there = cursor.next()
        return found

    def load(self, slot: Slot) -> SlotLoad:
        """Counts keys only; values are not copied."""
        counts = dict.fromkeys(("queues", "messages"), 0)
        size = 0
        with self._env.lmdb.begin(buffers=True) as txn:
            for name in counts:
                with txn.cursor(self._env.tables[name]) as cursor:
                    there = cursor.set_range(_first(slot))
                    while there and slot_of(bytes(cursor.key()[:2])) == slot:
                        counts[name] += 1
                        size += len(cursor.value())
                        there = cursor.next()
        return SlotLoad(counts["queues"], counts["messages"], size)

    def apply(self, rows: Sequence[Row], txn: WriteTransaction) -> None:
        for row in rows:
            if row.value is None:
                txn.delete(row.key, db=self._tables[row.table])
            else:
                txn.put(row.key, row.value, db=self._tables[row.table])

    def erase(self, slot: Slot, txn: WriteTransaction) -> bool:
        """Remove a portion; returns whether there may be more."""
        for gone, row in enumerate(self.rows(txn, slot)):
            if gone == _ERASE_PORTION:
                return True
            txn.delete(row.key, db=self._tables[row.table])
        return False

    def write_refs(
        self, slot: Slot, after: RecipientId | None, limit: int, txn: WriteTransaction
    ) -> Referenced:
        wanted: list[bytes] = []
        last, looked = after, 0
        with txn.cursor(self._env.tables["queues"]) as cursor:
            there = cursor.set_range(_first(slot) if after is None else after + b"\0")
            while there and looked < limit and slot_of(cursor.key()) == slot:
                last, looked = RecipientId(cursor.key()), looked + 1
                wanted += [
                    layout.ref_key(kind, entity_id)
                    for kind, entity_id in layout.ids_of(last, cursor.value())
                    if slot_of(entity_id) != slot
                ]
                there = cursor.next()
        ref = layout.encode_ref(Ref(slot, OLDER_THAN_THE_CLUSTER))
        for key in wanted:
            txn.put(key, ref, db=self._env.tables["refs"])
        return Referenced(len(wanted), last if looked == limit else None)

    def rows(self, txn: Any, slot: Slot, after: tuple[int, bytes] | None = None) -> Iterator[Row]:
        """The rows of the slot that this transaction sees."""
        table, key = after or (0, b"")
        for number in range(table, len(RANGED)):
            name = RANGED[number]
            start = key + b"\0" if number == table and key else _first(slot)
            with txn.cursor(self._env.tables[name]) as cursor:
                there = cursor.set_range(start)
                while there and slot_of(cursor.key()) == slot:
                    found, value = cursor.key(), cursor.value()
                    if name == "queues":
                        yield from self._leading(txn, RecipientId(found), value)
                    yield Row(number, found, value)
                    # The consumer of this iterator may have removed the row.
                    there = cursor.set_range(found + b"\0")

    def _leading(self, txn: Any, recipient_id: RecipientId, value: bytes) -> Iterator[Row]:
        queue = layout.decode_queue(recipient_id, value, None)
        link_id = layout.link_id_of(value)
        notifier = queue.notifier
        served = None if notifier is None else notifier.service_id
        for name, entity_id in (
            ("senders", queue.sender_id),
            ("notifiers", None if notifier is None else notifier.notifier_id),
            ("links", link_id),
            ("service_queues", queue.service_id and queue.service_id + recipient_id),
            ("service_notifiers", served and notifier and served + notifier.notifier_id),
        ):
            row = None if entity_id is None else txn.get(entity_id, db=self._env.tables[name])
            if entity_id is not None and row is not None and row.startswith(recipient_id):
                yield Row(self._index[name], entity_id, row)


class RecordedTransaction:
    """A transaction that records the changes made through it, by slot."""

    def __init__(self, txn: WriteTransaction, env: Environment) -> None:
        self._txn = txn
        self._names = {id(env.tables[name]): n for n, name in enumerate(layout.TABLES)}
        self._leading = {id(env.tables[name]) for name in _LEADING}
        self._unslotted = {id(env.tables[name]) for name in _UNSLOTTED}
        self.changes: list[tuple[Slot, Row]] = []

    def get(self, key: bytes, *, db: Database) -> bytes | None:
        return self._txn.get(key, db=db)

    def stat(self, db: Database) -> Mapping[str, Any]:
        return self._txn.stat(db)

    def cursor(self, db: Database) -> "lmdb.Cursor[bytes]":
        return self._txn.cursor(db)

    def drop(self, db: Database, delete: bool = True) -> None:
        assert id(db) in self._unslotted, "only tables without slots are cleared"
        self._txn.drop(db, delete=delete)

    def put(self, key: bytes, value: bytes, *, db: Database) -> bool:
        self._note(db, key, value, value)
        return self._txn.put(key, value, db=db)

    def delete(self, key: bytes, *, db: Database) -> bool:
        return self.pop(key, db=db) is not None

    def pop(self, key: bytes, *, db: Database) -> bytes | None:
        before = self._txn.pop(key, db=db)
        if before is not None:
            self._note(db, key, None, before)
        return before

    def _note(self, db: Database, key: bytes, value: bytes | None, leads_to: bytes) -> None:
        table = id(db)
        if table not in self._unslotted:
            slot = slot_of(leads_to if table in self._leading else key)
            self.changes.append((slot, Row(self._names[table], key, value)))


def _first(slot: Slot) -> bytes:
    return bytes((slot >> 4, (slot & 15) << 4))
