"""What one client says about one id is done in its order, wherever the slot is by then."""

from tests.unit.queue.proxy.test_edge import (
    AT_A,
    AT_B,
    AT_C,
    NEW,
    A,
    B,
    C,
    World,
    begin,
    error,
    made,
    moved,
    slot_map,
)
from waystation.queue.errors import TRY_LATER, Code
from waystation.queue.model import CorrId, RecipientId, RefKind, Slot, slot_of
from waystation.queue.proxy import edge as edges
from waystation.queue.proxy.guest import Guest
from waystation.queue.wire import commands as c
from waystation.queue.wire import link_words as w
from waystation.queue.wire.link import Sent


def send(world: World, guest: Guest, body: bytes, entity_id: bytes = AT_A) -> tuple[Sent, CorrId]:
    item, corr_id = world.say(guest, c.Send(False, body), entity_id)
    return Sent(item), corr_id


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
    assert world.take() == [(C, first), (C, second), (C, third)]


def test_a_newer_map_is_looked_for_while_something_waits_for_it() -> None:
    """The pause that a client sees is that of the freeze, not of our next look at the map."""
    world = World()
    guest = world.guest()
    assert not world.edge.waits
    _, corr_id = send(world, guest, b"1")
    world.hear(A, guest.stream, w.Frozen(corr_id))
    assert world.edge.waits
    frozen = moved(slot_map(), slot_of(AT_A), owner=A, target=C, state="F")
    world.edge.learned(frozen)
    assert world.edge.waits

    world.edge.learned(moved(frozen, slot_of(AT_A), owner=C))

    assert not world.edge.waits
    world.edge.link_down(B)
    send(world, world.guest(), b"2", AT_B)
    assert not world.edge.waits  # a link tells when that server is back


def test_commands_about_other_ids_do_not_wait() -> None:
    world = World()
    guest = world.guest()
    _, corr_id = send(world, guest, b"1")
    world.take()
    world.hear(A, guest.stream, w.Frozen(corr_id))

    elsewhere, _ = send(world, guest, b"2", AT_B)

    assert world.take() == [(B, elsewhere)]


def test_a_refusal_of_what_was_said_elsewhere_since_is_nothing() -> None:
    world = World()
    guest = world.guest()
    first, corr_id = send(world, guest, b"1")
    world.hear(A, guest.stream, w.WrongSlot(corr_id, 2))
    world.edge.learned(moved(slot_map(), slot_of(AT_A), owner=B))
    world.take()

    world.hear(A, guest.stream, w.Frozen(corr_id))

    assert world.take() == []
    world.reply(B, guest, corr_id, AT_A, b"OK")
    assert world.told(guest) == [b"OK"]
    assert first


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


# Renewals


def test_a_renewal_that_comes_too_early_is_said_again() -> None:
    """The edge may know of a move before the new server does; nobody's messages stop for that."""
    world = World()
    guest = world.guest()
    item, corr_id = world.say(guest, c.Sub(), AT_A)
    world.reply(A, guest, corr_id, AT_A, b"SOK 0")
    world.told(guest)
    world.take()
    world.edge.learned(moved(slot_map(), slot_of(AT_A), owner=C))
    assert world.take() == [(C, Sent(item))]

    world.hear(C, guest.stream, w.WrongSlot(corr_id, 1))
    assert world.edge.waits
    world.edge.tick(0.5)

    # The refusal bars the id there: without this word everything after it is refused for ever.
    assert world.take() == [(C, w.Sagain(AT_A)), (C, Sent(item))]
    world.reply(C, guest, corr_id, AT_A, b"SOK 0")
    assert world.told(guest) == []
    assert not world.edge.waits


def test_a_subscription_is_renewed_when_its_slot_was_away_and_came_back_unseen() -> None:
    """Maps are not all read: the owner is the one of before, and knows of no subscriber."""
    world = World()
    guest = world.guest()
    item, corr_id = world.say(guest, c.Sub(), AT_A)
    world.reply(A, guest, corr_id, AT_A, b"SOK 0")
    world.told(guest)
    world.take()

    world.edge.learned(moved(slot_map(), slot_of(AT_A), owner=A, turn=2))

    assert world.take() == [(A, Sent(item))]


def test_a_renewal_of_a_queue_that_is_gone_ends_the_connection() -> None:
    """Its new server knows neither the queue nor the slot of this id; to ask on would never end."""
    world = World()
    guest = world.guest()
    world.refs.learn(RefKind.NOTIFIER, AT_A, slot_of(AT_B))
    _, corr_id = world.say(guest, c.Nsub(), AT_A)
    world.reply(B, guest, corr_id, AT_A, b"SOK 0")
    newer = moved(slot_map(), slot_of(AT_B), owner=C)
    world.edge.learned(newer)

    world.hear(C, guest.stream, w.Unknown(corr_id, newer.epoch + 1))
    assert not world.hung_up  # by a map that we have not read
    world.edge.tick(0.5)
    world.hear(C, guest.stream, w.Unknown(corr_id, newer.epoch))

    assert world.hung_up == [guest]


def test_a_renewal_is_not_said_again_while_a_command_of_the_client_may_be_refused() -> None:
    """Or a later command would be of the next term, and done before the one that comes back."""
    world = World()
    guest = world.guest()
    item, corr_id = world.say(guest, c.Sub(), AT_A)
    world.reply(A, guest, corr_id, AT_A, b"SOK 0")
    world.edge.learned(moved(slot_map(), slot_of(AT_A), owner=C))
    command, command_id = send(world, guest, b"under way")
    world.take()

    world.hear(C, guest.stream, w.WrongSlot(corr_id, 1))
    world.edge.tick(0.5)
    assert world.take() == []
    assert world.edge.waits

    world.hear(C, guest.stream, w.Frozen(command_id))
    world.edge.tick(1.0)
    assert world.take() == [(C, w.Sagain(AT_A)), (C, Sent(item)), (C, w.Sagain(AT_A)), (C, command)]


def test_a_grant_that_is_asked_for_too_early_is_asked_for_again() -> None:
    """Q-131"""
    world = World()
    guest = world.guest()
    node_id, newq, corr_id = begin(world, guest, NEW)
    world.reply(node_id, guest, corr_id, b"", b"IDS made")
    world.hear(node_id, guest.stream, made(newq))
    ((_, number, _),) = world.requests()
    world.hear(node_id, number, w.Cok())
    target = A if node_id != A else B
    world.edge.learned(moved(slot_map(), newq.home, owner=target))
    resume = (target, w.Sres(RecipientId(AT_A)))
    assert world.take() == [resume]

    world.hear(target, guest.stream, w.Frozen(CorrId(AT_A)))
    world.edge.tick(0.5)
    assert world.take() == [resume]
    world.hear(target, guest.stream, w.Cok())
    world.edge.tick(1.0)

    assert world.take() == []
    assert not world.hung_up


def test_a_clients_own_link_that_broke_is_made_anew() -> None:
    """Q-128: its commands have an unknown end, its subscriptions go on, and nobody else notices."""
    world = World()
    guest, other = world.guest(), world.guest()
    item, corr_id = world.say(guest, c.Sub(), AT_A)
    world.reply(A, guest, corr_id, AT_A, b"SOK 0")
    send(world, guest, b"x")
    send(world, other, b"x")
    world.told(guest)
    world.sent.clear()

    world.edge.stream_down(A, guest.stream)

    assert world.told(guest) == [error(TRY_LATER)]
    world.edge.tick(0.5)
    assert [body for _, _, body in world.sent] == [guest.introduction(), Sent(item)]
    assert len(other.pending) == 1


# References


def test_references_are_asked_for_first_where_most_ids_have_one() -> None:
    """Q-116 with `refs`: GET_REF, then the command; both commands in their order."""
    world = World(asks_first=True)
    guest = world.guest()
    first, _ = send(world, guest, b"1")
    second, _ = send(world, guest, b"2")
    ((node_id, number, body),) = world.sent
    assert (node_id, body) == (A, w.GetRef(RefKind.SENDER, AT_A))
    world.sent.clear()

    world.hear(A, number, w.RefIs(slot_of(AT_C)))

    assert world.take() == [(C, first), (C, second)]
    third, _ = send(world, world.guest(), b"3")
    assert world.take() == [(C, third)]
    recipient, _ = world.say(guest, c.Sub(), AT_B)
    assert world.take() == [(B, Sent(recipient))]


def test_that_an_id_has_no_reference_is_known_for_a_moment() -> None:
    world = World(asks_first=True)
    guest = world.guest()
    first, _ = send(world, guest, b"1")
    ((_, number, _),) = world.requests()
    world.hear(A, number, w.NotFound())
    assert world.take() == [(A, first)]

    second, _ = send(world, guest, b"2")
    assert world.take() == [(A, second)]
    world.say(world.guest(), c.Send(False, b"3"), AT_A, mono=5.0)

    assert [body for _, _, body in world.requests()] == [w.GetRef(RefKind.SENDER, AT_A)]


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


def test_a_request_is_said_again_when_its_slot_moved() -> None:
    """A reference that is to be set while its slot is on its way: the client notices nothing."""
    world = World()
    guest = world.guest()
    node_id, newq, corr_id = begin(world, guest, NEW)
    world.reply(node_id, guest, corr_id, b"", b"IDS made")
    world.hear(node_id, guest.stream, made(newq, RefKind.SENDER))
    ((_, number, body),) = world.requests()
    world.hear(B, number, w.Frozen(CorrId(b"")))
    world.edge.learned(moved(slot_map(), slot_of(AT_B), owner=C))

    assert world.requests() == [(C, number, body)]
    world.hear(B, number, w.Cok())  # too late: it is asked elsewhere
    world.hear(C, number, w.Cok())
    ((_, commit, _),) = world.requests()
    world.hear(node_id, commit, w.Cok())
    assert world.told(guest) == [b"IDS made"]


def test_references_are_removed_when_a_server_says_so() -> None:
    world = World()
    guest = world.guest()
    world.refs.learn(RefKind.LINK, AT_C, Slot(5))

    world.hear(A, guest.stream, w.DelRef(RefKind.LINK, AT_C))

    ((node_id, _, body),) = world.requests()
    assert (node_id, body) == (C, w.DelRef(RefKind.LINK, AT_C))
    assert world.refs.get(RefKind.LINK, AT_C) is None


def test_ids_whose_reference_would_lie_with_a_server_that_is_away_are_drawn_again() -> None:
    """Q-114 with `refs`: creating never fails because one server is down."""
    world = World()
    guest = world.guest()
    world.edge.link_down(C)
    node_id, newq, corr_id = begin(world, guest, NEW)
    world.reply(node_id, guest, corr_id, b"", b"IDS made")

    world.hear(node_id, guest.stream, made(newq, RefKind.SENDER, sender_id=AT_C))

    (taken_back, again) = world.take()
    assert taken_back == (node_id, w.Newx(newq.tx_id))
    assert isinstance(again[1], w.Newq)
    assert not world.hung_up
