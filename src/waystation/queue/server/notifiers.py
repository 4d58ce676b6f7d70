"""Subscriptions to notifiers and the notifications that they receive (§5.6).

Rule 1: a notifier is subscribed to by a connection or by a service; a new subscription replaces
        the old one. Notifications of a service go to the connection that it subscribed with last.
Rule 2: the subscribed service is stored with the queue: a service that reconnects subscribes to
        all of its notifiers with one command.
"""

import secrets

from waystation.base.clock import Clock
from waystation.queue.errors import Code, WeakKeyError
from waystation.queue.model import Message, Notifier, NotifierId, Queue, ServiceId, ServiceRole
from waystation.queue.server.creation import new_notifier
from waystation.queue.server.ids import IdMaker
from waystation.queue.server.notifications import Notifications
from waystation.queue.server.observer import Observer
from waystation.queue.server.services import ServiceSession
from waystation.queue.server.subscribers import Subscriber, Subscribers
from waystation.queue.statistics import Belonging
from waystation.queue.store import PendingNotification, QueueStore
from waystation.queue.wire.commands import NewNotifier, Nkey
from waystation.queue.wire.delivery import encrypt_meta
from waystation.queue.wire.responses import (
    DELETED,
    END,
    NONCE_BYTES,
    OK,
    SUBSCRIBED,
    Ends,
    Err,
    Nid,
    Nmsg,
    Response,
    Sok,
    Soks,
)

_TRIES_MAX = 4
_HOUR_S = 3600


class Notifiers:
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
                    self.gone(change.previous, _service_of(queue))
                return Nid(ids.notifier_id, ids.dh_key)
        return Err(Code.AUTH)  # the queue was deleted meanwhile

    async def drop_notifier(self, queue: Queue) -> Response:
        change = await self._store.drop_notifier(queue.recipient_id)
        if not change.applied:
            return Err(Code.AUTH)
        if change.previous is not None:
            self.gone(change.previous, _service_of(queue))
        return OK

    async def subscribe(self, client: Subscriber, queue: Queue) -> Response:
        """Subscribes a connection; replaces a service's subscription."""
        assert queue.notifier is not None
        notifier_id, service_id = queue.notifier.notifier_id, queue.notifier.service_id
        if service_id is not None:
            applied = await self._store.set_notifier_service(queue.recipient_id, notifier_id, None)
            if not applied:
                return Err(Code.AUTH)
            self._notifications.belongs(notifier_id, None)
            self._observer.belongs(ServiceRole.NOTIFIER, Belonging.REMOVED)
            served = self._subscribers.of_service(service_id)
            if served is not None and served is not client:
                served.tell(notifier_id, END)
        before = self._subscribers.subscribe_notifier(client, notifier_id)
        if before is not None:
            before.tell(notifier_id, END)
        return SUBSCRIBED

    async def serve(self, client: Subscriber, queue: Queue, service: ServiceSession) -> Response:
        """Subscribes a service; `serve_all` includes this notifier from now on."""
        assert queue.notifier is not None
        notifier_id, service_id = queue.notifier.notifier_id, service.service_id
        await self._take_over(client, service_id)
        before = queue.notifier.service_id
        if before != service_id:
            applied = await self._store.set_notifier_service(
                queue.recipient_id, notifier_id, service_id
            )
            if not applied:
                return Err(Code.AUTH)
        self._notifications.belongs(notifier_id, service_id)
        self._observer.belongs(ServiceRole.NOTIFIER, Belonging.of(before, service_id))
        for subscriber in (
            self._subscribers.notifier_gone(notifier_id),
            None
            if before is None or before == service_id
            else self._subscribers.of_service(before),
        ):
            if subscriber is not None and subscriber is not client:
                subscriber.tell(notifier_id, END)
        return Sok(service_id)

    async def serve_all(self, client: Subscriber, service: ServiceSession) -> Response:
        """Subscribes this connection to all notifiers of the service."""
        repeated = self._subscribers.of_service(service.service_id) is client
        await self._take_over(client, service.service_id)
        count = await self._store.count_notifiers(service.service_id)
        self._observer.served(ServiceRole.NOTIFIER, count, repeated=repeated)
        return Soks(count)

    async def _take_over(self, client: Subscriber, service_id: ServiceId) -> None:
        before = self._subscribers.subscribe_service(client, service_id)
        if before is not None:
            count = await self._store.count_notifiers(service_id)
            before.tell(service_id, Ends(count))
            self._observer.service_ended(ServiceRole.NOTIFIER)

    def gone(self, notifier_id: NotifierId, service_id: ServiceId | None) -> None:
        """The notifier was removed: ends its subscription."""
        self._notifications.forget(notifier_id)
        subscriber = self._subscribers.notifier_gone(notifier_id)
        if subscriber is None and service_id is not None:
            subscriber = self._subscribers.of_service(service_id)
        if subscriber is not None:
            subscriber.tell(notifier_id, DELETED)

    # Notifications

    def announce(self, notifier: Notifier, message: Message) -> None:
        nonce = secrets.token_bytes(NONCE_BYTES)
        meta = encrypt_meta(notifier.box_key, nonce, message.message_id, message.accepted_at_s)
        waiting = PendingNotification(
            notifier.notifier_id, nonce, meta, message.accepted_at_s, notifier.service_id
        )
        lost = self._notifications.lost
        self._notifications.add(waiting)
        kept = int(self._receiver_of(notifier.notifier_id) is None)
        self._observer.notified(lost=self._notifications.lost - lost, kept=kept)

    def hand_over(self) -> None:
        """Delivers all waiting notifications that have a subscriber."""
        subscribed = [
            one for one in self._notifications.notifier_ids() if self._receiver_of(one) is not None
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
        client = self._receiver_of(waiting.notifier_id)
        if client is None or client.congested:
            return False
        client.tell(waiting.notifier_id, Nmsg(waiting.nonce, waiting.meta))
        return True

    def _receiver_of(self, notifier_id: NotifierId) -> Subscriber | None:
        """The connection that gets the notifications of this notifier."""
        client = self._subscribers.of_notifier(notifier_id)
        service_id = self._notifications.service_of(notifier_id)
        if client is None and service_id is not None:
            return self._subscribers.of_service(service_id)
        return client


def _service_of(queue: Queue) -> ServiceId | None:
    return None if queue.notifier is None else queue.notifier.service_id
