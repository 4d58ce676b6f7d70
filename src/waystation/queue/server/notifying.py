"""Notifiers: who asks to be told that there is a message, and telling them (§5.6)."""

import secrets

from waystation.base.clock import Clock
from waystation.queue.errors import Code, WeakKeyError
from waystation.queue.model import Message, Notifier, NotifierId, Queue
from waystation.queue.server.creation import new_notifier
from waystation.queue.server.ids import IdMaker
from waystation.queue.server.notifications import Notifications
from waystation.queue.server.observer import Observer
from waystation.queue.server.subscribers import Subscriber, Subscribers
from waystation.queue.store import PendingNotification, QueueStore
from waystation.queue.wire.commands import NewNotifier, Nkey
from waystation.queue.wire.delivery import encrypt_meta
from waystation.queue.wire.responses import (
    DELETED,
    END,
    NONCE_BYTES,
    OK,
    Err,
    Nid,
    Nmsg,
    Response,
)

_TRIES_MAX = 4
_HOUR_S = 3600


class Notifying:
    def __init__(
        self,
        *,
        store: QueueStore,
        subscribers: Subscribers,
        notifications: Notifications,
        ids: IdMaker,
        observer: Observer,
        clock: Clock,
    ) -> None:
        self._store = store
        self._subscribers = subscribers
        self._notifications = notifications
        self._ids = ids
        self._observer = observer
        self._clock = clock

    # Commands

    async def set_notifier(self, queue: Queue, command: Nkey) -> Response:
        asked = NewNotifier(command.key, command.dh_key)
        for _ in range(_TRIES_MAX):
            try:
                notifier, ids = new_notifier(self._ids, queue.recipient_id, asked)
            except WeakKeyError:
                return Err(Code.CMD_SYNTAX)
            change = await self._store.set_notifier(queue.recipient_id, notifier)
            if change.applied:
                if change.previous is not None:
                    self.gone(change.previous)
                return Nid(ids.notifier_id, ids.dh_key)
        return Err(Code.AUTH)  # the queue is gone meanwhile

    async def drop_notifier(self, queue: Queue) -> Response:
        change = await self._store.drop_notifier(queue.recipient_id)
        if not change.applied:
            return Err(Code.AUTH)
        if change.previous is not None:
            self.gone(change.previous)
        return OK

    def subscribe(self, client: Subscriber, notifier_id: NotifierId) -> None:
        before = self._subscribers.subscribe_notifier(client, notifier_id)
        if before is not None:
            before.tell(notifier_id, END)

    def gone(self, notifier_id: NotifierId) -> None:
        """Nobody is told of messages under this id any more."""
        self._notifications.forget(notifier_id)
        subscriber = self._subscribers.notifier_gone(notifier_id)
        if subscriber is not None:
            subscriber.tell(notifier_id, DELETED)

    # Notifications

    def announce(self, notifier: Notifier, message: Message) -> None:
        nonce = secrets.token_bytes(NONCE_BYTES)
        meta = encrypt_meta(notifier.box_key, nonce, message.message_id, message.accepted_at_s)
        waiting = PendingNotification(notifier.notifier_id, nonce, meta, message.accepted_at_s)
        lost = self._notifications.lost
        self._notifications.add(waiting)
        kept = int(self._subscribers.of_notifier(notifier.notifier_id) is None)
        self._observer.notified(lost=self._notifications.lost - lost, kept=kept)

    def hand_over(self) -> None:
        """Give everybody what waits for them."""
        subscribed = [
            one
            for one in self._notifications.notifier_ids()
            if self._subscribers.of_notifier(one) is not None
        ]
        if subscribed:
            sent = self._notifications.hand_over(self._deliver, subscribed)
            self._observer.notified(sent=sent)

    def expire(self, hours: float) -> None:
        before_s = self._clock.now_ms() // 1000 - int(hours * _HOUR_S)
        gone = self._notifications.expire(before_s)
        if gone:
            self._observer.notified(expired=gone)

    async def save(self) -> None:
        await self._store.save_pending(self._notifications.all())

    async def restore(self) -> None:
        for one in await self._store.take_pending():
            self._notifications.add(one)

    def _deliver(self, waiting: PendingNotification) -> bool:
        client = self._subscribers.of_notifier(waiting.notifier_id)
        if client is None or client.congested:
            return False
        client.tell(waiting.notifier_id, Nmsg(waiting.nonce, waiting.meta))
        return True
