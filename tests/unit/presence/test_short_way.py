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


def short_way(stage: Stage) -> ShortWay:
    return ShortWay(stage.broker.registry, stage.broker._desk)


MESSAGES: dict[str, Callable[[list[int]], bytes]] = {
    "receipt": lambda ids: said(ACK, ack_message_ids=ids[-1:]),
    "receipts": lambda ids: said(ACK, ack_message_ids=ids),
    "receipts in another order": lambda ids: said(ACK, ack_message_ids=ids[::-1]),
    "a receipt twice": lambda ids: said(ACK, ack_message_ids=[ids[0], ids[1], ids[0]]),
    "a receipt for nothing": lambda ids: said(ACK, ack_message_ids=[ids[0], 5, 2**64 - 1]),
    "ping": lambda _ids: said(PING, message_id=77),
}


@pytest.mark.parametrize("what", MESSAGES)
def test_both_ways_come_to_the_same_end(stage_with: Make, what: str) -> None:
    ends: list[tuple[object, ...]] = []
    for short in (True, False):
        stage = stage_with()
        stage.broker.reception._make_token = bytes  # the same for both
        actor, _ = owing(stage)
        for client in range(3, 9):
            stage.member(client)
        actor.take()
        data = MESSAGES[what](list(session_of(actor).delivery.inflight))
        stage.clock.advance(1.0)
        if short:
            assert short_way(stage).take(session_of(actor), actor.stream, data)
        else:
            stage.broker._take(actor.stream.holder, data)
        ends.append(after(actor)[:-1] + tuple(len(one) for one in actor.stream.raw))

    assert ends[0] == ends[1]


def test_a_sample_among_several_receipts_is_found_by_the_long_way(stage_with: Make) -> None:
    stage = stage_with()
    actor, message_id = owing(stage)
    stage.member(3)
    data = said(ACK, ack_message_ids=[message_id, actor.take()[-1].message_id])
    way, desk = short_way(stage), stage.broker._desk
    desk.acks_until_sample = 2

    assert not way.take(session_of(actor), actor.stream, data)
    desk.acks_until_sample = 3
    assert way.take(session_of(actor), actor.stream, data)
    assert desk.acks_until_sample == 1


def test_what_is_not_exactly_such_a_message_is_left_alone(stage_with: Make) -> None:
    stage = stage_with()
    actor, message_id = owing(stage)
    before = after(actor)
    take = short_way(stage).take
    for data in (
        said(ACK, ack_message_ids=[message_id + 1]),  # nothing that is outstanding
        said(ACK, ack_message_ids=[message_id + 1, message_id]),
        said(ACK, ack_message_ids=[message_id, message_id], party_seq=1),
        said(ACK, ack_message_ids=[message_id] * 16),
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
    take = short_way(stage).take
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

    assert not short_way(stage).take(session_of(actor), actor.stream, data)
    actor.say_bytes(data)
    assert [one.message_type for one in actor.take()] == [ACK]
