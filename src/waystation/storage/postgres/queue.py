"""The queue store on PostgreSQL: one statement and one round trip per operation.

Look-ups, appends and acknowledgements of a loop turn are sent together (`batching.py`), because a
commit costs the same for any number of rows. A write is committed when its call returns.

One group of appends is in progress at a time: two could overtake each other and reorder the
messages of a queue.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from waystation.base.errors import BusyError, UnavailableError, WaystationError
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
    Slot,
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
)
from waystation.storage.batching import Batcher
from waystation.storage.postgres import queue_layout as layout
from waystation.storage.postgres.backend import CAPABILITIES
from waystation.storage.postgres.queue_schema import QueueTables, make_queue_tables
from waystation.storage.postgres.queue_statements import QueueStatements
from waystation.storage.postgres.session import Session, SessionStats
from waystation.storage.postgres.url import PostgresUrl
from waystation.storage.settings import Store

Q = TypeVar("Q")
A = TypeVar("A")


class _Sending(NamedTuple):
    recipient_id: RecipientId
    message: Message
    quota: int
    day_s: int
    expire_before_s: int | None


class _Lookup(NamedTuple):
    party: Party
    entity_id: bytes


class _Acking(NamedTuple):
    recipient_id: RecipientId
    message_id: MessageId


class PostgresQueueStore:
    """One database, shared by any number of storage servers."""

    capabilities = CAPABILITIES

    def __init__(self, url: PostgresUrl, *, settings: Store) -> None:
        self._session = Session(url, settings, partial(make_queue_tables, url=url))
        self._sql = QueueStatements(QueueTables(url))
        limits: dict[str, Any] = {
            "server": "PostgreSQL",
            "group_max": settings.commit_batch_max,
            "queue_max": settings.queue_max,
        }
        self._lookups = Batcher[_Lookup, Queue | None](self._find_all, **limits)
        self._heads = Batcher[RecipientId, Message | None](self._head_all, **limits)
        self._sendings = Batcher[_Sending, Appended](self._append_all, **limits, in_flight_max=1)
        self._ackings = Batcher[_Acking, Acknowledged | None](self._acknowledge_all, **limits)

    @classmethod
    async def open(cls, url: PostgresUrl, *, settings: Store) -> "PostgresQueueStore":
        """Succeeds even if the server cannot be reached yet; operations fail until then."""
        store = cls(url, settings=settings)
        with suppress(UnavailableError):
            await store.check()
        return store

    def stats(self) -> SessionStats:
        """Counters: round trips, connections, failures, refusals."""
        return self._session.stats

    # Queues

    async def find(self, party: Party, entity_id: bytes) -> Queue | None:
        return await self._asked(self._lookups, _Lookup(party, entity_id))

    async def create(self, queue: Queue) -> bool:
        return await self._applied(self._sql.create, *layout.queue_values(queue))

    async def secure(self, recipient_id: RecipientId, key: AuthKey) -> bool:
        return await self._applied(self._sql.secure, recipient_id, layout.encode_key(key))

    async def set_recipient_keys(
        self, recipient_id: RecipientId, keys: tuple[AuthKey, ...]
    ) -> bool:
        return await self._applied(self._sql.set_keys, recipient_id, layout.encode_keys(keys))

    async def set_link(self, recipient_id: RecipientId, link: Link) -> bool:
        data = link.data
        return await self._applied(
            self._sql.set_link, recipient_id, link.link_id, data.fixed, data.user
        )

    async def drop_link(self, recipient_id: RecipientId) -> bool:
        return await self._applied(self._sql.drop_link, recipient_id)

    async def set_notifier(self, recipient_id: RecipientId, notifier: Notifier) -> NotifierChange:
        return await self._change_notifier(
            recipient_id,
            notifier.notifier_id,
            layout.encode_key(notifier.key),
            notifier.box_key,
        )

    async def drop_notifier(self, recipient_id: RecipientId) -> NotifierChange:
        return await self._change_notifier(recipient_id, None, None, None)

    async def suspend(self, recipient_id: RecipientId) -> bool:
        return await self._applied(self._sql.stand, recipient_id, "off", None, None)

    async def block(self, recipient_id: RecipientId, blocking: Blocking) -> bool:
        reason = layout.encode_blocking(blocking)
        return await self._applied(self._sql.stand, recipient_id, "blocked", reason, None)

    async def unblock(self, recipient_id: RecipientId) -> bool:
        return await self._applied(self._sql.stand, recipient_id, "active", None, "blocked")

    async def touch(self, recipient_id: RecipientId, day_s: int) -> None:
        await self._applied(self._sql.touch, recipient_id, day_s)

    async def delete(self, recipient_id: RecipientId) -> Deleted | None:
        rows = await self._change(self._sql.delete, recipient_id)
        return Deleted(layout.read_queue(rows[0]), rows[0]["size"]) if rows else None

    # Services

    async def register_service(
        self, fingerprint: Fingerprint, service: Service, *, limit: int
    ) -> Service | None:
        statement, values = self._sql.register_service, (fingerprint, service.service_id)
        rows = await self._change(statement, *values, service.role.value, limit)
        if not rows:  # created by another server meanwhile, or over the limit
            rows = await self._change(statement, *values, service.role.value, limit)
        return layout.read_service(rows[0]) if rows else None

    async def set_queue_service(
        self, recipient_id: RecipientId, service_id: ServiceId | None
    ) -> bool:
        return await self._applied(self._sql.set_queue_service, recipient_id, service_id)

    async def set_notifier_service(
        self, recipient_id: RecipientId, notifier_id: NotifierId, service_id: ServiceId | None
    ) -> bool:
        return await self._applied(
            self._sql.set_notifier_service, recipient_id, notifier_id, service_id
        )

    async def count_notifiers(self, service_id: ServiceId) -> int:
        return (await self._read(self._sql.count_notifiers, service_id))[0]["notifiers"]

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
        sending = _Sending(recipient_id, message, quota, day_s, expire_before_s)
        return await self._asked(self._sendings, sending)

    async def head(self, recipient_id: RecipientId) -> Message | None:
        return await self._asked(self._heads, recipient_id)

    async def size(self, recipient_id: RecipientId) -> int:
        rows = await self._read(self._sql.size, recipient_id)
        return rows[0]["size"] if rows else 0

    async def acknowledge(
        self, recipient_id: RecipientId, message_id: MessageId
    ) -> Acknowledged | None:
        return await self._asked(self._ackings, _Acking(recipient_id, message_id))

    # Sweep

    async def expire(
        self,
        *,
        before_s: int,
        after: RecipientId | None,
        limit: int,
        only: Callable[[Slot], bool] | None = None,
    ) -> Expired:
        # All servers share these rows, so expiring those of other servers' slots is harmless.
        rows = await self._change(self._sql.expire_some, before_s, after or b"", limit)
        by_slot: dict[Slot, int] = {}
        for row in rows:
            if row["gone"]:
                slot = slot_of(row["recipient_id"])
                by_slot[slot] = by_slot.get(slot, 0) + row["gone"]
        more = len(rows) >= limit
        return Expired(by_slot, RecipientId(rows[-1]["recipient_id"]) if more else None)

    async def scan(
        self, slot: Slot, *, after: RecipientId | None, limit: int
    ) -> Sequence[RecipientId]:
        first, last = _bounds(slot)
        rows = await self._read(self._sql.scan, first, last, after or b"", limit)
        return [RecipientId(row["recipient_id"]) for row in rows]

    async def counts(self) -> Counts:
        row = (await self._read(self._sql.counts))[0]
        return Counts(**row)

    async def slot_load(self, slot: Slot) -> SlotLoad:
        row = (await self._read(self._sql.slot_load, *_bounds(slot)))[0]
        return SlotLoad(row["queues"], row["messages"], row["stored_bytes"])

    async def save_pending(self, notifications: Sequence[PendingNotification]) -> None:
        rows = [layout.encode_pending(one) for one in notifications]
        await self._change(self._sql.take_pending)
        await self._change(self._sql.save_pending, rows)

    async def take_pending(self) -> Sequence[PendingNotification]:
        rows = await self._change(self._sql.take_pending)
        rows.sort(key=lambda row: row["number"])
        return [layout.read_pending(row) for row in rows]

    async def check(self) -> None:
        await self._read("SELECT 1")

    async def close(self) -> None:
        """Waits for submitted calls; safe to call twice."""
        for group in (self._lookups, self._heads, self._sendings, self._ackings):
            await group.close()
        await self._session.close()

    # Groups

    async def _find_all(self, asked: Sequence[_Lookup]) -> Sequence[Queue | WaystationError | None]:
        rows = await self._session.read(
            self._sql.find, [one.party.value for one in asked], [one.entity_id for one in asked]
        )
        found: list[Queue | WaystationError | None] = [None] * len(asked)
        for row in rows:
            found[row["n"] - 1] = layout.read_queue(row)
        for _ in range(len(asked) - len(rows)):
            layout.read_queue(layout.NOBODYS_ROW)  # unknown ids take as long as known ones
        return found

    async def _head_all(
        self, asked: Sequence[RecipientId]
    ) -> Sequence[Message | WaystationError | None]:
        rows = await self._session.read(self._sql.head, list(asked))
        heads: list[Message | WaystationError | None] = [None] * len(asked)
        for row in rows:
            heads[row["n"] - 1] = layout.read_message(row)
        return heads

    async def _append_all(self, asked: Sequence[_Sending]) -> Sequence[Appended | WaystationError]:
        rows = await self._session.change(
            self._sql.append,
            [one.recipient_id for one in asked],
            [one.message.message_id for one in asked],
            [one.message.accepted_at_s for one in asked],
            [one.message.notify for one in asked],
            [one.message.body for one in asked],
            [one.quota for one in asked],
            [one.day_s for one in asked],
            [one.expire_before_s for one in asked],
        )
        answers: list[Appended | WaystationError] = [Appended(Admission.REFUSED)] * len(asked)
        for row in rows:
            answers[row["n"] - 1] = Appended(
                Admission(row["admission"]), row["is_head"], row["expired"]
            )
        return answers

    async def _acknowledge_all(
        self, asked: Sequence[_Acking]
    ) -> Sequence[Acknowledged | WaystationError | None]:
        rows = await self._session.change(
            self._sql.acknowledge,
            [one.recipient_id for one in asked],
            [one.message_id for one in asked],
        )
        removed: dict[int, Message] = {}
        answers: list[Acknowledged | WaystationError | None] = [None] * len(asked)
        for row in rows:
            n = row["n"] - 1
            if row["removed"]:
                removed[n] = layout.read_message(row)
            else:
                head = None if row["message_id"] is None else layout.read_message(row)
                answers[n] = Acknowledged(removed.get(n), head)
        return answers

    # Inside

    async def _asked(self, group: Batcher[Q, A], question: Q) -> A:
        try:
            return await group.ask(question)
        except (UnavailableError, BusyError) as exc:
            raise QueueStoreUnavailableError(str(exc)) from exc

    async def _read(self, statement: str, *args: object) -> list[layout.Row]:
        try:
            return list(await self._session.read(statement, *args))
        except (UnavailableError, BusyError) as exc:
            raise QueueStoreUnavailableError(str(exc)) from exc

    async def _change(self, statement: str, *args: object) -> list[layout.Row]:
        try:
            return list(await self._session.change(statement, *args))
        except (UnavailableError, BusyError) as exc:
            raise QueueStoreUnavailableError(str(exc)) from exc

    async def _applied(self, statement: str, *args: object) -> bool:
        """Whether a row was changed; False also if an id is already taken."""
        try:
            return bool(await self._session.change_or_collide(statement, *args))
        except (UnavailableError, BusyError) as exc:
            raise QueueStoreUnavailableError(str(exc)) from exc

    async def _change_notifier(self, recipient_id: RecipientId, *values: object) -> NotifierChange:
        try:
            rows = await self._session.change_or_collide(
                self._sql.set_notifier, recipient_id, *values
            )
        except (UnavailableError, BusyError) as exc:
            raise QueueStoreUnavailableError(str(exc)) from exc
        if not rows:
            return NotifierChange(applied=False)
        previous = rows[0]["previous"]
        return NotifierChange(True, None if previous is None else NotifierId(previous))


def _bounds(slot: Slot) -> tuple[bytes, bytes]:
    """The first and the last id of a slot."""
    first, last = bytes((slot >> 4, (slot & 15) << 4)), bytes((slot >> 4, (slot & 15) << 4 | 15))
    return first, last + b"\xff" * 22
