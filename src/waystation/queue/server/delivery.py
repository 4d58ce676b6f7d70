"""Delivers messages to subscribers: on arrival, or later when there is room.

Rule 1: a message that arrives in an empty queue is sent to a subscriber without an unacknowledged
        message. All other messages are fetched from the store when it is their turn.
Rule 2: for a *congested* connection, one that reads slowly, deliveries are deferred, not buffered:
        the messages stay in the store.
Rule 3: a deferred subscription is busy (see `subscribers`) until the store was asked.
"""

from waystation.base.clock import Clock
from waystation.queue.model import Message, RecipientId
from waystation.queue.server.observer import Observer
from waystation.queue.server.subscribers import Subscribers, Subscription
from waystation.queue.store import QueueStore
from waystation.queue.wire.delivery import encrypt_message
from waystation.queue.wire.responses import Msg


class Delivery:
    def __init__(
        self, store: QueueStore, subscribers: Subscribers, observer: Observer, clock: Clock
    ) -> None:
        self._store = store
        self._subscribers = subscribers
        self._observer = observer
        self._clock = clock

    def arrived(self, recipient_id: RecipientId, message: Message) -> None:
        """A message was stored as the only one of its queue."""
        subscription = self._subscribers.of_queue(recipient_id)
        if subscription is None:
            return
        if not subscription.is_open():
            subscription.missed = True
            return
        client = subscription.client
        if client.congested:
            self.put_off(subscription)
            client.wake()
        else:
            client.tell(recipient_id, self.hand_over(subscription, message))

    def put_off(self, subscription: Subscription) -> None:
        subscription.busy = True
        subscription.client.deferred[subscription.recipient_id] = subscription

    async def offer(self, subscription: Subscription) -> None:
        """Delivers the head message of a deferred subscription, if there is one."""
        subscription.busy = True
        recipient_id = subscription.recipient_id
        try:
            while self._is_open(subscription):
                subscription.missed = False
                head = await self._store.head(recipient_id)
                if subscription.missed:
                    continue  # the head has changed meanwhile
                if head is None:
                    return
                if self._is_open(subscription):
                    subscription.client.tell(
                        recipient_id, self.hand_over(subscription, head, waited=True)
                    )
        finally:
            subscription.busy = False

    def _is_open(self, subscription: Subscription) -> bool:
        return self._subscribers.is_current(subscription) and subscription.delivered is None

    def hand_over(
        self, subscription: Subscription, message: Message, *, waited: bool = False
    ) -> Msg:
        """Sends a message; the subscriber must acknowledge it."""
        subscription.hand_over(message.message_id, self._clock.mono())
        self._observer.delivered(subscription.slot, message, waited=waited)
        return Msg(message.message_id, encrypt_message(subscription.box_key, message))
