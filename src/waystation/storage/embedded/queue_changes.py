"""Write operations of the queue store in LMDB, for the group-commit writer.

Each operation checks its conditions in its transaction and changes nothing else, because the writer
may run it again.
"""

from collections.abc import Callable, Sequence

import msgspec

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
    QueueMode,
    RecipientId,
    Service,
    ServiceId,
    SessionId,
    Slot,
    Standing,
    slot_of,
)
from waystation.queue.store import (
    Acknowledged,
    Admission,
    Appended,
    Deleted,
    Expired,
    NotifierChange,
    PendingNotification,
    Ref,
    RefKind,
    admit,
    marker,
    may_link,
)
from waystation.storage.embedded import queue_layout as layout
from waystation.storage.embedded.environment import Environment
from waystation.storage.embedded.queue_layout import NO_MESSAGES, MessageRange
from waystation.storage.embedded.writer import WriteTransaction

_changed = msgspec.structs.replace
_NO_LINK = bytes(layout.ID_BYTES)
_REFUSED = Appended(Admission.REFUSED)


class AppendTerms(msgspec.Struct, frozen=True, gc=False):
    """Quota and times that apply to an append."""

    quota: int
    day_s: int
    expire_before_s: int | None


class QueueChanges:
    def __init__(self, env: Environment) -> None:
        self._queues = env.tables["queues"]
        self._senders = env.tables["senders"]
        self._notifiers = env.tables["notifiers"]
        self._links = env.tables["links"]
        self._lines = env.tables["lines"]
        self._messages = env.tables["messages"]
        self._pending = env.tables["pending"]
        self._refs = env.tables["refs"]
        self._grants = env.tables["grants"]
        self._services = env.tables["services"]
        self._service_queues = env.tables["service_queues"]
        self._service_notifiers = env.tables["service_notifiers"]

    # Queues

    def create(self, queue: Queue, txn: WriteTransaction) -> bool:
        link, notifier = queue.link, queue.notifier
        taken = (
            txn.get(queue.recipient_id, db=self._queues) is not None
            or txn.get(queue.sender_id, db=self._senders) is not None
            or (link is not None and txn.get(link.link_id, db=self._links) is not None)
            or (
                notifier is not None
                and txn.get(notifier.notifier_id, db=self._notifiers) is not None
            )
        )
        if taken:
            return False
        self._put(txn, queue)
        txn.put(queue.sender_id, queue.recipient_id, db=self._senders)
        if notifier is not None:
            txn.put(notifier.notifier_id, queue.recipient_id, db=self._notifiers)
        if link is not None:
            row = layout.encode_link(queue.recipient_id, link.data)
            txn.put(link.link_id, row, db=self._links)
        if queue.service_id is not None:
            key = queue.service_id + queue.recipient_id
            txn.put(key, queue.recipient_id, db=self._service_queues)
        return True

    def secure(self, recipient_id: RecipientId, key: AuthKey, txn: WriteTransaction) -> bool:
        queue = self._queue(txn, recipient_id)
        if queue is None or queue.sender_key not in (None, key):
            return False
        if queue.sender_key is None:
            self._put(txn, _changed(queue, sender_key=key))
        return True

    def set_recipient_keys(
        self, recipient_id: RecipientId, keys: tuple[AuthKey, ...], txn: WriteTransaction
    ) -> bool:
        queue = self._queue(txn, recipient_id)
        if queue is None or queue.mode is not QueueMode.CONTACT:
            return False
        self._put(txn, _changed(queue, recipient_keys=keys))
        return True

    def set_link(self, recipient_id: RecipientId, link: Link, txn: WriteTransaction) -> bool:
        queue = self._queue(txn, recipient_id)
        if queue is None or not may_link(queue, link):
            return False
        if queue.link is None:
            if txn.get(link.link_id, db=self._links) is not None:
                return False
            self._put(txn, _changed(queue, link=link))
        txn.put(link.link_id, layout.encode_link(recipient_id, link.data), db=self._links)
        return True

    def drop_link(self, recipient_id: RecipientId, txn: WriteTransaction) -> bool:
        queue = self._queue(txn, recipient_id)
        if queue is None:
            return False
        if queue.link is not None:
            txn.delete(queue.link.link_id, db=self._links)
            self._put(txn, _changed(queue, link=None))
        return True

    def set_notifier(
        self, recipient_id: RecipientId, notifier: Notifier, txn: WriteTransaction
    ) -> NotifierChange:
        queue = self._queue(txn, recipient_id)
        if queue is None or txn.get(notifier.notifier_id, db=self._notifiers) is not None:
            return NotifierChange(applied=False)
        change = self._drop_notifier(txn, queue)
        self._put(txn, _changed(queue, notifier=notifier))
        txn.put(notifier.notifier_id, recipient_id, db=self._notifiers)
        return change

    def drop_notifier(self, recipient_id: RecipientId, txn: WriteTransaction) -> NotifierChange:
        queue = self._queue(txn, recipient_id)
        if queue is None:
            return NotifierChange(applied=False)
        change = self._drop_notifier(txn, queue)
        if change.previous is not None:
            self._put(txn, _changed(queue, notifier=None))
        return change

    def stand(
        self,
        recipient_id: RecipientId,
        standing: Standing,
        blocking: Blocking | None,
        txn: WriteTransaction,
        *,
        only_from: Standing | None = None,
    ) -> bool:
        queue = self._queue(txn, recipient_id)
        if queue is None or (only_from is not None and queue.standing is not only_from):
            return False
        self._put(txn, _changed(queue, standing=standing, blocking=blocking))
        return True

    def touch(self, recipient_id: RecipientId, day_s: int, txn: WriteTransaction) -> None:
        row = txn.get(recipient_id, db=self._queues)
        if row is not None:
            txn.put(recipient_id, layout.on_day(row, day_s), db=self._queues)

    def delete(self, recipient_id: RecipientId, txn: WriteTransaction) -> Deleted | None:
        queue = self._queue(txn, recipient_id)
        if queue is None:
            return None
        txn.delete(recipient_id, db=self._queues)
        txn.delete(queue.sender_id, db=self._senders)
        self._drop_notifier(txn, queue)
        if queue.link is not None:
            txn.delete(queue.link.link_id, db=self._links)
        if queue.service_id is not None:
            txn.delete(queue.service_id + recipient_id, db=self._service_queues)
        txn.delete(recipient_id, db=self._grants)
        line = layout.decode_line(txn.pop(recipient_id, db=self._lines))
        for number in range(line.first, line.next):
            txn.delete(layout.message_key(recipient_id, number), db=self._messages)
        return Deleted(queue, line.size)

    # Services

    def register_service(
        self, fingerprint: Fingerprint, service: Service, limit: int, txn: WriteTransaction
    ) -> Service | None:
        known = txn.get(fingerprint, db=self._services)
        if known is not None:
            return layout.decode_service(known)
        if txn.stat(self._services)["entries"] >= limit:
            return None
        txn.put(fingerprint, layout.encode_service(service), db=self._services)
        return service

    def set_queue_service(
        self, recipient_id: RecipientId, service_id: ServiceId | None, txn: WriteTransaction
    ) -> bool:
        queue = self._queue(txn, recipient_id)
        if queue is None:
            return False
        if queue.service_id is not None:
            txn.delete(queue.service_id + recipient_id, db=self._service_queues)
        if service_id is not None:
            txn.put(service_id + recipient_id, recipient_id, db=self._service_queues)
        self._put(txn, _changed(queue, service_id=service_id))
        return True

    def set_notifier_service(
        self,
        recipient_id: RecipientId,
        notifier_id: NotifierId,
        service_id: ServiceId | None,
        txn: WriteTransaction,
    ) -> bool:
        queue = self._queue(txn, recipient_id)
        notifier = None if queue is None else queue.notifier
        if queue is None or notifier is None or notifier.notifier_id != notifier_id:
            return False
        if notifier.service_id is not None:
            txn.delete(notifier.service_id + notifier_id, db=self._service_notifiers)
        if service_id is not None:
            txn.put(service_id + notifier_id, recipient_id, db=self._service_notifiers)
        self._put(txn, _changed(queue, notifier=_changed(notifier, service_id=service_id)))
        return True

    def count_notifiers(self, service_id: ServiceId, txn: WriteTransaction) -> int:
        """A read that may take long, so it runs in the writer's thread instead of the loop."""
        count = 0
        with txn.cursor(self._service_notifiers) as cursor:
            there = cursor.set_range(service_id)
            while there and cursor.key().startswith(service_id):
                count += 1
                there = cursor.next()
        return count

    # Messages

    def append(
        self,
        recipient_id: RecipientId,
        message: Message,
        terms: AppendTerms,
        txn: WriteTransaction,
    ) -> Appended:
        row = txn.get(recipient_id, db=self._queues)
        if row is None:
            return _REFUSED
        queue = layout.read_record_head(row)
        if not queue.active:
            return _REFUSED
        line = layout.decode_line(txn.get(recipient_id, db=self._lines))
        expired = 0
        if terms.expire_before_s is not None:
            line, expired = self._expire(txn, recipient_id, line, terms.expire_before_s)
        admission, can_write = admit(size=line.size, can_write=line.can_write, quota=terms.quota)
        if admission is not Admission.FULL:
            stored = message if admission is Admission.STORED else marker(message)
            key = layout.message_key(recipient_id, line.next)
            txn.put(key, layout.encode_message(stored), db=self._messages)
            after = MessageRange(line.first, line.next + 1, can_write)
            txn.put(recipient_id, layout.encode_line(after), db=self._lines)
        if admission is Admission.STORED and queue.drops_link:
            self.drop_link(recipient_id, txn)
        if queue.day_s != terms.day_s:
            self.touch(recipient_id, terms.day_s, txn)
        return Appended(admission, line.size == 0, expired)

    def acknowledge(
        self, recipient_id: RecipientId, message_id: MessageId, txn: WriteTransaction
    ) -> Acknowledged | None:
        if txn.get(recipient_id, db=self._queues) is None:
            return None
        line = layout.decode_line(txn.get(recipient_id, db=self._lines))
        head = self._message(txn, recipient_id, line)
        if head is None or head.message_id != message_id:
            return Acknowledged(None, head)
        txn.delete(layout.message_key(recipient_id, line.first), db=self._messages)
        line = self._put_line(
            txn, recipient_id, MessageRange(line.first + 1, line.next, line.can_write)
        )
        return Acknowledged(head, self._message(txn, recipient_id, line))

    # Upkeep

    def expire(
        self,
        before_s: int,
        after: RecipientId | None,
        limit: int,
        only: Callable[[Slot], bool] | None,
        txn: WriteTransaction,
    ) -> Expired:
        looked = 0
        waiting: list[tuple[RecipientId, MessageRange]] = []
        last: RecipientId | None = None
        with txn.cursor(self._lines) as cursor:
            found = cursor.set_range(b"\0" if after is None else after + b"\0")
            while found:
                if looked >= limit:
                    last = waiting[-1][0]
                    break
                line = layout.decode_line(cursor.value())
                waiting.append((RecipientId(cursor.key()), line))
                looked += line.size
                found = cursor.next()
        by_slot: dict[Slot, int] = {}
        for recipient_id, line in waiting:
            if only is not None and not only(slot_of(recipient_id)):
                continue
            _, removed = self._expire(txn, recipient_id, line, before_s)
            if removed:
                slot = slot_of(recipient_id)
                by_slot[slot] = by_slot.get(slot, 0) + removed
        return Expired(by_slot, last)

    def save_pending(
        self, notifications: Sequence[PendingNotification], txn: WriteTransaction
    ) -> None:
        txn.drop(self._pending, delete=False)
        for number, notification in enumerate(notifications):
            row = layout.encode_pending(notification)
            txn.put(layout.pending_key(number), row, db=self._pending)

    def take_pending(self, txn: WriteTransaction) -> list[PendingNotification]:
        with txn.cursor(self._pending) as cursor:
            taken = [layout.decode_pending(value) for _, value in cursor]
        txn.drop(self._pending, delete=False)
        return taken

    # References and grants

    def set_ref(self, kind: RefKind, entity_id: bytes, ref: Ref, txn: WriteTransaction) -> bool:
        key = layout.ref_key(kind, entity_id)
        held = txn.get(key, db=self._refs)
        if held is not None:
            return layout.decode_ref(held).tx_id == ref.tx_id
        txn.put(key, layout.encode_ref(ref), db=self._refs)
        return True

    def drop_ref(
        self, kind: RefKind, entity_id: bytes, tx_id: bytes | None, txn: WriteTransaction
    ) -> bool:
        key = layout.ref_key(kind, entity_id)
        held = txn.get(key, db=self._refs)
        if held is None or (tx_id is not None and layout.decode_ref(held).tx_id != tx_id):
            return False
        return txn.delete(key, db=self._refs)

    def set_grant(
        self, recipient_id: RecipientId, session_id: SessionId, txn: WriteTransaction
    ) -> None:
        if txn.get(recipient_id, db=self._queues) is not None:
            txn.put(recipient_id, session_id, db=self._grants)

    # Inside

    def _queue(self, txn: WriteTransaction, recipient_id: RecipientId) -> Queue | None:
        def link(link_id: bytes) -> bytes | None:
            return txn.get(link_id, db=self._links)

        return read_queue(recipient_id, txn.get(recipient_id, db=self._queues), link)

    def _put(self, txn: WriteTransaction, queue: Queue) -> None:
        txn.put(queue.recipient_id, layout.encode_queue(queue), db=self._queues)

    def _drop_notifier(self, txn: WriteTransaction, queue: Queue) -> NotifierChange:
        if queue.notifier is None:
            return NotifierChange(applied=True)
        notifier = queue.notifier
        txn.delete(notifier.notifier_id, db=self._notifiers)
        if notifier.service_id is not None:
            txn.delete(notifier.service_id + notifier.notifier_id, db=self._service_notifiers)
        return NotifierChange(True, notifier.notifier_id)

    def _message(
        self, txn: WriteTransaction, recipient_id: RecipientId, line: MessageRange
    ) -> Message | None:
        if not line.size:
            return None
        value = txn.get(layout.message_key(recipient_id, line.first), db=self._messages)
        assert value is not None, "message numbers of a queue have no gaps"
        return layout.decode_message(value)

    def _put_line(
        self, txn: WriteTransaction, recipient_id: RecipientId, line: MessageRange
    ) -> MessageRange:
        if line.size:
            txn.put(recipient_id, layout.encode_line(line), db=self._lines)
            return line
        txn.delete(recipient_id, db=self._lines)
        return NO_MESSAGES

    def _expire(
        self, txn: WriteTransaction, recipient_id: RecipientId, line: MessageRange, before_s: int
    ) -> tuple[MessageRange, int]:
        removed = 0
        while (head := self._message(txn, recipient_id, line)) is not None:
            if head.is_marker or head.accepted_at_s >= before_s:
                break
            txn.delete(layout.message_key(recipient_id, line.first), db=self._messages)
            line = MessageRange(line.first + 1, line.next, line.can_write)
            removed += 1
        return (self._put_line(txn, recipient_id, line), removed) if removed else (line, 0)


def read_queue(
    recipient_id: RecipientId, row: bytes | None, link: Callable[[bytes], bytes | None]
) -> Queue | None:
    """A record with its link. Calls `link`, which reads the table of links, exactly once."""
    if row is None:
        return None
    return layout.decode_queue(recipient_id, row, link(layout.link_id_of(row) or _NO_LINK))
