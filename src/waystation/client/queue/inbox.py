"""Events that the server sent and the caller has not taken yet. No I/O: the client asks and acks.

Rule 1: events of queues without a subscription are dropped.
Rule 2: a server sends at most one unacknowledged message per queue. More than that and
        `EVENTS_SPARE` other events fill the inbox, and the session ends.
Rule 3: a notification is only a hint, so those beyond `NOTIFICATIONS_MAX` are counted and dropped.
"""

from collections import deque
from collections.abc import Iterable

from .answers import Deleted, End, Message, Notification, Refused, ServiceEnded
from .bodies import QuotaMarker, open_body, open_notification
from .deliveries import Deliveries, Verdict
from .encoding import BadBytesError
from .error_replies import error_of
from .events import (
    Event,
    Gone,
    Notified,
    QuotaReached,
    Received,
    ServiceTaken,
    SubscriptionFailed,
    Taken,
    Unreadable,
)
from .queue_secrets import Notifier, RecipientQueue
from .transmission import Reply

EVENTS_SPARE = 256
NOTIFICATIONS_MAX = 4096


class Inbox:
    def __init__(self) -> None:
        self.queues: dict[bytes, RecipientQueue] = {}  # subscribed, by recipient id
        self.notifiers: dict[bytes, Notifier] = {}  # subscribed, by notifier id
        self.all_served = False  # subscribed, as a service, to all notifiers
        self.deliveries = Deliveries()
        self.notifications_dropped = 0
        self._events: deque[Event] = deque()
        self._notifications = 0  # of the events

    def follow(self, queue: RecipientQueue, acked: Iterable[bytes] = ()) -> None:
        self.deliveries.expect(queue.recipient_id, acked)
        self.queues[queue.recipient_id] = queue

    def unfollow(self, recipient_id: bytes) -> None:
        self.queues.pop(recipient_id, None)
        self.deliveries.forget(recipient_id)

    def __len__(self) -> int:
        return len(self._events)

    def take(self) -> Event | None:
        if not self._events:
            return None
        event = self._events.popleft()
        self._notifications -= isinstance(event, Notified)
        return event

    def put(self, event: Event) -> None:
        if len(self._events) - self._notifications >= len(self.queues) + EVENTS_SPARE:
            raise BadBytesError("the server sent a message before the ACK of the last")
        self._events.append(event)

    def event(self, reply: Reply) -> list[tuple[RecipientQueue, bytes]]:
        """Takes an event; returns messages that are to be acknowledged at once."""
        queue = self.queues.get(reply.entity_id)
        followed = queue or self.notifiers.get(reply.entity_id)
        match reply.answer:
            case Message() as message if queue is not None:
                return self.message(queue, message)
            case Notification() as notification:
                self._notified(reply.entity_id, notification)
            case End() if followed is not None:
                self._stop(reply.entity_id)
                self.put(Taken(followed))
            case Deleted() if followed is not None:
                self._stop(reply.entity_id)
                self.put(Gone(followed))
            case Refused(error_reply) if followed is not None:
                self._stop(reply.entity_id)
                self.put(SubscriptionFailed(followed, error_of(error_reply)))
            case ServiceEnded(count):
                self.all_served = False
                self.notifiers.clear()
                self.put(ServiceTaken(count))
            case _:
                pass
        return []

    def message(
        self, queue: RecipientQueue, message: Message
    ) -> list[tuple[RecipientQueue, bytes]]:
        """Also for a message in the answer to ACK."""
        match self.deliveries.arrived(queue.recipient_id, message.message_id):
            case Verdict.HELD:
                return []
            case Verdict.ACK_AGAIN:
                return [(queue, message.message_id)]
            case Verdict.HAND_OVER:
                opened = self.open(queue, message)
                self.put(opened)
                if isinstance(opened, QuotaReached):
                    self.deliveries.acked(queue.recipient_id, message.message_id)
                    return [(queue, message.message_id)]
                return []

    def open(self, queue: RecipientQueue, message: Message) -> Received | Unreadable | QuotaReached:
        try:
            body = open_body(queue.box_key, message.message_id, message.sealed)
        except BadBytesError as exc:
            return Unreadable(queue, message.message_id, exc)
        if isinstance(body, QuotaMarker):
            return QuotaReached(queue, body.sent_at_s)
        return Received(queue, message.message_id, body.sent_at_s, body.notify, body.text)

    def _notified(self, notifier_id: bytes, notification: Notification) -> None:
        notifier = self.notifiers.get(notifier_id)
        if notifier is None:
            return
        if self._notifications >= NOTIFICATIONS_MAX:
            self.notifications_dropped += 1
            return
        meta = open_notification(notifier.box_key, notification.nonce, notification.sealed)
        self._notifications += 1
        self._events.append(Notified(notifier, meta.message_id, meta.sent_at_s))

    def _stop(self, entity_id: bytes) -> None:
        self.queues.pop(entity_id, None)
        self.notifiers.pop(entity_id, None)
