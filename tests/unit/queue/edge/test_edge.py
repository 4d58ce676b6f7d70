"""The edge's core: clients connect and leave, links break, maps are read."""

from tests.unit.queue.edge.stage import (
    AT_A,
    AT_B,
    AT_C,
    DIALECT,
    KEY,
    A,
    B,
    C,
    World,
    error,
    moved,
    send,
    slot_map,
    subscribed,
)
from waystation.queue.errors import TRY_LATER, Code
from waystation.queue.model import slot_of
from waystation.queue.wire import commands as c
from waystation.queue.wire import link_messages as w
from waystation.queue.wire.link import ClientTransmission
from waystation.queue.wire.transmission import encode_transmission


def test_commands_go_to_the_owner_of_their_slot(world: World) -> None:
    """Q-121: one client, queues on all servers."""
    session = world.session()

    items = [world.say(session, c.Sub(), entity_id)[0] for entity_id in (AT_A, AT_B, AT_C, AT_A)]

    assert world.sent[0] == (A, session.stream, w.Sopen(18, DIALECT.session_id, KEY))
    assert sum(isinstance(body, w.Sopen) for _, _, body in world.sent) == 3
    assert world.take() == [
        (node, ClientTransmission(item)) for node, item in zip((A, B, C, A), items, strict=True)
    ]


def test_what_the_edge_answers_by_itself(world: World) -> None:
    session = world.session()
    ping, _ = world.say(session, c.Ping())
    world.say(session, c.Subs(), AT_A)
    world.edge.received(session, [b"\xff"], 0.0)
    world.say(session, c.Sub())
    own = world.edge.received(
        session, [encode_transmission(b"c", b"", b"RFWD layers", DIALECT)], 0.0
    )

    assert world.told(session) == [
        b"PONG",
        error(Code.SERVICE),
        error(Code.BLOCK),
        error(Code.CMD_NO_AUTH),
    ]
    assert world.take() == []
    assert [transmission.command for _, transmission in own] == [c.Rfwd(b"layers")]
    assert ping


def test_commands_in_flight_when_a_link_breaks(world: World) -> None:
    sender, recipient, other = world.session(), world.session(), world.session()
    world.say(sender, c.Send(False, b"x"), AT_A)
    world.say(recipient, c.Sub(), AT_A)
    world.say(other, c.Sub(), AT_B)

    world.edge.link_down(A)

    assert world.told(sender) == [error(TRY_LATER)]
    assert world.hung_up == [recipient]
    assert not other.gone


def test_every_server_of_a_client_gets_sclose_when_it_leaves(world: World) -> None:
    session, _, _ = subscribed(world, AT_A, A)
    world.say(session, c.Sub(), AT_B)
    world.take()

    world.edge.closed(session)

    assert sorted(world.take(), key=str) == [(A, w.Sclose()), (B, w.Sclose())]
    world.edge.learned(moved(slot_map(), slot_of(AT_A), owner=C))
    assert world.take() == []


def test_a_newer_epoch_makes_us_look(world: World) -> None:
    world.hear(A, 1, w.Cpong(9), epoch=9)

    assert world.refreshes == 1
    assert not world.edge.learned(slot_map(1))
    assert world.edge.epoch == 1


def test_a_newer_map_is_looked_for_while_something_waits_for_it() -> None:
    """The pause that a client sees is that of the freeze, not of our next look at the map."""
    world = World()
    session = world.session()
    assert not world.edge.waits
    _, corr_id = send(world, session, b"1")
    world.hear(A, session.stream, w.Frozen(corr_id))
    assert world.edge.waits
    frozen = moved(slot_map(), slot_of(AT_A), owner=A, target=C, state="F")
    world.edge.learned(frozen)
    assert world.edge.waits

    world.edge.learned(moved(frozen, slot_of(AT_A), owner=C))

    assert not world.edge.waits
    world.edge.link_down(B)
    send(world, world.session(), b"2", AT_B)
    assert not world.edge.waits  # a link tells when that server is back


def test_a_clients_own_link_that_broke_is_made_anew() -> None:
    """Q-128: its commands have an unknown end, its subscriptions go on, and nobody else notices."""
    world = World()
    session, other = world.session(), world.session()
    item, corr_id = world.say(session, c.Sub(), AT_A)
    world.reply(A, session, corr_id, AT_A, b"SOK 0")
    send(world, session, b"x")
    send(world, other, b"x")
    world.told(session)
    world.sent.clear()

    world.edge.stream_down(A, session.stream)

    assert world.told(session) == [error(TRY_LATER)]
    world.edge.tick(0.5)
    assert [body for _, _, body in world.sent] == [session.introduction(), ClientTransmission(item)]
    assert len(other.pending) == 1
