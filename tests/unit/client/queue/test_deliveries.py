"""Messages that are handed over, and ACKs that are repeated."""

from waystation.client.queue.deliveries import REMEMBERED_MAX, Deliveries, Verdict

QUEUE = b"q"


def test_a_message_is_handed_over_once() -> None:
    deliveries = Deliveries()

    assert deliveries.arrived(QUEUE, b"1") is Verdict.HAND_OVER
    assert deliveries.arrived(QUEUE, b"1") is Verdict.HELD
    deliveries.acked(QUEUE, b"1")
    assert deliveries.arrived(QUEUE, b"1") is Verdict.ACK_AGAIN
    assert deliveries.arrived(QUEUE, b"2") is Verdict.HAND_OVER
    assert deliveries.repeated == 2


def test_queues_have_nothing_to_do_with_each_other() -> None:
    deliveries = Deliveries()
    deliveries.arrived(QUEUE, b"1")

    assert deliveries.arrived(b"other", b"1") is Verdict.HAND_OVER


def test_what_was_handled_before_is_only_acked() -> None:
    deliveries = Deliveries()
    deliveries.expect(QUEUE, [b"1"])

    assert deliveries.arrived(QUEUE, b"1") is Verdict.ACK_AGAIN


def test_a_queue_that_was_forgotten_starts_anew() -> None:
    deliveries = Deliveries()
    deliveries.arrived(QUEUE, b"1")
    deliveries.forget(QUEUE)

    assert deliveries.arrived(QUEUE, b"1") is Verdict.HAND_OVER


def test_only_the_last_few_are_remembered() -> None:
    deliveries = Deliveries()
    for number in range(REMEMBERED_MAX + 1):
        deliveries.arrived(QUEUE, bytes([number]))
        deliveries.acked(QUEUE, bytes([number]))

    assert deliveries.arrived(QUEUE, bytes([REMEMBERED_MAX])) is Verdict.ACK_AGAIN
    assert deliveries.arrived(QUEUE, bytes([0])) is Verdict.HAND_OVER
