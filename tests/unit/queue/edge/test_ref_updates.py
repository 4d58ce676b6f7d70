"""References are read, cached, written before use, and removed with their ids."""

from tests.unit.queue.edge.stage import (
    AT_A,
    AT_B,
    AT_C,
    NEW,
    A,
    B,
    C,
    World,
    begin,
    made,
    moved,
    send,
    slot_map,
)
from waystation.queue.edge.refs import RefCache
from waystation.queue.model import CorrId, RefKind, Slot, slot_of
from waystation.queue.wire import commands as c
from waystation.queue.wire import link_messages as w
from waystation.queue.wire.link import ClientTransmission


def test_references_are_asked_for_first_where_most_ids_have_one() -> None:
    """Q-116 with `refs`: GET_REF, then the command; both commands in their order."""
    world = World(asks_first=True)
    session = world.session()
    first, _ = send(world, session, b"1")
    second, _ = send(world, session, b"2")
    ((node_id, number, body),) = world.sent
    assert (node_id, body) == (A, w.GetRef(RefKind.SENDER, AT_A))
    world.sent.clear()

    world.hear(A, number, w.RefIs(slot_of(AT_C)))

    assert world.take() == [(C, first), (C, second)]
    third, _ = send(world, world.session(), b"3")
    assert world.take() == [(C, third)]
    recipient, _ = world.say(session, c.Sub(), AT_B)
    assert world.take() == [(B, ClientTransmission(recipient))]


def test_that_an_id_has_no_reference_is_known_for_a_moment() -> None:
    world = World(asks_first=True)
    session = world.session()
    first, _ = send(world, session, b"1")
    ((_, number, _),) = world.requests()
    world.hear(A, number, w.NotFound())
    assert world.take() == [(A, first)]

    second, _ = send(world, session, b"2")
    assert world.take() == [(A, second)]
    world.say(world.session(), c.Send(False, b"3"), AT_A, mono=5.0)

    assert [body for _, _, body in world.requests()] == [w.GetRef(RefKind.SENDER, AT_A)]


def test_references_are_removed_when_a_server_says_so() -> None:
    world = World()
    session = world.session()
    world.refs.learn(RefKind.LINK, AT_C, Slot(5))

    world.hear(A, session.stream, w.DelRef(RefKind.LINK, AT_C))

    ((node_id, _, body),) = world.requests()
    assert (node_id, body) == (C, w.DelRef(RefKind.LINK, AT_C))
    assert world.refs.get(RefKind.LINK, AT_C) is None


def test_a_request_is_said_again_when_its_slot_moved() -> None:
    """A reference that is to be set while its slot is on its way: the client notices nothing."""
    world = World()
    session = world.session()
    node_id, newq, corr_id = begin(world, session, NEW)
    world.reply(node_id, session, corr_id, b"", b"IDS made")
    world.hear(node_id, session.stream, made(newq, RefKind.SENDER))
    ((_, number, body),) = world.requests()
    world.hear(B, number, w.Frozen(CorrId(b"")))
    world.edge.learned(moved(slot_map(), slot_of(AT_B), owner=C))

    assert world.requests() == [(C, number, body)]
    world.hear(B, number, w.Cok())  # too late: it is asked elsewhere
    world.hear(C, number, w.Cok())
    ((_, commit, _),) = world.requests()
    world.hear(node_id, commit, w.Cok())
    assert world.told(session) == [b"IDS made"]


def test_cached_references_are_limited() -> None:
    refs = RefCache(2)
    for number in range(3):
        refs.learn(RefKind.SENDER, bytes((number, 0)), Slot(7))

    assert len(refs) == 2
    assert refs.home(RefKind.SENDER, b"\0\0") == 0
    assert refs.home(RefKind.SENDER, b"\x02\0") == 7
    assert refs.home(RefKind.SENDER, b"") == 0
    assert refs.forget(RefKind.SENDER, b"\x02\0")
    assert not refs.forget(RefKind.SENDER, b"\x02\0")
