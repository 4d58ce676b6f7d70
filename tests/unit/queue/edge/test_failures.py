"""Refused commands are sent again to the right server, a limited number of times."""

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
from waystation.queue.errors import TRY_LATER, Code
from waystation.queue.model import RefKind, slot_of
from waystation.queue.wire import commands as c
from waystation.queue.wire import link_messages as w
from waystation.queue.wire.link import ClientTransmission


def test_a_reference_is_followed_and_remembered(world: World) -> None:
    """Q-116: MOVED once, then directly."""
    session = world.session()
    item, corr_id = world.say(session, c.Send(False, b"x"), AT_A)
    world.take()

    world.hear(A, session.stream, w.Moved(corr_id, RefKind.SENDER, slot_of(AT_C)))
    assert world.take() == [(A, w.Sagain(AT_A)), (C, ClientTransmission(item))]
    world.reply(C, session, corr_id, AT_A, b"OK")
    again, _ = world.say(world.session(), c.Send(False, b"y"), AT_A)

    assert world.take() == [(C, ClientTransmission(again))]
    assert world.told(session) == [b"OK"]
    recipient, _ = world.say(session, c.Sub(), AT_A)
    assert world.take() == [(A, ClientTransmission(recipient))]  # another kind of id


def test_a_cached_reference_that_is_refused_is_looked_up_once_more(world: World) -> None:
    session = world.session()
    world.refs.learn(RefKind.LINK, AT_A, slot_of(AT_B))
    item, corr_id = world.say(session, c.Lget(), AT_A)
    assert world.take() == [(B, ClientTransmission(item))]

    world.reply(B, session, corr_id, AT_A, error(Code.AUTH))
    assert world.told(session) == []
    assert world.take() == [(A, ClientTransmission(item))]
    world.reply(A, session, corr_id, AT_A, error(Code.AUTH))

    assert world.told(session) == [error(Code.AUTH)]


def test_a_reference_that_leads_to_a_refusal_does_not_spin(world: World) -> None:
    """Q-117: a link that is gone, while its reference is still there."""
    session = world.session()
    item, corr_id = world.say(session, c.Lget(), AT_A)
    home = slot_of(AT_B)
    for _ in range(2):
        world.hear(A, session.stream, w.Moved(corr_id, RefKind.LINK, home))
        world.take()
        world.reply(B, session, corr_id, AT_A, error(Code.AUTH))

    assert world.told(session) == [error(Code.AUTH)]
    assert world.take() == []
    assert not session.pending
    assert item


def test_unknown_from_the_server_of_the_queues_slot_is_a_refusal(world: World) -> None:
    """Q-117: after LDEL the reference remains, and its home looks at the slot of the id."""
    session = world.session()
    world.refs.learn(RefKind.LINK, AT_A, slot_of(AT_B))
    item, corr_id = world.say(session, c.Lget(), AT_A)
    assert world.take() == [(B, ClientTransmission(item))]

    world.hear(B, session.stream, w.Unknown(corr_id, 1))
    assert world.take() == [(A, ClientTransmission(item))]
    world.hear(A, session.stream, w.Moved(corr_id, RefKind.LINK, slot_of(AT_B)))
    assert world.take() == [(A, w.Sagain(AT_A)), (B, ClientTransmission(item))]
    world.hear(B, session.stream, w.Unknown(corr_id, 1))

    assert world.told(session) == [error(Code.AUTH)]
    assert not session.pending


def test_unknown_is_no_refusal_while_the_queues_slot_is_not_served(world: World) -> None:
    """Its server has lost its lease for a moment: the queue is there, and nobody may say so."""
    session = world.session()
    world.refs.learn(RefKind.SENDER, AT_A, slot_of(AT_B))
    item, corr_id = world.say(session, c.Send(False, b"x"), AT_A)

    world.hear(B, session.stream, w.WrongSlot(corr_id, 1))
    assert world.told(session) == []
    world.take()
    world.edge.tick(0.5)

    assert world.take() == [(B, w.Sagain(AT_A)), (B, ClientTransmission(item))]


def test_a_reused_link_id_is_found_though_its_former_server_has_a_copy(
    world: World,
) -> None:
    session = world.session()
    world.refs.learn(RefKind.LINK, AT_A, slot_of(AT_B))
    item, corr_id = world.say(session, c.Lget(), AT_A)
    assert world.take() == [(B, ClientTransmission(item))]

    world.hear(B, session.stream, w.WrongSlot(corr_id, 1))
    assert world.take() == [(A, ClientTransmission(item))]
    world.reply(A, session, corr_id, AT_A, b"LNK new")

    assert world.told(session) == [b"LNK new"]
    assert not session.pending


def test_a_server_with_another_map_is_asked_again(world: World) -> None:
    """It keeps the reference too, and is the home no more, or does not know yet that it is."""
    session = world.session()
    world.refs.learn(RefKind.SENDER, AT_A, slot_of(AT_B))
    item, corr_id = world.say(session, c.Send(False, b""), AT_A)
    world.take()

    world.hear(B, session.stream, w.Moved(corr_id, RefKind.SENDER, slot_of(AT_B)))

    assert world.told(session) == []
    assert world.refreshes
    assert world.take() == []
    world.edge.tick(0.5)
    assert world.take() == [(B, w.Sagain(AT_A)), (B, ClientTransmission(item))]


def test_a_stale_map_is_read_again_and_the_client_is_unaware(world: World) -> None:
    """Q-125"""
    session = world.session()
    item, corr_id = world.say(session, c.Sub(), AT_A)
    world.take()

    world.hear(A, session.stream, w.WrongSlot(corr_id, 2))
    assert world.refreshes == 1
    assert world.take() == []
    world.edge.learned(moved(slot_map(), slot_of(AT_A), owner=B))

    assert world.take() == [(B, ClientTransmission(item))]
    world.reply(B, session, corr_id, AT_A, b"SOK 0")
    assert world.told(session) == [b"SOK 0"]
    assert not world.hung_up


def test_a_server_that_refuses_for_ever_does_not_spin(world: World) -> None:
    session = world.session()
    item, corr_id = world.say(session, c.Send(False, b"x"), AT_A)

    world.hear(A, session.stream, w.WrongSlot(corr_id, 1))
    assert world.edge.waits
    for half_seconds in range(1, 16):
        world.edge.tick(half_seconds / 2)
        world.hear(A, session.stream, w.WrongSlot(corr_id, 1))

    said = [body for _, body in world.take() if isinstance(body, ClientTransmission)]
    assert said == [ClientTransmission(item)] * 16  # once at first, then with every look
    assert world.told(session) == []
    world.edge.tick(8.0)
    assert world.told(session) == [error(TRY_LATER)]
    assert not session.pending


def test_a_refusal_of_what_was_said_elsewhere_since_is_nothing() -> None:
    world = World()
    session = world.session()
    first, corr_id = send(world, session, b"1")
    world.hear(A, session.stream, w.WrongSlot(corr_id, 2))
    world.edge.learned(moved(slot_map(), slot_of(AT_A), owner=B))
    world.take()

    world.hear(A, session.stream, w.Frozen(corr_id))

    assert world.take() == []
    world.reply(B, session, corr_id, AT_A, b"OK")
    assert world.told(session) == [b"OK"]
    assert first
