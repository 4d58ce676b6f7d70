"""Commands of one client for one id keep their order, also while the slot moves."""

import pytest

from tests.unit.queue.edge.stage import (
    AT_A,
    AT_B,
    AT_C,
    A,
    B,
    C,
    World,
    error,
    moved,
    send,
    slot_map,
)
from waystation.queue.edge import command_routing
from waystation.queue.edge import edge as edges
from waystation.queue.errors import TRY_LATER
from waystation.queue.model import RefKind, slot_of
from waystation.queue.wire import commands as c
from waystation.queue.wire import link_messages as w
from waystation.queue.wire.link import ClientTransmission


def test_a_command_waits_until_those_before_it_have_come_back_from_the_former_server() -> None:
    """Q-123: the map is read between two commands, and the first was sent by the old one."""
    world = World()
    session = world.session()
    first, first_id = send(world, session, b"1")
    world.take()
    world.edge.learned(moved(slot_map(), slot_of(AT_A), owner=B))
    second, second_id = send(world, session, b"2")
    other, _ = send(world, world.session(), b"another client's")

    assert world.take() == [(B, other)]
    world.hear(A, session.stream, w.WrongSlot(first_id, 2))
    assert world.take() == [(B, first), (B, second)]
    for corr_id in (first_id, second_id):
        world.reply(B, session, corr_id, AT_A, b"OK")
    assert world.told(session) == [b"OK", b"OK"]
    assert not session.lanes


def test_all_that_follows_a_refusal_comes_back_before_anything_is_said_again() -> None:
    """A freeze may end between two commands: the second must not be done before the first."""
    world = World()
    session = world.session()
    said = [send(world, session, b"%d" % number) for number in range(3)]
    world.take()

    world.hear(A, session.stream, w.Frozen(said[0][1]))
    world.edge.tick(0.5)  # a server may have thought better of it
    assert world.take() == []
    world.hear(A, session.stream, w.Frozen(said[1][1]))
    later, _ = send(world, session, b"later")
    world.hear(A, session.stream, w.Frozen(said[2][1]))
    assert world.take() == []
    world.edge.tick(1.0)

    again = [(A, one) for one, _ in said]
    assert world.take() == [(A, w.Sagain(AT_A)), *again, (A, later)]


def test_a_reference_found_meanwhile_lets_nothing_overtake() -> None:
    """The third command knows the home already while the second is still on its way back."""
    world = World()
    session = world.session()
    first, first_id = send(world, session, b"1")
    second, second_id = send(world, session, b"2")
    world.take()
    home = slot_of(AT_C)
    world.hear(A, session.stream, w.Moved(first_id, RefKind.SENDER, home))
    third, _ = send(world, session, b"3")

    assert world.take() == []
    world.hear(A, session.stream, w.Moved(second_id, RefKind.SENDER, home))
    assert world.take() == [(A, w.Sagain(AT_A)), (C, first), (C, second), (C, third)]


def test_commands_about_other_ids_do_not_wait() -> None:
    world = World()
    session = world.session()
    _, corr_id = send(world, session, b"1")
    world.take()
    world.hear(A, session.stream, w.Frozen(corr_id))

    elsewhere, _ = send(world, session, b"2", AT_B)

    assert world.take() == [(B, elsewhere)]


def test_a_frozen_slot_holds_its_commands_in_their_order(world: World) -> None:
    """Q-123 in its logic: nothing is lost, nobody is told END."""
    session = world.session()
    first, first_id = world.say(session, c.Send(False, b"1"), AT_A)
    second, second_id = world.say(session, c.Send(False, b"2"), AT_A)
    world.take()
    world.hear(A, session.stream, w.Frozen(first_id))
    third, _ = world.say(session, c.Send(False, b"3"), AT_A)
    world.hear(A, session.stream, w.Frozen(second_id))
    elsewhere, _ = world.say(session, c.Send(False, b"x"), AT_B)

    assert world.take() == [(B, ClientTransmission(elsewhere))]
    frozen = moved(slot_map(), slot_of(AT_A), owner=A, target=C, state="F")
    world.edge.learned(frozen)
    assert world.take() == []
    world.edge.learned(moved(frozen, slot_of(AT_A), owner=C))

    assert world.take() == [
        (C, ClientTransmission(first)),
        (C, ClientTransmission(second)),
        (C, ClientTransmission(third)),
    ]
    assert world.told(session) == []


def test_commands_that_wait_too_long_get_temporary_errors(world: World) -> None:
    """Q-126: a sender is asked to try again, a recipient is disconnected; no other error."""
    sender, recipient = world.session(), world.session()
    world.edge.link_down(A)
    world.say(sender, c.Send(False, b"x"), AT_A, mono=100.0)
    world.say(recipient, c.Sub(), AT_A, mono=100.0)

    world.edge.tick(107.9)
    assert world.told(sender) == []
    assert not world.hung_up
    world.edge.tick(108.0)

    assert world.told(sender) == [error(TRY_LATER)]
    assert world.hung_up == [recipient]
    assert world.told(recipient) == []


def test_a_server_that_answered_moved_gets_sagain_when_the_command_is_given_up(
    world: World,
) -> None:
    """Else it sends on what comes later, to a home that may be another by then."""
    session = world.session()
    _, corr_id = world.say(session, c.Lget(), AT_A, mono=100.0)
    world.edge.link_down(C)
    world.take()
    world.hear(A, session.stream, w.Moved(corr_id, RefKind.LINK, slot_of(AT_C)))
    assert world.take() == []

    world.edge.tick(108.0)
    assert world.told(session) == [error(TRY_LATER)]
    assert world.take() == [(A, w.Sagain(AT_A))]


def test_how_much_may_wait_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_routing, "HELD_MAX", 2)
    monkeypatch.setattr(edges, "PENDING_MAX", 4)
    world.edge.link_down(A)
    sender, busy = world.session(), world.session()

    for _ in range(3):
        world.say(sender, c.Send(False, b"x"), AT_A)
    for _ in range(5):
        world.say(busy, c.Sub(), AT_B)

    assert world.told(sender) == [error(TRY_LATER)]
    assert world.hung_up == [busy]


def test_two_commands_with_the_same_ids_are_both_executed() -> None:
    """A client that gives two commands one id gets two answers, in any order."""
    world = World()
    session = world.session()
    item, corr_id = world.say(session, c.Send(False, b"x"), AT_A)
    world.edge.received(session, [item], 0.0)

    assert world.take() == [(A, ClientTransmission(item))] * 2
    for _ in range(2):
        world.reply(A, session, corr_id, AT_A, b"OK")
    assert world.told(session) == [b"OK", b"OK"]
    assert not session.pending
    assert not session.lanes


def test_answers_wait_for_earlier_ones_but_not_for_long() -> None:
    world = World()
    session = world.session()
    send(world, session, b"slow")
    _, quick_id = send(world, session, b"quick", AT_B)
    world.reply(B, session, quick_id, AT_B, b"OK")
    assert world.told(session) == []

    world.edge.tick(edges.ORDER_WAIT_S)

    assert world.told(session) == [b"OK"]


def test_answers_do_not_wait_for_a_frozen_slot() -> None:
    world = World()
    session = world.session()
    _, slow_id = send(world, session, b"slow")
    _, quick_id = send(world, session, b"quick", AT_B)
    world.reply(B, session, quick_id, AT_B, b"OK")

    world.hear(A, session.stream, w.Frozen(slow_id))

    assert world.told(session) == [b"OK"]
