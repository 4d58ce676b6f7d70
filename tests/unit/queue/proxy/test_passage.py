"""What one client says about one id is done in its order, wherever the slot is by then."""

import pytest

from tests.unit.queue.proxy.stage import (
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
from waystation.queue.errors import TRY_LATER
from waystation.queue.model import RefKind, slot_of
from waystation.queue.proxy import edge as edges
from waystation.queue.proxy import passage
from waystation.queue.wire import commands as c
from waystation.queue.wire import link_words as w
from waystation.queue.wire.link import Sent


def test_a_command_waits_until_those_before_it_have_come_back_from_the_former_server() -> None:
    """Q-123: the map is read between two commands, and the first was sent by the old one."""
    world = World()
    guest = world.guest()
    first, first_id = send(world, guest, b"1")
    world.take()
    world.edge.learned(moved(slot_map(), slot_of(AT_A), owner=B))
    second, second_id = send(world, guest, b"2")
    other, _ = send(world, world.guest(), b"another client's")

    assert world.take() == [(B, other)]
    world.hear(A, guest.stream, w.WrongSlot(first_id, 2))
    assert world.take() == [(B, first), (B, second)]
    for corr_id in (first_id, second_id):
        world.reply(B, guest, corr_id, AT_A, b"OK")
    assert world.told(guest) == [b"OK", b"OK"]
    assert not guest.lanes


def test_all_that_follows_a_refusal_comes_back_before_anything_is_said_again() -> None:
    """A freeze may end between two commands: the second must not be done before the first."""
    world = World()
    guest = world.guest()
    said = [send(world, guest, b"%d" % number) for number in range(3)]
    world.take()

    world.hear(A, guest.stream, w.Frozen(said[0][1]))
    world.edge.tick(0.5)  # a server may have thought better of it
    assert world.take() == []
    world.hear(A, guest.stream, w.Frozen(said[1][1]))
    later, _ = send(world, guest, b"later")
    world.hear(A, guest.stream, w.Frozen(said[2][1]))
    assert world.take() == []
    world.edge.tick(1.0)

    again = [(A, one) for one, _ in said]
    assert world.take() == [(A, w.Sagain(AT_A)), *again, (A, later)]


def test_a_reference_found_meanwhile_lets_nothing_overtake() -> None:
    """The third command knows the home already while the second is still on its way back."""
    world = World()
    guest = world.guest()
    first, first_id = send(world, guest, b"1")
    second, second_id = send(world, guest, b"2")
    world.take()
    home = slot_of(AT_C)
    world.hear(A, guest.stream, w.Moved(first_id, RefKind.SENDER, home))
    third, _ = send(world, guest, b"3")

    assert world.take() == []
    world.hear(A, guest.stream, w.Moved(second_id, RefKind.SENDER, home))
    assert world.take() == [(A, w.Sagain(AT_A)), (C, first), (C, second), (C, third)]


def test_commands_about_other_ids_do_not_wait() -> None:
    world = World()
    guest = world.guest()
    _, corr_id = send(world, guest, b"1")
    world.take()
    world.hear(A, guest.stream, w.Frozen(corr_id))

    elsewhere, _ = send(world, guest, b"2", AT_B)

    assert world.take() == [(B, elsewhere)]


def test_a_frozen_slot_holds_its_commands_in_their_order(world: World) -> None:
    """Q-123 in its logic: nothing is lost, nobody is told END."""
    guest = world.guest()
    first, first_id = world.say(guest, c.Send(False, b"1"), AT_A)
    second, second_id = world.say(guest, c.Send(False, b"2"), AT_A)
    world.take()
    world.hear(A, guest.stream, w.Frozen(first_id))
    third, _ = world.say(guest, c.Send(False, b"3"), AT_A)
    world.hear(A, guest.stream, w.Frozen(second_id))
    elsewhere, _ = world.say(guest, c.Send(False, b"x"), AT_B)

    assert world.take() == [(B, Sent(elsewhere))]
    frozen = moved(slot_map(), slot_of(AT_A), owner=A, target=C, state="F")
    world.edge.learned(frozen)
    assert world.take() == []
    world.edge.learned(moved(frozen, slot_of(AT_A), owner=C))

    assert world.take() == [(C, Sent(first)), (C, Sent(second)), (C, Sent(third))]
    assert world.told(guest) == []


def test_what_waits_too_long_is_told_so_that_clients_come_back(world: World) -> None:
    """Q-126: a sender is asked to try again, a recipient is disconnected; no other error."""
    sender, recipient = world.guest(), world.guest()
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


def test_how_much_may_wait_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passage, "HELD_MAX", 2)
    monkeypatch.setattr(edges, "PENDING_MAX", 4)
    world.edge.link_down(A)
    sender, busy = world.guest(), world.guest()

    for _ in range(3):
        world.say(sender, c.Send(False, b"x"), AT_A)
    for _ in range(5):
        world.say(busy, c.Sub(), AT_B)

    assert world.told(sender) == [error(TRY_LATER)]
    assert world.hung_up == [busy]


def test_two_commands_that_nobody_can_tell_apart_are_both_done() -> None:
    """A client that gives two commands one id gets two answers, in any order."""
    world = World()
    guest = world.guest()
    item, corr_id = world.say(guest, c.Send(False, b"x"), AT_A)
    world.edge.received(guest, [item], 0.0)

    assert world.take() == [(A, Sent(item))] * 2
    for _ in range(2):
        world.reply(A, guest, corr_id, AT_A, b"OK")
    assert world.told(guest) == [b"OK", b"OK"]
    assert not guest.pending
    assert not guest.lanes


def test_answers_wait_for_earlier_ones_but_not_for_long() -> None:
    world = World()
    guest = world.guest()
    send(world, guest, b"slow")
    _, quick_id = send(world, guest, b"quick", AT_B)
    world.reply(B, guest, quick_id, AT_B, b"OK")
    assert world.told(guest) == []

    world.edge.tick(edges.PATIENCE_S)

    assert world.told(guest) == [b"OK"]


def test_answers_do_not_wait_for_a_frozen_slot() -> None:
    world = World()
    guest = world.guest()
    _, slow_id = send(world, guest, b"slow")
    _, quick_id = send(world, guest, b"quick", AT_B)
    world.reply(B, guest, quick_id, AT_B, b"OK")

    world.hear(A, guest.stream, w.Frozen(slow_id))

    assert world.told(guest) == [b"OK"]
