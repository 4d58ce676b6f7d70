"""A queue is created where there is room, visible when complete, and removed after a failure."""

import pytest

from tests.unit.queue.edge.stage import (
    AT_A,
    AT_B,
    AT_C,
    AUTH_KEY,
    IDS,
    NEW,
    NEW_CONTACT,
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
from waystation.queue.errors import Code
from waystation.queue.model import CorrId, DhKey, RecipientId, RefKind, SubMode
from waystation.queue.wire import commands as c
from waystation.queue.wire import link_messages as w


def test_a_queue_is_made_elsewhere_while_a_server_is_full(world: World) -> None:
    """§6.10: and the one that is full is spared for a while."""
    session = world.session()
    full, newq, corr_id = begin(world, session)
    world.reply(full, session, corr_id, b"", b"IDS made")
    world.hear(full, session.stream, made(newq))
    ((_, number, _),) = world.requests()

    world.hear(full, number, w.Busy(CorrId(b"")))

    tried = [node_id for node_id, body in world.take() if isinstance(body, w.Newq)]
    assert len(tried) == 1
    later = [begin(world, world.session())[0] for _ in range(20)]
    assert full not in (*tried, *later)
    assert world.told(session) == []
    world.edge.tick(6.0)
    assert full in [begin(world, world.session())[0] for _ in range(40)]


def test_a_queue_is_shown_when_it_is_committed(world: World) -> None:
    """Q-131: and its subscription, which was never said, is resumed by grant."""
    session = world.session()
    node_id, newq, corr_id = begin(world, session)
    assert world.edge.slot_map.slots[newq.home].owner == node_id

    world.reply(node_id, session, corr_id, b"", IDS)
    world.hear(node_id, session.stream, made(newq))
    assert world.told(session) == []
    ((asked, number, body),) = world.requests()
    assert (asked, body) == (node_id, w.Newc(newq.tx_id))
    world.hear(node_id, number, w.Cok())

    assert world.told(session) == [IDS]
    target = A if node_id != A else B
    world.edge.learned(moved(slot_map(), newq.home, owner=target))
    assert world.take() == [(target, w.Sres(RecipientId(AT_A)))]
    world.hear(target, session.stream, w.NotFound())
    assert world.hung_up == [session]


def test_ids_of_the_clients_choice_get_references_first(world: World) -> None:
    """Q-116, Q-117: stored at the slots of the ids, before the queue is seen."""
    session = world.session()
    node_id, newq, corr_id = begin(world, session)
    world.reply(node_id, session, corr_id, b"", IDS)
    world.hear(node_id, session.stream, made(newq, RefKind.SENDER, RefKind.LINK))

    (b, first, sender_ref), (cc, second, link_ref) = world.requests()
    assert (b, sender_ref) == (B, w.SetRef(RefKind.SENDER, AT_B, newq.home, newq.tx_id))
    assert (cc, link_ref) == (C, w.SetRef(RefKind.LINK, AT_C, newq.home, newq.tx_id))
    world.hear(B, first, w.Cok())
    assert world.requests() == []
    world.hear(C, second, w.Cok())
    ((_, number, body),) = world.requests()
    assert body == w.Newc(newq.tx_id)
    world.hear(node_id, number, w.Cok())

    assert world.told(session) == [IDS]
    assert world.refs.home(RefKind.SENDER, AT_B) == newq.home
    assert world.refs.home(RefKind.LINK, AT_C) == newq.home


@pytest.mark.parametrize("answer", [w.Duplicate(), w.NotFound()], ids=["taken", "odd"])
def test_nothing_remains_of_a_queue_that_could_not_be_made(
    world: World, answer: w.LinkMessage
) -> None:
    """Q-117: an id that is taken is AUTH. Q-118: anything else is taken back and tried anew."""
    session = world.session()
    node_id, newq, corr_id = begin(world, session, NEW_CONTACT)
    world.reply(node_id, session, corr_id, b"", IDS)
    world.hear(node_id, session.stream, made(newq, RefKind.SENDER, RefKind.LINK))
    (_, first, _), (_, second, _) = world.requests()

    world.hear(B, first, w.Cok())
    world.hear(C, second, answer)

    bodies = [body for _, body in world.take()]
    assert bodies[:3] == [
        w.Newx(newq.tx_id),
        w.DelRef(RefKind.SENDER, AT_B, newq.tx_id),
        w.DelRef(RefKind.LINK, AT_C, newq.tx_id),
    ]
    assert not world.hung_up
    if isinstance(answer, w.Duplicate):
        assert world.told(session) == [error(Code.AUTH)]
        assert bodies[3:] == []
    else:
        assert world.told(session) == []
        assert [type(body) for body in bodies[3:]] == [w.Newq]
    assert len(world.refs) == 0


def test_an_id_drawn_by_a_server_that_is_in_use_is_drawn_again(world: World) -> None:
    session = world.session()
    node_id, newq, corr_id = begin(world, session)
    world.reply(node_id, session, corr_id, b"", IDS)
    world.hear(node_id, session.stream, made(newq, RefKind.SENDER))
    ((_, number, _),) = world.requests()

    world.hear(B, number, w.Duplicate())

    assert [type(body) for _, body in world.take()] == [w.Newx, w.DelRef, w.Newq]
    assert world.told(session) == []


def test_ids_whose_reference_belongs_on_a_server_that_is_down_are_drawn_again() -> None:
    """Q-114 with `refs`: creating never fails because one server is down."""
    world = World()
    session = world.session()
    world.edge.link_down(C)
    node_id, newq, corr_id = begin(world, session, NEW)
    world.reply(node_id, session, corr_id, b"", b"IDS made")

    world.hear(node_id, session.stream, made(newq, RefKind.SENDER, sender_id=AT_C))

    (taken_back, again) = world.take()
    assert taken_back == (node_id, w.Newx(newq.tx_id))
    assert isinstance(again[1], w.Newq)
    assert not world.hung_up


def test_the_refusal_of_a_new_is_passed_on_unchanged(world: World) -> None:
    session = world.session()
    node_id, _, corr_id = begin(world, session)

    world.reply(node_id, session, corr_id, b"", error(Code.AUTH))

    assert world.told(session) == [error(Code.AUTH)]
    assert not session.pending


def test_new_queues_go_where_the_weights_say() -> None:
    """Q-114: none to a weight of 0, none to a server that is away."""
    world = World()
    world.edge.learned(slot_map(2, weights=(300, 100, 0)))
    session = world.session()
    counts = dict.fromkeys((A, B, C), 0)
    for _ in range(300):
        node_id, newq, corr_id = begin(world, session)
        counts[node_id] += 1
        assert world.edge.slot_map.slots[newq.home].owner == node_id
        world.reply(node_id, session, corr_id, b"", error(Code.QUOTA))

    assert counts[C] == 0
    assert 180 < counts[A] < 270
    world.edge.link_down(A)
    assert {begin(world, world.session())[0] for _ in range(20)} == {B}


def test_a_server_that_dies_while_it_makes_a_queue_is_replaced(world: World) -> None:
    """Q-114: the client still gets its queue."""
    session = world.session()
    node_id, newq, corr_id = begin(world, session)

    world.edge.link_down(node_id)
    ((other, again),) = world.take()

    assert other != node_id
    assert isinstance(again, w.Newq)
    assert again.tx_id != newq.tx_id
    assert again.transmission == newq.transmission
    world.hear(other, session.stream, w.Busy(corr_id))
    (taken_back, (third, _)) = world.take()
    assert taken_back == (other, w.Newx(again.tx_id))
    assert third != node_id
    world.hear(third, session.stream, w.Busy(corr_id))
    assert world.hung_up == [session]  # three tries


def test_a_creation_without_an_answer_is_given_up(world: World) -> None:
    session = world.session()
    node_id, newq, _ = begin(world, session)

    world.edge.tick(14.9)
    assert not world.hung_up
    world.edge.tick(15.0)

    assert world.hung_up == [session]
    assert world.take() == [(node_id, w.Newx(newq.tx_id)), (node_id, w.Sclose())]


@pytest.mark.parametrize("end", ["link", "stream", "silence"])
def test_a_queue_that_may_have_been_made_keeps_its_references(world: World, end: str) -> None:
    """As one whose IDS were lost: its ids are not given away a second time."""
    session = world.session()
    node_id, newq, corr_id = begin(world, session, NEW_CONTACT)
    world.reply(node_id, session, corr_id, b"", IDS)
    world.hear(node_id, session.stream, made(newq, RefKind.SENDER, RefKind.LINK))
    (_, first, _), (_, second, _) = world.requests()
    world.hear(B, first, w.Cok())
    world.hear(C, second, w.Cok())
    ((_, _, body),) = world.requests()
    assert body == w.Newc(newq.tx_id)

    match end:
        case "link":
            world.edge.link_down(node_id)
        case "stream":
            world.edge.stream_down(node_id, session.stream)
        case _:
            world.edge.tick(15.0)

    assert world.hung_up == [session]
    assert not [body for _, body in world.take() if not isinstance(body, w.Sclose)]
    assert world.told(session) == []


def test_without_any_server_the_client_is_disconnected() -> None:
    world = World(up=())
    session = world.session()

    world.say(session, NEW)

    assert world.hung_up == [session]
    assert world.told(session) == []


def test_create_only_is_not_resumed(world: World) -> None:
    session = world.session()
    command = c.New(AUTH_KEY, DhKey(bytes(32)), sub_mode=SubMode.CREATE)
    node_id, newq, corr_id = begin(world, session, command)
    world.reply(node_id, session, corr_id, b"", IDS)
    world.hear(node_id, session.stream, made(newq))
    ((_, number, _),) = world.requests()
    world.hear(node_id, number, w.Cok())

    assert world.told(session) == [IDS]
    assert not session.subscriptions
