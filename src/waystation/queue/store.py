"""The store that the queue service needs.

Methods state conditions. An operation that may lose a race returns whether it was *applied* and
does not raise for losing; one that may return many rows takes a *limit*. When a call has returned,
its writes are as durable as the backend can make them: `OK` is sent after it.

Rule 1: each kind of id has its own map; an id is unique within its map.
Rule 2: everything that belongs to a queue is found by its recipient id, so by its slot.
Rule 3: messages of a queue keep the order in which `append` was called, and that of the commits.
Rule 4: a condition is checked in the same transaction as the change, so two callers cannot both
        pass it.
"""

import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from waystation.queue.model import (
    ID_BYTES,
    AuthKey,
    Blocking,
    BoxKey,
    Fingerprint,
    KeyKind,
    Link,
    Message,
    MessageId,
    Notifier,
    NotifierId,
    Queue,
    QueueMode,
    RecipientId,
    RefKind,
    SenderId,
    Service,
    ServiceId,
    SessionId,
    Slot,
)


class Party(enum.Enum):
    """Selects the map for the look-up of an id."""

    RECIPIENT = "recipient"
    SENDER = "sender"
    NOTIFIER = "notifier"
    LINK = "link"


class Admission(enum.Enum):
    """The result of `append`."""

    STORED = "stored"
    MARKED = "marked"  # refused by the quota; the quota marker was stored instead
    FULL = "full"  # refused; the quota marker is stored already
    REFUSED = "refused"  # no such queue, or it accepts no messages now


class Appended(msgspec.Struct, frozen=True, gc=False):
    admission: Admission
    is_head: bool = False  # the message is the next to deliver
    expired: int = 0  # old messages that were removed first


class Acknowledged(msgspec.Struct, frozen=True, gc=False):
    """`removed` is None if the head was another message; `next` is the head now."""

    removed: Message | None
    next: Message | None


class NotifierChange(msgspec.Struct, frozen=True, gc=False):
    applied: bool
    previous: NotifierId | None = None


class Deleted(msgspec.Struct, frozen=True):
    queue: Queue
    messages: int


class Expired(msgspec.Struct, frozen=True):
    """How many messages of which slot were removed; where to go on, None at the end."""

    by_slot: Mapping[Slot, int]
    after: RecipientId | None


class Counts(msgspec.Struct, frozen=True, gc=False):
    queues: int
    messages: int
    notifiers: int
    recipient_services: int = 0
    notifier_services: int = 0
    service_queues: int = 0  # last subscribed to by a service
    service_notifiers: int = 0


class SlotLoad(msgspec.Struct, frozen=True, gc=False):
    """The contents of one slot."""

    queues: int
    messages: int
    stored_bytes: int  # of messages and links, about


class PendingNotification(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A notification that waits for a subscriber of its notifier."""

    notifier_id: NotifierId
    nonce: bytes
    meta: bytes
    accepted_at_s: int
    service_id: ServiceId | None = None  # of the notifier


class Row(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A stored row of a slot; None as value removes it."""

    table: int
    key: bytes
    value: bytes | None


Sink = Callable[[Slot, Sequence[Row]], Awaitable[None] | None]


class SlotRows(Protocol):
    """A slot as rows, for copies; stores that servers share do not need it."""

    async def read_rows(
        self, slot: Slot, *, after: tuple[int, bytes] | None, limit_bytes: int
    ) -> Sequence[Row]:
        """Rows in the store's order after the last row of the previous call, at least one and
        about `limit_bytes`; none at the end."""
        ...

    async def apply_rows(self, slot: Slot, rows: Sequence[Row], *, erase: bool = False) -> None:
        """Writes rows unchanged, in order; `erase` empties the slot first. Not reported to the
        sink of `tap`."""
        ...

    async def erase_slot(self, slot: Slot) -> None: ...

    async def held_slots(self) -> Sequence[Slot]:
        """Slots that have rows."""
        ...

    def tap(self, sink: Sink | None) -> None:
        """Reports every change to `sink`, slot by slot and in commit order, when it is durable and
        before its caller returns. If `sink` returns an awaitable, the caller waits for it and gets
        its exception."""
        ...


class Ref(msgspec.Struct, frozen=True, gc=False):
    """The home slot of a queue, for an id that does not begin with it."""

    home: Slot
    tx_id: bytes  # of the transaction that made it; needed to remove it


class Referenced(msgspec.Struct, frozen=True):
    """How many references were written; where to go on, None at the end of the slot."""

    written: int
    after: RecipientId | None


class RefStore(Protocol):
    """References, stored under the slot of their id."""

    async def write_refs(self, slot: Slot, *, after: RecipientId | None, limit: int) -> Referenced:
        """For about `limit` queues of this slot after `after`: writes a reference for each of
        their ids that begins with another slot, and replaces existing ones. One transaction, so a
        queue that is deleted meanwhile leaves none."""
        ...

    async def set_ref(self, kind: RefKind, entity_id: bytes, ref: Ref) -> bool:
        """Applied only if there is none, or it is of the same transaction."""
        ...

    async def get_ref(self, kind: RefKind, entity_id: bytes) -> Ref | None: ...

    async def drop_ref(self, kind: RefKind, entity_id: bytes, tx_id: bytes | None) -> bool:
        """With `tx_id`, only one of that transaction. Whether there was one."""
        ...

    async def refs_of(
        self, slot: Slot, *, after: tuple[RefKind, bytes] | None, limit: int
    ) -> Sequence[tuple[RefKind, bytes, Ref]]:
        """References whose ids begin with this slot, in the store's order, after `after`; at most
        `limit`."""
        ...


class GrantStore(Protocol):
    """Grants: the session that may resume a subscription that came with `NEW`, where no `SUB` can
    be repeated. A grant moves with its queue."""

    async def set_grant(self, recipient_id: RecipientId, session_id: SessionId) -> None: ...

    async def get_grant(self, recipient_id: RecipientId) -> SessionId | None: ...


# Backends that decode rows decode this one for an unknown id, so that it takes as long.
NOBODYS_QUEUE = Queue(
    recipient_id=RecipientId(bytes(ID_BYTES)),
    recipient_keys=(AuthKey(KeyKind.ED25519, bytes(32)),),
    box_key=BoxKey(bytes(32)),
    sender_id=SenderId(bytes(ID_BYTES)),
    sender_key=AuthKey(KeyKind.ED25519, bytes(32)),
    mode=QueueMode.MESSAGING,
)


class QueueStore(Protocol):
    """Queues, their messages, and the ids that lead to them."""

    # Queues

    async def find(self, party: Party, entity_id: bytes) -> Queue | None:
        """The queue of this id in the party's map. An unknown id takes as long: the duration of a
        refusal must not show whether there is a queue (queues §5.9)."""
        ...

    async def create(self, queue: Queue) -> bool:
        """Applied only if none of its ids is in use in its map."""
        ...

    async def secure(self, recipient_id: RecipientId, key: AuthKey) -> bool:
        """Applied only if there is no sender key yet, or it is the same."""
        ...

    async def set_recipient_keys(
        self, recipient_id: RecipientId, keys: tuple[AuthKey, ...]
    ) -> bool:
        """Replaces all keys; applied only to a queue in contact mode."""
        ...

    async def set_link(self, recipient_id: RecipientId, link: Link) -> bool:
        """Applied only if the queue is no secured messaging queue, and either has no link and the
        link's id is free, or has this link with the same fixed data."""
        ...

    async def drop_link(self, recipient_id: RecipientId) -> bool:
        """Removes the link, if any; whether there is such a queue."""
        ...

    async def set_notifier(self, recipient_id: RecipientId, notifier: Notifier) -> NotifierChange:
        """Applied only if the queue exists and the notifier's id is free."""
        ...

    async def drop_notifier(self, recipient_id: RecipientId) -> NotifierChange:
        """Applied if the queue exists, with or without a notifier."""
        ...

    async def suspend(self, recipient_id: RecipientId) -> bool:
        """The queue accepts no messages from now on; whether there is such a queue."""
        ...

    async def block(self, recipient_id: RecipientId, blocking: Blocking) -> bool: ...

    async def unblock(self, recipient_id: RecipientId) -> bool:
        """Applied only if it was blocked."""
        ...

    async def touch(self, recipient_id: RecipientId, day_s: int) -> None:
        """Stores the day of the queue's last use."""
        ...

    async def delete(self, recipient_id: RecipientId) -> Deleted | None:
        """Removes record, ids and messages; returns the record."""
        ...

    # Services

    async def register_service(
        self, fingerprint: Fingerprint, service: Service, *, limit: int
    ) -> Service | None:
        """The service of this fingerprint: the known one or this new one; None if it would exceed
        `limit`."""
        ...

    async def set_queue_service(
        self, recipient_id: RecipientId, service_id: ServiceId | None
    ) -> bool:
        """Sets the service of this queue; whether there is such a queue."""
        ...

    async def set_notifier_service(
        self, recipient_id: RecipientId, notifier_id: NotifierId, service_id: ServiceId | None
    ) -> bool:
        """Applied only if the queue still has this notifier."""
        ...

    async def count_notifiers(self, service_id: ServiceId) -> int:
        """How many notifiers this service has."""
        ...

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
        """Stores a message within the quota (`admit`). The first message to a secured messaging
        queue removes its link. With `expire_before_s`, older messages are removed first."""
        ...

    async def head(self, recipient_id: RecipientId) -> Message | None:
        """The next message to deliver."""
        ...

    async def size(self, recipient_id: RecipientId) -> int:
        """How many messages wait, the quota marker included."""
        ...

    async def acknowledge(
        self, recipient_id: RecipientId, message_id: MessageId
    ) -> Acknowledged | None:
        """Removes the head if it is this message; None if there is no such queue."""
        ...

    # Maintenance

    async def expire(
        self,
        *,
        before_s: int,
        after: RecipientId | None,
        limit: int,
        only: Callable[[Slot], bool] | None = None,
    ) -> Expired:
        """Removes messages accepted before, from the head of each queue up to the first younger
        one or a quota marker. Reads about `limit` messages after `after`; with `only`, those of
        the named slots."""
        ...

    async def scan(
        self, slot: Slot, *, after: RecipientId | None, limit: int
    ) -> Sequence[RecipientId]:
        """Queues of one slot in the order of their ids."""
        ...

    async def counts(self) -> Counts: ...

    async def slot_load(self, slot: Slot) -> SlotLoad: ...

    async def save_pending(self, notifications: Sequence[PendingNotification]) -> None:
        """Stored until they are taken: for a restart of the server."""
        ...

    async def take_pending(self) -> Sequence[PendingNotification]: ...

    async def check(self) -> None:
        """Raises if the store does not answer."""
        ...

    async def close(self) -> None:
        """Finishes pending writes; safe to call twice."""
        ...


def admit(*, size: int, can_write: bool, quota: int) -> tuple[Admission, bool]:
    """The result of a message to a queue in this state, and whether the next one may be written
    (§5.4). After the marker nothing is stored until the queue is empty."""
    if not can_write and size:
        return Admission.FULL, False
    if size < quota:
        return Admission.STORED, True
    return Admission.MARKED, False


def may_link(queue: Queue, link: Link) -> bool:
    """Whether LSET is allowed, apart from the id being free (§5.5)."""
    if queue.mode is QueueMode.MESSAGING and queue.sender_key is not None:
        return False
    return queue.link is None or (
        queue.link.link_id == link.link_id and queue.link.data.fixed == link.data.fixed
    )


def drops_link(queue: Queue) -> bool:
    """Whether a queue was secured through its link (§5.5)."""
    return (
        queue.link is not None
        and queue.mode is QueueMode.MESSAGING
        and queue.sender_key is not None
    )


def marker(message: Message) -> Message:
    """The marker that replaces the first message refused by the quota."""
    return Message(message.message_id, message.accepted_at_s)
