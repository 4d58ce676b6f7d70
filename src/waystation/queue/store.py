"""The store that the queue service needs.

Methods state conditions. An operation that may lose a race returns whether it was *applied* and
never raises for losing; one that may return many rows takes a *limit*. When a call has returned,
its writes are as durable as the backend can make them: `OK` follows the call, never precedes it.

Rule 1: each kind of id is in a map of its own; an id is unique within its map.
Rule 2: everything that belongs to a queue is found by its recipient id, so by its slot.
Rule 3: messages of a queue keep the order in which `append` was called, and that of the commits.
Rule 4: a condition is checked where the change is made, so two callers cannot both pass it.
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
    """Whose map an id is looked up in."""

    RECIPIENT = "recipient"
    SENDER = "sender"
    NOTIFIER = "notifier"
    LINK = "link"


class Admission(enum.Enum):
    """What became of a message that was sent."""

    STORED = "stored"
    MARKED = "marked"  # refused by the quota; the marker was stored in its place
    FULL = "full"  # refused, and the marker is there already
    REFUSED = "refused"  # no such queue, or nobody may send to it now


class Appended(msgspec.Struct, frozen=True, gc=False):
    admission: Admission
    is_head: bool = False  # what was stored is what comes next
    expired: int = 0  # old messages that were removed before


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
    """How many messages of which slot went; where to go on, None at the end."""

    by_slot: Mapping[Slot, int]
    after: RecipientId | None


class Counts(msgspec.Struct, frozen=True, gc=False):
    queues: int
    messages: int
    notifiers: int
    recipient_services: int = 0
    notifier_services: int = 0
    service_queues: int = 0  # that a service subscribed to last
    service_notifiers: int = 0


class SlotLoad(msgspec.Struct, frozen=True, gc=False):
    """What one slot holds."""

    queues: int
    messages: int
    stored_bytes: int  # of messages and links, about


class PendingNotification(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A notification that waits for a subscriber of its notifier."""

    notifier_id: NotifierId
    nonce: bytes
    meta: bytes
    accepted_at_s: int
    service_id: ServiceId | None = None  # whose notifier it is, if a service's


class Row(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A row of a slot as it lies in the store; without a value it is removed."""

    table: int
    key: bytes
    value: bytes | None


Sink = Callable[[Slot, Sequence[Row]], Awaitable[None] | None]


class SlotRows(Protocol):
    """A slot as rows, for copies of it; a store that servers share has no need of it."""

    async def read_rows(
        self, slot: Slot, *, after: tuple[int, bytes] | None, limit_bytes: int
    ) -> Sequence[Row]:
        """Rows in an order of the store's own, beginning behind the last row of the call before;
        none when there are no more. At least one, and about `limit_bytes` of them."""
        ...

    async def apply_rows(self, slot: Slot, rows: Sequence[Row], *, erase: bool = False) -> None:
        """Write them as they are, in their order; `erase` empties the slot first. Nobody is told:
        what is applied came from elsewhere."""
        ...

    async def erase_slot(self, slot: Slot) -> None: ...

    async def held_slots(self) -> Sequence[Slot]:
        """Slots of which there are rows."""
        ...

    def tap(self, sink: Sink | None) -> None:
        """From now on every change is told to `sink`, slot by slot and in the order of the
        commits: when it is durable, before its caller is answered. If `sink` returns something to
        wait for, the caller waits for it; what it raises is the caller's answer."""
        ...


class Ref(msgspec.Struct, frozen=True, gc=False):
    """Where the queue of an id lives that does not begin with its slot."""

    home: Slot
    tx_id: bytes  # of the transaction that made it; needed to remove it


class Referenced(msgspec.Struct, frozen=True):
    """How many references were written; where to go on, None at the end of the slot."""

    written: int
    after: RecipientId | None


class RefStore(Protocol):
    """References, kept under the slot of their id."""

    async def write_refs(self, slot: Slot, *, after: RecipientId | None, limit: int) -> Referenced:
        """For about `limit` queues of this slot beyond `after`: a reference for each of their ids
        that begins with another slot, in place of whichever was there. The queues are looked at
        where the references are written, so that one that is deleted meanwhile leaves none."""
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
        """References whose ids begin with this slot, in an order of the store's own, beginning
        behind `after`; at most `limit`."""
        ...


class GrantStore(Protocol):
    """Who may resume a subscription that came with `NEW`, where no `SUB` can be said again; it
    goes where the queue goes."""

    async def set_grant(self, recipient_id: RecipientId, session_id: SessionId) -> None: ...

    async def get_grant(self, recipient_id: RecipientId) -> SessionId | None: ...


# A backend that has to decode what it finds decodes this for an id that leads nowhere.
NOBODYS_QUEUE = Queue(
    recipient_id=RecipientId(bytes(ID_BYTES)),
    recipient_keys=(AuthKey(KeyKind.ED25519, bytes(32)),),
    box_key=BoxKey(bytes(32)),
    sender_id=SenderId(bytes(ID_BYTES)),
    sender_key=AuthKey(KeyKind.ED25519, bytes(32)),
    mode=QueueMode.MESSAGING,
)


class QueueStore(Protocol):
    """Queues, what waits in them, and the ids that lead to them."""

    # Queues

    async def find(self, party: Party, entity_id: bytes) -> Queue | None:
        """The queue that this id leads this party to. An id that leads nowhere takes as long: how
        long a refusal takes must not tell whether there is a queue (queues §5.9)."""
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
        """Replaces them all; applied only to a queue in contact mode."""
        ...

    async def set_link(self, recipient_id: RecipientId, link: Link) -> bool:
        """Applied only if the queue is no secured messaging queue, and either has no link and the
        link's id is free, or has this link with the same fixed data."""
        ...

    async def drop_link(self, recipient_id: RecipientId) -> bool:
        """Whether there is such a queue; the link is gone afterwards."""
        ...

    async def set_notifier(self, recipient_id: RecipientId, notifier: Notifier) -> NotifierChange:
        """Applied only if the queue exists and the notifier's id is free."""
        ...

    async def drop_notifier(self, recipient_id: RecipientId) -> NotifierChange:
        """Applied if the queue exists, whether or not it had one."""
        ...

    async def suspend(self, recipient_id: RecipientId) -> bool:
        """Nobody may send any more; whether there is such a queue."""
        ...

    async def block(self, recipient_id: RecipientId, blocking: Blocking) -> bool: ...

    async def unblock(self, recipient_id: RecipientId) -> bool:
        """Applied only if it was blocked."""
        ...

    async def touch(self, recipient_id: RecipientId, day_s: int) -> None:
        """Remember the day on which the queue was last used."""
        ...

    async def delete(self, recipient_id: RecipientId) -> Deleted | None:
        """Record, ids and messages; what it was."""
        ...

    # Services

    async def register_service(
        self, fingerprint: Fingerprint, service: Service, *, limit: int
    ) -> Service | None:
        """The service of this fingerprint: the one that is known already, or else this one; None
        if it would be one more than `limit`."""
        ...

    async def set_queue_service(
        self, recipient_id: RecipientId, service_id: ServiceId | None
    ) -> bool:
        """Whose the subscription of this queue is; whether there is such a queue."""
        ...

    async def set_notifier_service(
        self, recipient_id: RecipientId, notifier_id: NotifierId, service_id: ServiceId | None
    ) -> bool:
        """Applied only if the queue has this notifier still."""
        ...

    async def count_notifiers(self, service_id: ServiceId) -> int:
        """How many are this service's."""
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
        """Admitted by the quota (`admit`). The first message that a secured messaging queue takes
        removes its link. With `expire_before_s`, older messages are removed first."""
        ...

    async def head(self, recipient_id: RecipientId) -> Message | None:
        """What is to be delivered next."""
        ...

    async def size(self, recipient_id: RecipientId) -> int:
        """How many messages wait, the quota marker included."""
        ...

    async def acknowledge(
        self, recipient_id: RecipientId, message_id: MessageId
    ) -> Acknowledged | None:
        """Removes the head if it is this message; None if there is no such queue."""
        ...

    # Upkeep

    async def expire(
        self,
        *,
        before_s: int,
        after: RecipientId | None,
        limit: int,
        only: Callable[[Slot], bool] | None = None,
    ) -> Expired:
        """Removes messages accepted before, from the head of each queue up to the first younger
        one or a quota marker. Looks at about `limit` messages beyond `after`; with `only`, at
        those of the slots that it names."""
        ...

    async def scan(
        self, slot: Slot, *, after: RecipientId | None, limit: int
    ) -> Sequence[RecipientId]:
        """Queues of one slot in the order of their ids."""
        ...

    async def counts(self) -> Counts: ...

    async def slot_load(self, slot: Slot) -> SlotLoad: ...

    async def save_pending(self, notifications: Sequence[PendingNotification]) -> None:
        """Kept until taken; for the time between two runs of a server."""
        ...

    async def take_pending(self) -> Sequence[PendingNotification]: ...

    async def check(self) -> None:
        """Raises if the store does not answer."""
        ...

    async def close(self) -> None:
        """What was begun is still written; safe to call twice."""
        ...


def admit(*, size: int, can_write: bool, quota: int) -> tuple[Admission, bool]:
    """What happens to a message sent to a queue in this state, and whether the next one may be
    written (§5.4). After the marker nothing is stored until the queue is empty."""
    if not can_write and size:
        return Admission.FULL, False
    if size < quota:
        return Admission.STORED, True
    return Admission.MARKED, False


def may_link(queue: Queue, link: Link) -> bool:
    """Whether LSET is allowed, the freedom of the id apart (§5.5)."""
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
    """What is stored in place of the first message that the quota refused."""
    return Message(message.message_id, message.accepted_at_s)
