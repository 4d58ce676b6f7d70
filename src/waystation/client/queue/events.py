"""Events that a queue client hands over to its caller."""

import msgspec

from .encoding import BadBytesError
from .error_replies import QueueError
from .queue_secrets import Notifier, RecipientQueue


class Received(msgspec.Struct, frozen=True):
    """A message. The next one of its queue comes after it was acknowledged."""

    queue: RecipientQueue
    message_id: bytes
    sent_at_s: int  # when the server received it
    notify: bool
    body: bytes


class Unreadable(msgspec.Struct, frozen=True):
    """A message that the queue's key does not decrypt; it must be acknowledged as well."""

    queue: RecipientQueue
    message_id: bytes
    error: BadBytesError


class QuotaReached(msgspec.Struct, frozen=True):
    """The sender was refused while the queue was full. The client acknowledges this by itself."""

    queue: RecipientQueue
    sent_at_s: int


class Taken(msgspec.Struct, frozen=True):
    """Another connection subscribed: no more messages come, and the client does not subscribe."""

    queue: RecipientQueue | Notifier


class Gone(msgspec.Struct, frozen=True):
    """The queue, or the notifier, was deleted by another connection."""

    queue: RecipientQueue | Notifier


class SubscriptionFailed(msgspec.Struct, frozen=True):
    """After a reconnect, or because the operator blocked the queue."""

    queue: RecipientQueue | Notifier
    error: QueueError


class ServiceTaken(msgspec.Struct, frozen=True):
    """Another session of our service has subscribed to this many notifiers: it gets their
    notifications now, and this client does not subscribe again."""

    count: int


class Notified(msgspec.Struct, frozen=True):
    """A message waits in the queue of this notifier."""

    notifier: Notifier
    message_id: bytes
    sent_at_s: int


Event = (
    Received
    | Unreadable
    | QuotaReached
    | Taken
    | Gone
    | SubscriptionFailed
    | ServiceTaken
    | Notified
)
