"""The short way comes to the same end as the long one, and leaves alone what is not its own."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.presence.stage import Actor, Stage
from waystation.presence.model import MessageType, SessionKey
from waystation.presence.session import Session
from waystation.presence.short_way import ShortWay
from waystation.presence.wire.party_presence_pb2 import ClientMessage

ACK, PING = MessageType.ACK, MessageType.PING
Make = Callable[..., Stage]


def said(kind: int, **fields: Any) -> bytes:
    message = ClientMessage(**fields)
    message.message_type = kind  # pyright: ignore[reportAttributeAccessIssue]
    return message.SerializeToString()


def session_of(actor: Actor) -> Session:
    key: Any = (actor.party, actor.client, actor.session)
    return actor.stage.broker.registry.sessions[SessionKey(*key)]


def owing(stage: Stage) -> tuple[Actor, int]:
    """Somebody who has been told of one other and has not acknowledged it."""
    actor = stage.member(1, auto=False)
    stage.member(2)
    return actor, actor.take()[-1].message_id


def after(actor: Actor) -> tuple[object, ...]:
    session = session_of(actor)
    delivery, tally = session.delivery, actor.stage.broker.tally
    return (
        session.last_rx,
        session.messages_in,
        list(delivery.inflight),
        delivery.acked_n,
        delivery.acked_high,
        delivery.unacked_since,
        (tally.acked, tally.acked_again, tally.acked_unknown),
        actor.stream.raw,
    )


@pytest.mark.parametrize("kind", [ACK, PING], ids=["receipt", "ping"])
def test_both_ways_come_to_the_same_end(stage_with: Make, kind: MessageType) -> None:
    ends: list[tuple[object, ...]] = []
    for short in (True, False):
        stage = stage_with()
        stage.broker.reception._make_token = bytes  # the same for both
        actor, message_id = owing(stage)
        data = said(ACK, ack_message_ids=[message_id]) if kind is ACK else said(PING, message_id=77)
        stage.clock.advance(1.0)
        if short:
            assert ShortWay(stage.broker.registry).take(session_of(actor), actor.stream, data)
        else:
            stage.broker._take(actor.stream.holder, data)
        ends.append(after(actor)[:-1] + tuple(len(one) for one in actor.stream.raw))

    assert ends[0] == ends[1]


def test_what_is_not_exactly_such_a_message_is_left_alone(stage_with: Make) -> None:
    stage = stage_with()
    actor, message_id = owing(stage)
    before = after(actor)
    take = ShortWay(stage.broker.registry).take
    for data in (
        said(ACK, ack_message_ids=[message_id + 1]),  # nothing that is outstanding
        said(ACK, ack_message_ids=[message_id, message_id]),
        said(ACK, ack_message_ids=[message_id], party_seq=1),
        said(ACK, message_id=5, ack_message_ids=[message_id]),
        said(PING, message_id=5, party_seq=1),
        said(PING),
        said(MessageType.LEAVE, message_id=5),
        b"",
        bytes(11),
        bytes(12),
    ):
        assert not take(session_of(actor), actor.stream, data)

    assert after(actor) == before


def test_a_ping_that_is_repeated_or_too_soon_is_left_to_the_long_way(stage_with: Make) -> None:
    stage = stage_with(rate_per_s=1.0, rate_burst=2)
    actor = stage.member(1)
    take = ShortWay(stage.broker.registry).take
    session = session_of(actor)
    stage.clock.advance(10.0)

    assert take(session, actor.stream, said(PING, message_id=50))
    assert not take(session, actor.stream, said(PING, message_id=50))
    assert take(session, actor.stream, said(PING, message_id=51))
    assert not take(session, actor.stream, said(PING, message_id=52))


def test_receipts_that_are_to_be_answered_take_the_long_way(stage_with: Make) -> None:
    stage = stage_with(answer_acks=True)
    actor, message_id = owing(stage)
    data = said(ACK, ack_message_ids=[message_id])

    assert not ShortWay(stage.broker.registry).take(session_of(actor), actor.stream, data)
    actor.say_bytes(data)
    assert [one.message_type for one in actor.take()] == [ACK]
