"""Subscriptions are renewed on the new server of a slot without the client's notice."""

from tests.unit.queue.edge.stage import (
    AT_A,
    AT_B,
    NEW,
    A,
    B,
    C,
    World,
    begin,
    error,
    made,
    moved,
    send,
    slot_map,
    subscribed,
)
from waystation.queue.errors import Code
from waystation.queue.model import CorrId, RecipientId, RefKind, slot_of
from waystation.queue.wire import commands as c
from waystation.queue.wire import link_messages as w
from waystation.queue.wire.link import ClientTransmission


def test_subscriptions_are_said_again_where_their_slot_went(world: World) -> None:
    """Q-123, Q-128: the reply to a replay is swallowed, its message is not."""
    session, item, corr_id = subscribed(world, AT_A, A)
    subscribed(world, AT_B, B)

    world.edge.learned(moved(slot_map(), slot_of(AT_A), owner=C))

    assert world.take() == [(C, ClientTransmission(item))]
    world.reply(C, session, corr_id, AT_A, b"SOK 0")
    world.reply(C, session, b"", AT_A, b"MSG again")
    assert world.told(session) == [b"MSG again"]
    assert not world.hung_up


def test_subscriptions_are_said_again_over_a_new_link(world: World) -> None:
    """Q-126"""
    session, item, corr_id = subscribed(world, AT_A, A)

    world.edge.link_down(A)
    assert not session.gone
    world.edge.link_up(A)

    assert world.sent[0] == (A, session.stream, session.introduction())
    assert world.take() == [(A, ClientTransmission(item))]
    world.reply(A, session, corr_id, AT_A, b"SOK 0")
    assert world.told(session) == []
    again, again_id = world.say(session, c.Sub(), AT_A)  # the client's own, later
    world.reply(A, session, again_id, AT_A, b"SOK 0")
    assert world.told(session) == [b"SOK 0"]
    assert again


def test_a_replay_that_fails_ends_the_connection_and_is_no_end(world: World) -> None:
    """Q-131"""
    session, _, corr_id = subscribed(world, AT_A, A)
    world.edge.learned(moved(slot_map(), slot_of(AT_A), owner=C))

    world.reply(C, session, corr_id, AT_A, error(Code.AUTH))

    assert world.hung_up == [session]
    assert world.told(session) == []


def test_a_renewal_that_comes_too_early_is_said_again() -> None:
    """The edge may know of a move before the new server does; nobody's messages stop for that."""
    world = World()
    session = world.session()
    item, corr_id = world.say(session, c.Sub(), AT_A)
    world.reply(A, session, corr_id, AT_A, b"SOK 0")
    world.told(session)
    world.take()
    world.edge.learned(moved(slot_map(), slot_of(AT_A), owner=C))
    assert world.take() == [(C, ClientTransmission(item))]

    world.hear(C, session.stream, w.WrongSlot(corr_id, 1))
    assert world.edge.waits
    world.edge.tick(0.5)

    # The refusal bars the id there: without this word everything after it is refused for ever.
    assert world.take() == [(C, w.Sagain(AT_A)), (C, ClientTransmission(item))]
    world.reply(C, session, corr_id, AT_A, b"SOK 0")
    assert world.told(session) == []
    assert not world.edge.waits


def test_a_subscription_is_renewed_when_its_slot_was_away_and_came_back_unseen() -> None:
    """Maps are not all read: the owner is the one of before, and knows of no subscriber."""
    world = World()
    session = world.session()
    item, corr_id = world.say(session, c.Sub(), AT_A)
    world.reply(A, session, corr_id, AT_A, b"SOK 0")
    world.told(session)
    world.take()

    world.edge.learned(moved(slot_map(), slot_of(AT_A), owner=A, turn=2))

    assert world.take() == [(A, ClientTransmission(item))]


def test_a_renewal_of_a_queue_that_is_gone_ends_the_connection() -> None:
    """Its new server knows neither the queue nor the slot of this id; to ask on would never end."""
    world = World()
    session = world.session()
    world.refs.learn(RefKind.NOTIFIER, AT_A, slot_of(AT_B))
    _, corr_id = world.say(session, c.Nsub(), AT_A)
    world.reply(B, session, corr_id, AT_A, b"SOK 0")
    newer = moved(slot_map(), slot_of(AT_B), owner=C)
    world.edge.learned(newer)

    world.hear(C, session.stream, w.Unknown(corr_id, newer.epoch + 1))
    assert not world.hung_up  # by a map that we have not read
    world.edge.tick(0.5)
    world.hear(C, session.stream, w.Unknown(corr_id, newer.epoch))

    assert world.hung_up == [session]


def test_a_renewal_is_not_said_again_while_a_command_of_the_client_may_be_refused() -> None:
    """Or a later command would be of the next term, and done before the one that comes back."""
    world = World()
    session = world.session()
    item, corr_id = world.say(session, c.Sub(), AT_A)
    world.reply(A, session, corr_id, AT_A, b"SOK 0")
    world.edge.learned(moved(slot_map(), slot_of(AT_A), owner=C))
    command, command_id = send(world, session, b"under way")
    world.take()

    world.hear(C, session.stream, w.WrongSlot(corr_id, 1))
    world.edge.tick(0.5)
    assert world.take() == []
    assert world.edge.waits

    world.hear(C, session.stream, w.Frozen(command_id))
    world.edge.tick(1.0)
    assert world.take() == [
        (C, w.Sagain(AT_A)),
        (C, ClientTransmission(item)),
        (C, w.Sagain(AT_A)),
        (C, command),
    ]


def test_a_grant_that_is_asked_for_too_early_is_asked_for_again() -> None:
    """Q-131"""
    world = World()
    session = world.session()
    node_id, newq, corr_id = begin(world, session, NEW)
    world.reply(node_id, session, corr_id, b"", b"IDS made")
    world.hear(node_id, session.stream, made(newq))
    ((_, number, _),) = world.requests()
    world.hear(node_id, number, w.Cok())
    target = A if node_id != A else B
    world.edge.learned(moved(slot_map(), newq.home, owner=target))
    resume = (target, w.Sres(RecipientId(AT_A)))
    assert world.take() == [resume]

    world.hear(target, session.stream, w.Frozen(CorrId(AT_A)))
    world.edge.tick(0.5)
    assert world.take() == [resume]
    world.hear(target, session.stream, w.Cok())
    world.edge.tick(1.0)

    assert world.take() == []
    assert not world.hung_up
