"""What a client of queues hands over to its caller."""

import msgspec

from .encoding import BadBytesError
from .error_replies import QueueError
from .queue_secrets import Notifier, RecipientQueue


class Received(msgspec.Struct, frozen=True):
    """A message. The next one of its queue comes after it was acknowledged."""

    queue: RecipientQueue
    message_id: bytes
    sent_at_s: int  # when the server took it
    notify: bool
    body: bytes


class Unreadable(msgspec.Struct, frozen=True):
    """A message that does not open with the queue's key; it has to be acknowledged like others."""

    queue: RecipientQueue
    message_id: bytes
    error: BadBytesError


class QuotaReached(msgspec.Struct, frozen=True):
    """The sender was refused while the queue was full. The client acknowledges this by itself."""

    queue: RecipientQueue
    sent_at_s: int


class Taken(msgspec.Struct, frozen=True):
    """Another connection subscribed: nothing comes to us any more, and we do not ask again."""

    queue: RecipientQueue | Notifier


class Gone(msgspec.Struct, frozen=True):
    """The queue, or the notifier, was deleted elsewhere."""

    queue: RecipientQueue | Notifier


class SubscriptionFailed(msgspec.Struct, frozen=True):
    """After a reconnect, or because the operator blocked the queue."""

    queue: RecipientQueue | Notifier
    error: QueueError


class ServiceTaken(msgspec.Struct, frozen=True):
    """Another session of our service has asked for its notifiers, so many: they are told there
    now, and we do not ask again."""

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
