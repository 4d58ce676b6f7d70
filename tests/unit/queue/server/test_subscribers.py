"""The subscribers of queues, notifiers and services."""

from tests.unit.queue.server.connected import Told
from waystation.queue.model import NotifierId, ServiceId
from waystation.queue.server.subscribers import Subscribers
from waystation.testing.conformance.queue_samples import new_queue

NOTIFIER = NotifierId(bytes(24))


def test_a_queue_has_one_subscriber_and_the_last_one_wins() -> None:
    subscribers, first, second, queue = Subscribers(), Told(), Told(), new_queue()
    assert subscribers.subscribe(first, queue) is not None
    taken = subscribers.subscribe(second, queue)

    assert taken is not None
    assert taken[1] is first
    assert queue.recipient_id not in first.subscriptions
    current = subscribers.of_queue(queue.recipient_id)
    assert current is not None
    assert current.client is second
    assert len(subscribers) == 1


def test_subscribing_again_forgets_what_was_delivered() -> None:
    subscribers, client, queue = Subscribers(), Told(), new_queue()
    taken = subscribers.subscribe(client, queue)
    assert taken is not None
    taken[0].hand_over(b"m" * 24, 1.0)  # pyright: ignore[reportArgumentType]
    again = subscribers.subscribe(client, queue)

    assert again is not None
    assert again == (taken[0], None)
    assert taken[0].delivered is None


def test_a_connection_subscribes_or_gets_but_not_both() -> None:
    subscribers, client, queue, other = Subscribers(), Told(), new_queue(), new_queue()
    subscribers.subscribe(client, queue)
    assert subscribers.get_only(client, queue) is None
    getting = subscribers.get_only(client, other)

    assert getting is not None
    assert subscribers.subscribe(client, other) is None
    assert subscribers.get_only(client, other) is getting
    assert subscribers.of_queue(other.recipient_id) is None


def test_a_closed_connection_loses_only_its_own_subscriptions() -> None:
    subscribers, first, second, queue = Subscribers(), Told(), Told(), new_queue()
    own = new_queue()
    subscribers.subscribe(first, queue)
    subscribers.subscribe(first, own)
    subscribers.subscribe(second, queue)
    subscribers.subscribe_notifier(first, NOTIFIER)
    subscribers.leave(first)

    assert subscribers.of_queue(own.recipient_id) is None
    assert subscribers.of_queue(queue.recipient_id) is not None
    assert subscribers.of_notifier(NOTIFIER) is None
    assert subscribers.notifier_count == 0


def test_a_notifier_is_taken_over_and_the_same_one_may_repeat() -> None:
    subscribers, first, second = Subscribers(), Told(), Told()

    assert subscribers.subscribe_notifier(first, NOTIFIER) is None
    assert subscribers.subscribe_notifier(first, NOTIFIER) is None
    assert subscribers.subscribe_notifier(second, NOTIFIER) is first
    assert subscribers.notifier_gone(NOTIFIER) is second
    assert subscribers.notifier_gone(NOTIFIER) is None


def test_a_deleted_queue_has_no_subscriber() -> None:
    subscribers, client, queue = Subscribers(), Told(), new_queue()
    taken = subscribers.subscribe(client, queue)

    assert taken is not None
    assert subscribers.queue_gone(queue.recipient_id) is client
    assert not subscribers.is_current(taken[0])
    assert subscribers.queue_gone(queue.recipient_id) is None
    assert list(subscribers) == []


def test_a_connection_that_has_gone_subscribes_to_nothing() -> None:
    """It left while the store was asked for it: nobody would ever take it out again."""
    subscribers, gone, here, queue = Subscribers(), Told(), Told(), new_queue()
    subscribers.subscribe(here, queue)
    subscribers.subscribe_notifier(here, NOTIFIER)
    gone.gone = True
    taken = subscribers.subscribe(gone, queue)
    subscribers.subscribe(gone, new_queue())

    assert taken is not None
    assert taken[1] is None
    assert not subscribers.is_current(taken[0])
    assert len(subscribers) == 1
    assert subscribers.subscribe_notifier(gone, NOTIFIER) is None
    assert subscribers.of_notifier(NOTIFIER) is here
    assert subscribers.subscribe_service(gone, ServiceId(bytes(24))) is None
    assert subscribers.of_service(ServiceId(bytes(24))) is None
