"""Checks every row of an embedded queue store, and reads its rows for a backup.

Rows of a queue depend on each other (its messages are numbered without gaps), so a backup reads one
slot per read transaction: each slot is consistent, and no transaction is long. The check compares
a row with related rows in the transaction that read it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from waystation.queue.model import Queue, RecipientId
from waystation.storage.embedded import queue_layout as layout
from waystation.storage.embedded.backup_file import Entry
from waystation.storage.embedded.check import Look, Report, check_rows, chunks
from waystation.storage.embedded.environment import Environment
from waystation.storage.embedded.queue_slots import QueueSlots

if TYPE_CHECKING:
    import lmdb

Txn: TypeAlias = "lmdb.Transaction[bytes]"


def queue_rows(env: Environment) -> Iterator[Entry]:
    slots = QueueSlots(env)
    for slot in slots.held():
        with env.lmdb.begin() as txn:
            for row in slots.rows(txn, slot):
                assert row.value is not None, "a stored row has a value"
                yield layout.TABLES[row.table], row.key, row.value
    for table in ("pending", "services"):
        for _, rows in chunks(env, table):
            for key, value in rows:
                yield table, key, value


def check_queue_store(env: Environment) -> Report:
    report = Report()
    return check_rows(env, layout.TABLES, _Checks(env, report).of, report)


class _Checks:
    """The checks of one row, per table, within one transaction."""

    def __init__(self, env: Environment, report: Report) -> None:
        self._tables = env.tables
        self._report = report

    def of(self, table: str) -> Look:
        return getattr(self, f"_{table}")

    def _queues(self, txn: Txn, key: bytes, value: bytes) -> None:
        queue = layout.decode_queue(RecipientId(key), value, None)
        leads: list[tuple[str, bytes]] = [("senders", queue.sender_id)]
        notifier = queue.notifier
        if notifier is not None:
            leads.append(("notifiers", notifier.notifier_id))
            if notifier.service_id is not None:
                leads.append(("service_notifiers", notifier.service_id + notifier.notifier_id))
        link_id = layout.link_id_of(value)
        if link_id is not None:
            leads.append(("links", link_id))
        if queue.service_id is not None:
            leads.append(("service_queues", queue.service_id + key))
        for table, entity_id in leads:
            row = self._get(txn, table, entity_id)
            if row is None or not row.startswith(key):
                self._report.problem("queues", key, f"no row in {table} refers to it")

    def _lines(self, txn: Txn, key: bytes, value: bytes) -> None:
        line = layout.decode_line(value)
        if line.size <= 0:
            self._report.problem("lines", key, "is empty; empty queues have no row")
        if self._get(txn, "queues", key) is None:
            self._report.problem("lines", key, "has no queue")
        for number in range(line.first, line.next):
            if self._get(txn, "messages", layout.message_key(RecipientId(key), number)) is None:
                self._report.problem("lines", key, "has a gap in its messages")
                return

    def _messages(self, txn: Txn, key: bytes, value: bytes) -> None:
        layout.decode_message(value)
        recipient_id, number = layout.split_message_key(key)
        line = layout.decode_line(self._get(txn, "lines", recipient_id))
        if not line.first <= number < line.next:
            self._report.problem("messages", key, "has a number outside its queue's range")

    def _refs(self, txn: Txn, key: bytes, value: bytes) -> None:
        if not 0 <= layout.decode_ref(value).home < 4096:
            self._report.problem("refs", key, "has an invalid slot")

    def _grants(self, txn: Txn, key: bytes, value: bytes) -> None:
        if self._get(txn, "queues", key) is None:
            self._report.problem("grants", key, "has no queue")

    def _senders(self, txn: Txn, key: bytes, value: bytes) -> None:
        queue = self._led(txn, "senders", key, value)
        if queue is not None and queue.sender_id != key:
            self._report.problem("senders", key, "refers to a queue with another sender")

    def _notifiers(self, txn: Txn, key: bytes, value: bytes) -> None:
        queue = self._led(txn, "notifiers", key, value)
        if queue is not None and (queue.notifier is None or queue.notifier.notifier_id != key):
            self._report.problem("notifiers", key, "refers to a queue with another notifier")

    def _links(self, txn: Txn, key: bytes, value: bytes) -> None:
        layout.decode_link(key, value)
        row = self._get(txn, "queues", value[: layout.ID_BYTES])
        if row is None or layout.link_id_of(row) != key:
            self._report.problem("links", key, "refers to a queue without this link")

    def _pending(self, txn: Txn, key: bytes, value: bytes) -> None:
        layout.decode_pending(value)

    def _services(self, txn: Txn, key: bytes, value: bytes) -> None:
        layout.decode_service(value)

    def _service_queues(self, txn: Txn, key: bytes, value: bytes) -> None:
        queue = self._led(txn, "service_queues", key, value)
        if queue is not None and (queue.service_id or b"") + queue.recipient_id != key:
            self._report.problem("service_queues", key, "refers to a queue of another service")

    def _service_notifiers(self, txn: Txn, key: bytes, value: bytes) -> None:
        queue = self._led(txn, "service_notifiers", key, value)
        notifier = None if queue is None else queue.notifier
        if queue is None:
            return
        if notifier is None or (notifier.service_id or b"") + notifier.notifier_id != key:
            self._report.problem("service_notifiers", key, "refers to another service's notifier")

    def _led(self, txn: Txn, table: str, key: bytes, recipient_id: bytes) -> Queue | None:
        row = self._get(txn, "queues", recipient_id)
        if row is None:
            self._report.problem(table, key, "refers to no queue")
            return None
        return layout.decode_queue(RecipientId(recipient_id), row, None)

    def _get(self, txn: Txn, table: str, key: bytes) -> bytes | None:
        return txn.get(key, db=self._tables[table])
