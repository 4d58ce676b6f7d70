"""A connection that breaks at any moment: the caller gets every message once, in order.

The model is a server as the protocol has it: one message is given at a time, again after each
break, and the answer to an ACK is the next one. Answers get lost.
"""

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.unit.client.queue.peer import a_queue, message
from waystation.client.queue.answers import Message, decode_answer
from waystation.client.queue.events import Received
from waystation.client.queue.inbox import Inbox
from waystation.client.queue.transmission import Reply

QUEUE = a_queue()
ID = QUEUE.recipient_id
LOST = st.sampled_from(["nothing", "the command", "the answer"])


def given(number: int) -> Message:
    words = message(QUEUE, number.to_bytes(24), b"%d" % number)
    answer = decode_answer(words, 18)
    assert isinstance(answer, Message)
    return answer


class Exchange(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.inbox = Inbox()
        self.inbox.follow(QUEUE)
        self.sent = 0
        self.waiting: list[int] = []  # with the server
        self.delivered: int | None = None  # by the server, on this connection
        self.connected = True
        self.held: Received | None = None
        self.seen: list[int] = []

    # the server

    def give(self) -> None:
        """MSG as an event, if there is something and nothing is under way."""
        if self.connected and self.delivered is None and self.waiting:
            self.delivered = self.waiting[0]
            event = Reply(b"", ID, given(self.waiting[0]))
            self.to_ack(self.inbox.event(event), "nothing")

    def to_ack(self, messages: Sequence[tuple[object, bytes]], lost: str) -> None:
        """What the client acknowledges without its caller."""
        for _, message_id in messages:
            self.acknowledge(int.from_bytes(message_id), lost)

    def acknowledge(self, number: int, lost: str) -> None:
        if not self.connected or lost == "the command":
            self.hang_up()
            return
        if self.delivered != number:
            return  # NO_MSG
        self.delivered = None
        if self.waiting and self.waiting[0] == number:
            self.waiting.pop(0)
        if lost == "the answer":
            self.hang_up()
        elif self.waiting:
            self.delivered = self.waiting[0]
            self.to_ack(self.inbox.message(QUEUE, given(self.waiting[0])), "nothing")

    def hang_up(self) -> None:
        self.connected = False
        self.delivered = None

    # what happens

    @rule()
    def somebody_sends(self) -> None:
        self.waiting.append(self.sent)
        self.sent += 1
        self.give()

    @precondition(lambda self: self.connected)
    @rule()
    def the_line_breaks(self) -> None:
        self.hang_up()

    @precondition(lambda self: not self.connected)
    @rule()
    def the_client_comes_back(self) -> None:
        self.connected = True
        self.give()

    @precondition(lambda self: self.connected)
    @rule()
    def the_client_subscribes_again(self) -> None:
        self.delivered = None
        self.give()

    @precondition(lambda self: self.held is None and len(self.inbox) > 0)
    @rule()
    def the_caller_takes_a_message(self) -> None:
        event = self.inbox.take()
        assert isinstance(event, Received)
        self.held = event
        self.seen.append(int(event.body))

    @precondition(lambda self: self.held is not None)
    @rule(lost=LOST)
    def the_caller_acknowledges(self, lost: str) -> None:
        assert self.held is not None
        self.inbox.deliveries.acked(ID, self.held.message_id)
        number, self.held = int(self.held.body), None
        if self.connected:
            self.acknowledge(number, lost)

    @invariant()
    def everything_is_seen_once_and_in_order(self) -> None:
        assert self.seen == list(range(len(self.seen)))

    def teardown(self) -> None:
        """Once the line holds, the rest arrives."""
        for _ in range(2 * self.sent + 4):
            if not self.connected:
                self.the_client_comes_back()
            if self.held is not None:
                self.the_caller_acknowledges("nothing")
            elif len(self.inbox):
                self.the_caller_takes_a_message()
        assert self.seen == list(range(self.sent))
        assert self.waiting == []


TestExchange = Exchange.TestCase
TestExchange.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
