"""Messages of servers reach the right client unchanged."""

from tests.unit.queue.edge.stage import (
    AT_A,
    A,
    C,
    World,
    begin,
    error,
    moved,
    send,
    slot_map,
    subscribed,
)
from waystation.queue.edge.effects import Budget
from waystation.queue.errors import Code
from waystation.queue.model import MessageId, RecipientId, slot_of
from waystation.queue.wire import commands as c
from waystation.queue.wire import link_messages as w
from waystation.queue.wire.link import ServerTransmission


def test_answers_and_events_go_to_the_client_as_they_are(world: World) -> None:
    session, other = world.session(), world.session()
    _, corr_id = world.say(session, c.Sub(), AT_A)

    world.reply(A, session, corr_id, AT_A, b"SOK 0")
    world.reply(A, session, b"", AT_A, b"MSG body")
    world.hear(A, 999, ServerTransmission(b"for nobody"))

    assert world.told(other) == []
    world.reply(A, session, b"", AT_A, b"MSG body")
    assert world.told(session) == [b"MSG body"]


def test_the_refusal_of_an_unknown_id_takes_as_long_as_with_a_reference() -> None:
    world = World()
    session = world.session()
    _, corr_id = send(world, session, b"1")
    world.reply(A, session, corr_id, AT_A, error(Code.AUTH))

    assert world.told(session) == []
    world.hop()
    assert world.told(session) == [error(Code.AUTH)]
    _, corr_id = world.say(session, c.Sub(), AT_A)  # a recipient's id never has a reference
    world.reply(A, session, corr_id, AT_A, error(Code.AUTH))
    assert world.told(session) == [error(Code.AUTH)]


def test_what_clients_do_too_often_is_counted(world: World) -> None:
    session = world.session()
    begin(world, session)
    _, corr_id = world.say(session, c.Sub(), AT_A)
    world.reply(A, session, corr_id, AT_A, error(Code.AUTH))

    assert world.budgets == [Budget.CREATIONS, Budget.REFUSALS]


def test_end_removes_the_subscription(world: World) -> None:
    """Q-122"""
    session, _, _ = subscribed(world, AT_A, A)

    world.reply(A, session, b"", AT_A, b"END")
    world.edge.learned(moved(slot_map(), slot_of(AT_A), owner=C))

    assert world.told(session) == [b"END"]
    assert world.take() == []


def test_a_message_of_a_server_that_has_its_queue_no_more_is_dropped(world: World) -> None:
    """It was under way when the slot moved. The new server has delivered it meanwhile, and the
    client may have acknowledged it: then it would come again."""
    session, _, _ = subscribed(world, AT_A, A)
    slot = slot_of(AT_A)
    frozen = moved(slot_map(), slot, owner=A, target=C, state="F")

    world.edge.learned(frozen)
    world.reply(A, session, b"", AT_A, b"MSG one")
    assert world.told(session) == [b"MSG one"]  # the slot may stay, and then nobody says it again
    world.edge.learned(moved(frozen, slot, owner=C))
    world.reply(A, session, b"", AT_A, b"MSG two")
    assert world.told(session) == []
    world.reply(C, session, b"", AT_A, b"MSG two")
    assert world.told(session) == [b"MSG two"]


def test_a_message_got_and_not_acknowledged_is_known_at_the_new_server(world: World) -> None:
    session = world.session()
    _, corr_id = world.say(session, c.Get(), AT_A)
    world.reply(A, session, corr_id, AT_A, b"MSG \x02id" + b"body")
    world.take()

    world.edge.learned(moved(slot_map(), slot_of(AT_A), owner=C))

    assert world.take() == [(C, w.Sdlv(RecipientId(AT_A), True, MessageId(b"id")))]
    _, corr_id = world.say(session, c.Ack(MessageId(b"id")), AT_A)
    world.reply(C, session, corr_id, AT_A, b"OK")
    assert not session.delivered
