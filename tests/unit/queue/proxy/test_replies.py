"""What servers say reaches the client it is for, as it is and when it may."""

from tests.unit.queue.proxy.stage import (
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
from waystation.queue.errors import Code
from waystation.queue.model import MessageId, RecipientId, slot_of
from waystation.queue.proxy.outlet import Budget
from waystation.queue.wire import commands as c
from waystation.queue.wire import link_words as w
from waystation.queue.wire.link import Said


def test_answers_and_events_go_to_the_client_as_they_are(world: World) -> None:
    guest, other = world.guest(), world.guest()
    _, corr_id = world.say(guest, c.Sub(), AT_A)

    world.reply(A, guest, corr_id, AT_A, b"SOK 0")
    world.reply(A, guest, b"", AT_A, b"MSG body")
    world.hear(A, 999, Said(b"for nobody"))

    assert world.told(other) == []
    world.reply(A, guest, b"", AT_A, b"MSG body")
    assert world.told(guest) == [b"MSG body"]


def test_that_nobody_has_an_id_takes_as_long_to_say_as_that_it_has_a_reference() -> None:
    world = World()
    guest = world.guest()
    _, corr_id = send(world, guest, b"1")
    world.reply(A, guest, corr_id, AT_A, error(Code.AUTH))

    assert world.told(guest) == []
    world.hop()
    assert world.told(guest) == [error(Code.AUTH)]
    _, corr_id = world.say(guest, c.Sub(), AT_A)  # a recipient's id never has a reference
    world.reply(A, guest, corr_id, AT_A, error(Code.AUTH))
    assert world.told(guest) == [error(Code.AUTH)]


def test_what_clients_do_too_often_is_counted(world: World) -> None:
    guest = world.guest()
    begin(world, guest)
    _, corr_id = world.say(guest, c.Sub(), AT_A)
    world.reply(A, guest, corr_id, AT_A, error(Code.AUTH))

    assert world.budgets == [Budget.CREATIONS, Budget.REFUSALS]


def test_whoever_is_told_end_is_subscribed_no_more(world: World) -> None:
    """Q-122"""
    guest, _, _ = subscribed(world, AT_A, A)

    world.reply(A, guest, b"", AT_A, b"END")
    world.edge.learned(moved(slot_map(), slot_of(AT_A), owner=C))

    assert world.told(guest) == [b"END"]
    assert world.take() == []


def test_a_message_got_and_not_acknowledged_is_known_at_the_new_server(world: World) -> None:
    guest = world.guest()
    _, corr_id = world.say(guest, c.Get(), AT_A)
    world.reply(A, guest, corr_id, AT_A, b"MSG \x02id" + b"body")
    world.take()

    world.edge.learned(moved(slot_map(), slot_of(AT_A), owner=C))

    assert world.take() == [(C, w.Sdlv(RecipientId(AT_A), True, MessageId(b"id")))]
    _, corr_id = world.say(guest, c.Ack(MessageId(b"id")), AT_A)
    world.reply(C, guest, corr_id, AT_A, b"OK")
    assert not guest.delivered
