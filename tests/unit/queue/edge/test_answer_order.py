"""The order of answers to a client."""

from waystation.queue.edge import answer_order
from waystation.queue.edge.answer_order import AnswerOrder


def expecting(*numbers: int, subscribing: tuple[int, ...] = ()) -> AnswerOrder:
    order = AnswerOrder()
    for number in numbers:
        order.expect(number, subscribes=number in subscribing)
    return order


def test_answers_come_in_the_order_of_their_commands() -> None:
    order = expecting(1, 2, 3)

    assert order.answered(2, b"two") == []
    assert order.answered(1, b"one") == [b"one", b"two"]
    assert order.at_once(b"pong") == []
    assert order.answered(3, b"three") == [b"three", b"pong"]
    assert order.at_once(b"pong") == [b"pong"]


def test_messages_follow_all_answers_to_subscriptions() -> None:
    """Q-072"""
    order = expecting(1, 2, 3, subscribing=(1, 2))

    assert order.event(b"message of 1") == []
    assert order.answered(1, b"sok 1") == [b"sok 1"]
    assert order.event(b"message of 2") == []
    assert order.answered(2, b"sok 2") == [b"sok 2", b"message of 1", b"message of 2"]
    assert order.answered(3, b"three") == [b"three"]


def test_a_message_may_come_before_the_answer_to_its_sender() -> None:
    """Q-064"""
    order = expecting(1)

    assert order.event(b"message") == [b"message"]
    assert order.answered(1, b"ok") == [b"ok"]


def test_an_event_does_not_overtake_an_answer_that_is_ready() -> None:
    order = expecting(1, 2)

    assert order.answered(2, b"ack") == []
    assert order.event(b"next message") == []
    assert order.answered(1, b"one") == [b"one", b"ack", b"next message"]


def test_answers_do_not_wait_for_commands_that_are_passed_over() -> None:
    order = expecting(1, 2, 3, subscribing=(1,))

    assert order.answered(2, b"two") == []
    assert order.event(b"message") == []
    assert order.pass_over(1) == [b"two", b"message"]
    assert order.answered(1, b"late") == [b"late"]
    assert order.pass_over(1) == []
    assert order.answered(3, b"three") == [b"three"]


def test_what_waits_is_bounded() -> None:
    order = expecting(1, subscribing=(1,))
    events = [b"%d" % number for number in range(answer_order.READY_MAX + 1)]

    for event in events[:-1]:
        assert order.event(event) == []

    assert order.event(events[-1]) == events
    assert order.answered(1, b"late") == [b"late"]
