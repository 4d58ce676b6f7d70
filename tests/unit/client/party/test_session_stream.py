"""Unanswered messages of one stream."""

from waystation.client.party.session_stream import Role, SessionStream
from waystation.presence.wire import party_presence_pb2 as pb
from waystation.presence.wire.party_presence_pb2 import ClientMessage


def test_the_oldest_question_decides_when_a_line_is_dead() -> None:
    stream = SessionStream(1, "a:1", Role.PRIMARY, 0.0)
    stream.said(ClientMessage(message_type=pb.JOIN, message_id=1), 1.0)
    stream.said(ClientMessage(message_type=pb.PING, message_id=2), 3.0)
    assert stream.dead_at(10.0) == 11.0
    stream.answered([1])

    assert stream.dead_at(10.0) == 13.0
    stream.answered([2, 77])
    assert stream.dead_at(10.0) is None


def test_acks_ask_nothing_but_keep_the_line_busy() -> None:
    stream = SessionStream(1, "a:1", Role.PRIMARY, 0.0)
    stream.up = True
    stream.said(ClientMessage(message_type=pb.ACK, message_id=1), 5.0)

    assert stream.dead_at(10.0) is None
    assert stream.ping_at(60.0) == 65.0


def test_only_a_line_that_is_up_and_ours_is_pinged() -> None:
    stream = SessionStream(1, "a:1", Role.PRIMARY, 0.0)
    assert stream.ping_at(60.0) is None
    stream.up = True
    stream.role = Role.FORMER

    assert stream.ping_at(60.0) is None
