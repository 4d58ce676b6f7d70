"""What one stream still owes an answer to."""

from waystation.client.party.line import Line, Role
from waystation.presence.wire import party_presence_pb2 as pb
from waystation.presence.wire.party_presence_pb2 import ClientMessage


def test_the_oldest_question_decides_when_a_line_is_dead() -> None:
    line = Line(1, "a:1", Role.PRIMARY, 0.0)
    line.said(ClientMessage(message_type=pb.JOIN, message_id=1), 1.0)
    line.said(ClientMessage(message_type=pb.PING, message_id=2), 3.0)
    assert line.dead_at(10.0) == 11.0
    line.answered([1])

    assert line.dead_at(10.0) == 13.0
    line.answered([2, 77])
    assert line.dead_at(10.0) is None


def test_acks_ask_nothing_but_keep_the_line_busy() -> None:
    line = Line(1, "a:1", Role.PRIMARY, 0.0)
    line.up = True
    line.said(ClientMessage(message_type=pb.ACK, message_id=1), 5.0)

    assert line.dead_at(10.0) is None
    assert line.ping_at(60.0) == 65.0


def test_only_a_line_that_is_up_and_ours_is_pinged() -> None:
    line = Line(1, "a:1", Role.PRIMARY, 0.0)
    assert line.ping_at(60.0) is None
    line.up = True
    line.role = Role.FORMER

    assert line.ping_at(60.0) is None
