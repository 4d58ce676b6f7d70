"""The queue store in plain dictionaries: the executable model of the contract.

The other backends are compared with this one, so it implements the contract in the shortest correct
way and never suspends.
"""

from collections import deque
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
    ServiceRole,
    Slot,
    Standing,
    slot_of,
)
from waystation.queue.store import (
    Acknowledged,
    Admission,
    Appended,
    Counts,
    Deleted,
    Expired,
    NotifierChange,
    Party,
    PendingNotification,
    SlotLoad,
    admit,
    drops_link,
    marker,
    may_link,
)
from waystation.storage.memory.backend import CAPABILITIES

_changed = msgspec.structs.replace


class _QueueMessages:
    """The messages of one queue."""

    __slots__ = ("can_write", "messages")

    def __init__(self) -> None:
        self.can_write = True
        self.messages: deque[Message] = deque()

    def expire(self, before_s: int) -> int:
        removed = 0
        while self.messages and not self.messages[0].is_marker:
            if self.messages[0].accepted_at_s >= before_s:
                break
            self.messages.popleft()
            removed += 1
        self.settle()
        return removed

    def settle(self) -> None:
        if not self.messages:
            self.can_write = True


class MemoryQueueStore:
    """A queue store that ends with its process."""

    capabilities = CAPABILITIES

    def __init__(self) -> None:
        self._queues: dict[RecipientId, Queue] = {}
        self._ids: dict[Party, dict[bytes, RecipientId]] = {party: {} for party in Party}
        self._lines: dict[RecipientId, _QueueMessages] = {}
        self._pending: list[PendingNotification] = []
        self._services: dict[Fingerprint, Service] = {}

    # Queues

    async def find(self, party: Party, entity_id: bytes) -> Queue | None:
        recipient_id = self._ids[party].get(entity_id)
        return None if recipient_id is None else self._queues[recipient_id]

    async def create(self, queue: Queue) -> bool:
        if any(entity_id in self._ids[party] for party, entity_id in _ids_of(queue)):
            return False
        self._put(queue)
        return True

    async def secure(self, recipient_id: RecipientId, key: AuthKey) -> bool:
        queue = self._queues.get(recipient_id)
        if queue is None or queue.sender_key not in (None, key):
            return False
        self._put(_changed(queue, sender_key=key))
        return True

    async def set_recipient_keys(
        self, recipient_id: RecipientId, keys: tuple[AuthKey, ...]
    ) -> bool:
        queue = self._queues.get(recipient_id)
        if queue is None or queue.mode is not QueueMode.CONTACT:
            return False
        self._put(_changed(queue, recipient_keys=keys))
        return True

    async def set_link(self, recipient_id: RecipientId, link: Link) -> bool:
        queue = self._queues.get(recipient_id)
        if queue is None or not may_link(queue, link):
            return False
        if queue.link is None and link.link_id in self._ids[Party.LINK]:
            return False
        self._put(_changed(queue, link=link))
        return True

    async def drop_link(self, recipient_id: RecipientId) -> bool:
        queue = self._queues.get(recipient_id)
        if queue is None:
            return False
        if queue.link is not None:
            self._forget_ids(queue)
            self._put(_changed(queue, link=None))
        return True

    async def set_notifier(self, recipient_id: RecipientId, notifier: Notifier) -> NotifierChange:
        queue = self._queues.get(recipient_id)
        if queue is None or notifier.notifier_id in self._ids[Party.NOTIFIER]:
            return NotifierChange(applied=False)
        self._forget_ids(queue)
        self._put(_changed(queue, notifier=notifier))
        return NotifierChange(True, _notifier_id(queue))

    async def drop_notifier(self, recipient_id: RecipientId) -> NotifierChange:
        queue = self._queues.get(recipient_id)
        if queue is None:
            return NotifierChange(applied=False)
        self._forget_ids(queue)
        self._put(_changed(queue, notifier=None))
        return NotifierChange(True, _notifier_id(queue))

    async def suspend(self, recipient_id: RecipientId) -> bool:
        return self._stand(recipient_id, Standing.OFF, None)

    async def block(self, recipient_id: RecipientId, blocking: Blocking) -> bool:
        return self._stand(recipient_id, Standing.BLOCKED, blocking)

    async def unblock(self, recipient_id: RecipientId) -> bool:
        queue = self._queues.get(recipient_id)
        if queue is None or queue.standing is not Standing.BLOCKED:
            return False
        return self._stand(recipient_id, Standing.ACTIVE, None)

    async def touch(self, recipient_id: RecipientId, day_s: int) -> None:
        queue = self._queues.get(recipient_id)
        if queue is not None:
            self._put(_changed(queue, updated_on_s=day_s))

    async def delete(self, recipient_id: RecipientId) -> Deleted | None:
        queue = self._queues.pop(recipient_id, None)
        if queue is None:
            return None
        self._forget_ids(queue)
        line = self._lines.pop(recipient_id, None)
        return Deleted(queue, 0 if line is None else len(line.messages))

    # Services

    async def register_service(
        self, fingerprint: Fingerprint, service: Service, *, limit: int
    ) -> Service | None:
        if fingerprint not in self._services and len(self._services) >= limit:
            return None
        return self._services.setdefault(fingerprint, service)

    async def set_queue_service(
        self, recipient_id: RecipientId, service_id: ServiceId | None
    ) -> bool:
        queue = self._queues.get(recipient_id)
        if queue is None:
            return False
        self._put(_changed(queue, service_id=service_id))
        return True

    async def set_notifier_service(
        self, recipient_id: RecipientId, notifier_id: NotifierId, service_id: ServiceId | None
    ) -> bool:
        queue = self._queues.get(recipient_id)
        notifier = None if queue is None else queue.notifier
        if queue is None or notifier is None or notifier.notifier_id != notifier_id:
            return False
        self._put(_changed(queue, notifier=_changed(notifier, service_id=service_id)))
        return True

    async def count_notifiers(self, service_id: ServiceId) -> int:
        notifiers = (queue.notifier for queue in self._queues.values())
        return sum(one is not None and one.service_id == service_id for one in notifiers)

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
        queue = self._queues.get(recipient_id)
        if queue is None or queue.standing is not Standing.ACTIVE:
            return Appended(Admission.REFUSED)
        line = self._lines.setdefault(recipient_id, _QueueMessages())
        expired = 0 if expire_before_s is None else line.expire(expire_before_s)
        size = len(line.messages)
        admission, can_write = admit(size=size, can_write=line.can_write, quota=quota)
        line.can_write = can_write
        if admission is not Admission.FULL:
            stored = admission is Admission.STORED
            line.messages.append(message if stored else marker(message))
        link = None if admission is Admission.STORED and drops_link(queue) else queue.link
        self._forget_ids(queue)
        self._put(_changed(queue, updated_on_s=day_s, link=link))
        return Appended(admission, size == 0, expired)

    async def head(self, recipient_id: RecipientId) -> Message | None:
        line = self._lines.get(recipient_id)
        return line.messages[0] if line is not None and line.messages else None

    async def size(self, recipient_id: RecipientId) -> int:
        line = self._lines.get(recipient_id)
        return 0 if line is None else len(line.messages)

    async def acknowledge(
        self, recipient_id: RecipientId, message_id: MessageId
    ) -> Acknowledged | None:
        if recipient_id not in self._queues:
            return None
        line = self._lines.get(recipient_id)
        if line is None or not line.messages:
            return Acknowledged(None, None)
        removed = None
        if line.messages[0].message_id == message_id:
            removed = line.messages.popleft()
            line.settle()
        return Acknowledged(removed, line.messages[0] if line.messages else None)

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
        looked = 0
        for recipient_id in sorted(self._lines):
            if after is not None and recipient_id <= after:
                continue
            if only is not None and not only(slot_of(recipient_id)):
                continue
            if looked >= limit:
                return Expired(by_slot, after)
            removed = self._lines[recipient_id].expire(before_s)
            looked += removed + 1
            after = recipient_id
            if removed:
                slot = slot_of(recipient_id)
                by_slot[slot] = by_slot.get(slot, 0) + removed
        return Expired(by_slot, None)

    async def scan(
        self, slot: Slot, *, after: RecipientId | None, limit: int
    ) -> Sequence[RecipientId]:
        beyond = b"" if after is None else after
        found = (one for one in self._queues if slot_of(one) == slot and one > beyond)
        return sorted(found)[:limit]

    async def counts(self) -> Counts:
        messages = sum(len(line.messages) for line in self._lines.values())
        roles = [service.role for service in self._services.values()]
        notifiers = [queue.notifier for queue in self._queues.values() if queue.notifier]
        return Counts(
            len(self._queues),
            messages,
            len(notifiers),
            roles.count(ServiceRole.MESSAGING),
            roles.count(ServiceRole.NOTIFIER),
            sum(queue.service_id is not None for queue in self._queues.values()),
            sum(notifier.service_id is not None for notifier in notifiers),
        )

    async def slot_load(self, slot: Slot) -> SlotLoad:
        inside = [one for one in self._queues if slot_of(one) == slot]
        messages = [m for one in inside if one in self._lines for m in self._lines[one].messages]
        return SlotLoad(len(inside), len(messages), sum(len(m.body or b"") for m in messages))

    async def save_pending(self, notifications: Sequence[PendingNotification]) -> None:
        self._pending = list(notifications)

    async def take_pending(self) -> Sequence[PendingNotification]:
        taken, self._pending = self._pending, []
        return taken

    async def check(self) -> None:
        pass

    async def close(self) -> None:
        pass

    # Inside

    def _put(self, queue: Queue) -> None:
        self._queues[queue.recipient_id] = queue
        for party, entity_id in _ids_of(queue):
            self._ids[party][entity_id] = queue.recipient_id

    def _forget_ids(self, queue: Queue) -> None:
        for party, entity_id in _ids_of(queue):
            self._ids[party].pop(entity_id, None)

    def _stand(
        self, recipient_id: RecipientId, standing: Standing, blocking: Blocking | None
    ) -> bool:
        queue = self._queues.get(recipient_id)
        if queue is None:
            return False
        self._put(_changed(queue, standing=standing, blocking=blocking))
        return True


def _notifier_id(queue: Queue) -> NotifierId | None:
    return None if queue.notifier is None else queue.notifier.notifier_id


def _ids_of(queue: Queue) -> list[tuple[Party, bytes]]:
    ids: list[tuple[Party, bytes]] = [
        (Party.RECIPIENT, queue.recipient_id),
        (Party.SENDER, queue.sender_id),
    ]
    if queue.notifier is not None:
        ids.append((Party.NOTIFIER, queue.notifier.notifier_id))
    if queue.link is not None:
        ids.append((Party.LINK, queue.link.link_id))
    return ids
