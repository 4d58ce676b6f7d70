"""Subscriptions: which client receives a queue's messages, and its unacknowledged message.

Rule 1: a queue has at most one subscriber, a notifier and a service likewise. A new subscriber
        replaces the previous one, which gets END.
Rule 2: a connection either subscribes to a queue or gets from it, never both.
Rule 3: at most one unacknowledged message of a queue is with its subscriber; nothing else is
        delivered until its ACK. `delivered` belongs to the connection and ends with it.
Rule 4: while the store is asked on behalf of a subscription it is *busy*; a message that arrives
        meanwhile is *missed*, and the store is asked again. So no message is left waiting,
        whatever the order of answers.
Rule 5: a connection that closed while the store was asked subscribes to nothing: its entry would
        never be removed.

A core: inputs are method calls, results name the clients to tell. No socket and no store.
"""

from collections.abc import Iterator
from typing import Protocol

from waystation.queue.model import (
    BoxKey,
    MessageId,
    NotifierId,
    Queue,
    RecipientId,
    ServiceId,
    Slot,
    slot_of,
)
from waystation.queue.server.services import ServiceSession
from waystation.queue.wire.responses import Response


class Subscription:
    """The relation of one connection to one queue."""

    __slots__ = (
        "box_key",
        "busy",
        "client",
        "delivered",
        "delivered_at",
        "gets",
        "missed",
        "recipient_id",
    )

    def __init__(self, client: "Subscriber", queue: Queue, *, gets: bool) -> None:
        self.client = client
        self.recipient_id: RecipientId = queue.recipient_id
        self.box_key: BoxKey = queue.box_key
        self.gets = gets  # fetches by GET instead of subscribing
        self.delivered: MessageId | None = None
        self.delivered_at = 0.0  # mono
        self.busy = False
        self.missed = False

    @property
    def slot(self) -> Slot:
        return slot_of(self.recipient_id)

    def is_open(self) -> bool:
        """Whether a message may be delivered now."""
        return not self.busy and self.delivered is None

    def hand_over(self, message_id: MessageId, mono: float) -> None:
        self.delivered = message_id
        self.delivered_at = mono
        self.missed = False


class Subscriber(Protocol):
    """A connection, as subscriptions and deliveries use it."""

    subscriptions: dict[RecipientId, Subscription]
    notifiers: dict[NotifierId, None]  # a set; a dict is smaller while it is empty
    deferred: dict[RecipientId, Subscription]
    service: ServiceSession | None
    gone: bool  # the connection is closed

    @property
    def congested(self) -> bool:
        """Whether it reads so slowly that deliveries wait."""
        ...

    def tell(self, entity_id: bytes, response: Response) -> None:
        """Sends an event."""
        ...

    def wake(self) -> None:
        """A delivery was deferred: `has_room` is called when there is room."""
        ...


class Subscribers:
    def __init__(self) -> None:
        self._by_queue: dict[RecipientId, Subscription] = {}
        self._by_notifier: dict[NotifierId, Subscriber] = {}
        self._by_service: dict[ServiceId, Subscriber] = {}

    # Queues

    def subscribe(
        self, client: Subscriber, queue: Queue
    ) -> tuple[Subscription, Subscriber | None] | None:
        """The subscription and the previous subscriber; None if this connection uses GET."""
        recipient_id = queue.recipient_id
        mine = client.subscriptions.get(recipient_id)
        if mine is not None:
            if mine.gets:
                return None
            mine.delivered = None
            return mine, None
        subscription = Subscription(client, queue, gets=False)
        if client.gone:
            return subscription, None  # rule 5
        before = self._by_queue.get(recipient_id)
        client.subscriptions[recipient_id] = subscription
        self._by_queue[recipient_id] = subscription
        if before is None:
            return subscription, None
        before.client.subscriptions.pop(recipient_id, None)
        return subscription, before.client

    def get_only(self, client: Subscriber, queue: Queue) -> Subscription | None:
        """For GET; None if this connection subscribes to the queue."""
        mine = client.subscriptions.get(queue.recipient_id)
        if mine is None:
            mine = Subscription(client, queue, gets=True)
            client.subscriptions[queue.recipient_id] = mine
        return mine if mine.gets else None

    def of_queue(self, recipient_id: RecipientId) -> Subscription | None:
        return self._by_queue.get(recipient_id)

    def is_current(self, subscription: Subscription) -> bool:
        """Whether it was not replaced or ended while the store was asked."""
        held = subscription.client.subscriptions.get(subscription.recipient_id)
        return held is subscription

    def queue_gone(self, recipient_id: RecipientId) -> Subscriber | None:
        """Ends the subscription to a queue; returns the subscriber."""
        subscription = self._by_queue.pop(recipient_id, None)
        if subscription is None:
            return None
        subscription.client.subscriptions.pop(recipient_id, None)
        return subscription.client

    # Notifiers

    def subscribe_notifier(self, client: Subscriber, notifier_id: NotifierId) -> Subscriber | None:
        """Returns the previous subscriber, if that was another connection."""
        if client.gone:
            return None
        before = self._by_notifier.get(notifier_id)
        self._by_notifier[notifier_id] = client
        client.notifiers[notifier_id] = None
        if before is None or before is client:
            return None
        before.notifiers.pop(notifier_id, None)
        return before

    def of_notifier(self, notifier_id: NotifierId) -> Subscriber | None:
        return self._by_notifier.get(notifier_id)

    def notifier_gone(self, notifier_id: NotifierId) -> Subscriber | None:
        client = self._by_notifier.pop(notifier_id, None)
        if client is not None:
            client.notifiers.pop(notifier_id, None)
        return client

    # Services

    def subscribe_service(self, client: Subscriber, service_id: ServiceId) -> Subscriber | None:
        """Returns the previous subscriber, if that was another connection."""
        if client.gone:
            return None
        before = self._by_service.get(service_id)
        self._by_service[service_id] = client
        return None if before is client else before

    def of_service(self, service_id: ServiceId) -> Subscriber | None:
        return self._by_service.get(service_id)

    # Connections

    def leave(self, client: Subscriber) -> None:
        """The connection is closed; no other client is told."""
        for recipient_id, subscription in client.subscriptions.items():
            if self._by_queue.get(recipient_id) is subscription:
                del self._by_queue[recipient_id]
        client.subscriptions.clear()
        client.deferred.clear()
        for notifier_id in client.notifiers:
            if self._by_notifier.get(notifier_id) is client:
                del self._by_notifier[notifier_id]
        client.notifiers.clear()
        if client.service is not None:
            service_id = client.service.service_id
            if self._by_service.get(service_id) is client:
                del self._by_service[service_id]

    def __len__(self) -> int:
        return len(self._by_queue)

    @property
    def notifier_count(self) -> int:
        return len(self._by_notifier)

    def __iter__(self) -> Iterator[Subscription]:
        return iter(self._by_queue.values())
