"""Moderation of a queue by an operator, after a complaint."""

from waystation.base.clock import Clock
from waystation.base.errors import WaystationError
from waystation.queue.control import Outcome
from waystation.queue.errors import Blocked
from waystation.queue.model import Blocking, Queue, Standing, day_of
from waystation.queue.server.dispatch import Dispatch
from waystation.queue.server.subscribers import Subscribers
from waystation.queue.store import Party, QueueStore
from waystation.queue.wire.responses import Err


class Moderation:
    """The `ModerationCommands` of the control port and of a cluster's links."""

    def __init__(
        self,
        *,
        store: QueueStore,
        dispatch: Dispatch,
        subscribers: Subscribers,
        clock: Clock,
        daily_block_quota: int,
    ) -> None:
        self._store = store
        self._dispatch = dispatch
        self._subscribers = subscribers
        self._clock = clock
        self._daily_block_quota = daily_block_quota
        self._blocked_on = 0
        self._blocked = 0

    async def status(self, entity_id: bytes) -> str:
        try:
            queue = await self.find(entity_id)
        except WaystationError:
            return Outcome.NOT_NOW.value
        if queue is None:
            return Outcome.UNKNOWN.value
        if queue.standing is Standing.BLOCKED and queue.blocking is not None:
            return f"blocked,reason={queue.blocking.reason.value}"
        return queue.standing.value

    async def block(self, entity_id: bytes, blocking: Blocking) -> Outcome:
        today_s = day_of(self._clock.now_ms() // 1000)
        if today_s != self._blocked_on:
            self._blocked_on, self._blocked = today_s, 0
        if self._blocked >= self._daily_block_quota:
            return Outcome.QUOTA
        try:
            queue = await self.find(entity_id)
            if queue is None or not await self._store.block(queue.recipient_id, blocking):
                return Outcome.UNKNOWN
        except WaystationError:
            return Outcome.NOT_NOW
        self._blocked += 1
        subscription = self._subscribers.of_queue(queue.recipient_id)
        if subscription is not None:
            subscription.client.tell(queue.recipient_id, Err(Blocked(blocking)))
        return Outcome.DONE

    async def unblock(self, entity_id: bytes) -> Outcome:
        try:
            queue = await self.find(entity_id)
            if queue is None:
                return Outcome.UNKNOWN
            applied = await self._store.unblock(queue.recipient_id)
        except WaystationError:
            return Outcome.NOT_NOW
        return Outcome.DONE if applied else Outcome.NOT_BLOCKED

    async def delete(self, entity_id: bytes) -> Outcome:
        try:
            queue = await self.find(entity_id)
            deleted = None if queue is None else await self._store.delete(queue.recipient_id)
        except WaystationError:
            return Outcome.NOT_NOW
        if deleted is None:
            return Outcome.UNKNOWN
        self._dispatch.forget(deleted.queue)
        return Outcome.DONE

    async def find(self, entity_id: bytes) -> Queue | None:
        queue = await self._store.find(Party.SENDER, entity_id)
        return await self._store.find(Party.LINK, entity_id) if queue is None else queue
