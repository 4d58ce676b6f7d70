"""An ACK reaches the server that has its message, also around a renewal."""

import pytest

from tests.unit.queue.edge.stage import (
    AT_A,
    AT_B,
    DIALECT,
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
from waystation.queue.cluster.slot_map import NodeId
from waystation.queue.edge import command_routing
from waystation.queue.edge.client_session import ClientSession
from waystation.queue.errors import Code
from waystation.queue.model import CorrId, MessageId, RecipientId, slot_of
from waystation.queue.wire import commands as c
from waystation.queue.wire import link_messages as w
from waystation.queue.wire.link import ClientTransmission, ServerTransmission
from waystation.queue.wire.transmission import encode_answer

NO_MSG = error(Code.NO_MSG)
ACK = c.Ack(MessageId(b"m" * 24))


class Subscribed(World):
    """One client that has subscribed and was given something."""

    def __init__(self) -> None:
        super().__init__()
        self.client = self.session()
        item, corr_id = self.say(self.client, c.Sub(), AT_A)
        self.subscription = ClientTransmission(item)
        self.sub_id = corr_id
        self.reply(A, self.client, corr_id, AT_A, b"SOK 0")
        self.told(self.client)
        self.take()

    def acknowledge(self) -> tuple[ClientTransmission, CorrId]:
        item, corr_id = self.say(self.client, ACK, AT_A)
        return ClientTransmission(item), corr_id

    def refuse(self, node_id: NodeId, corr_id: CorrId, *, epoch: int = 1) -> None:
        item = encode_answer(corr_id, AT_A, NO_MSG, DIALECT)
        self.hear(node_id, self.client.stream, ServerTransmission(item), epoch=epoch)


@pytest.fixture
def world() -> Subscribed:
    return Subscribed()


def test_no_msg_is_passed_on_when_nothing_is_being_renewed(world: Subscribed) -> None:
    _, corr_id = world.acknowledge()
    world.refuse(A, corr_id)
    _, elsewhere_id = world.say(world.client, ACK, AT_B)
    world.reply(B, world.client, elsewhere_id, AT_B, NO_MSG)

    assert world.told(world.client) == [NO_MSG, NO_MSG]
    assert not world.client.lanes


def test_an_ack_at_a_server_that_had_the_slot_back_unseen_is_said_behind_the_renewal(
    world: Subscribed,
) -> None:
    """Q-123: the server's map is newer, so the slot may have been away; then it knows nobody."""
    ack, corr_id = world.acknowledge()
    world.take()
    world.refuse(A, corr_id, epoch=3)
    assert world.told(world.client) == []
    assert world.refreshes
    assert world.take() == []

    world.edge.learned(moved(slot_map(2), slot_of(AT_A), owner=A, turn=2))

    assert world.take() == [(A, world.subscription), (A, ack)]
    world.reply(A, world.client, world.sub_id, AT_A, b"SOK 0")
    world.reply(A, world.client, corr_id, AT_A, b"OK")
    assert world.told(world.client) == [b"OK"]


def test_a_newer_map_that_changes_nothing_lets_the_answer_stand(world: Subscribed) -> None:
    ack, corr_id = world.acknowledge()
    world.take()
    world.refuse(A, corr_id, epoch=2)
    world.edge.learned(moved(slot_map(), slot_of(AT_B), owner=C))
    assert world.take() == [(A, ack)]
    world.refuse(A, corr_id, epoch=2)

    assert world.told(world.client) == [NO_MSG]


def test_an_ack_in_flight_during_a_renewal_is_sent_again(
    world: Subscribed,
) -> None:
    ack, corr_id = world.acknowledge()
    world.edge.learned(moved(slot_map(), slot_of(AT_A), owner=A, turn=2))
    assert world.take() == [(A, ack), (A, world.subscription)]

    world.refuse(A, corr_id, epoch=2)

    assert world.take() == [(A, ack)]
    world.reply(A, world.client, world.sub_id, AT_A, b"SOK 0")
    world.refuse(A, corr_id, epoch=2)
    assert world.told(world.client) == [NO_MSG]


def test_an_ack_that_overtook_a_renewal_is_said_again_behind_it(world: Subscribed) -> None:
    """The client's own link broke, and its subscription would be renewed in a moment."""
    world.edge.stream_down(A, world.client.stream)
    ack, corr_id = world.acknowledge()
    assert world.take() == [(A, ack)]

    world.refuse(A, corr_id)

    assert world.take() == [(A, world.subscription), (A, ack)]
    assert world.told(world.client) == []


def test_an_ack_waits_for_a_renewal_that_was_refused(world: Subscribed) -> None:
    """The slot's new server heard of it between the two."""
    world.edge.learned(moved(slot_map(), slot_of(AT_A), owner=C))
    ack, corr_id = world.acknowledge()
    later, _ = world.acknowledge()
    world.take()
    world.hear(C, world.client.stream, w.WrongSlot(world.sub_id, 2))

    world.refuse(C, corr_id, epoch=2)
    assert world.take() == []  # the later one may be refused still
    world.hear(C, world.client.stream, w.Frozen(CorrId(b"%024d" % world.corr)))
    world.edge.tick(0.5)

    again = w.Sagain(AT_A)
    assert world.take() == [(C, again), (C, world.subscription), (C, again), (C, ack), (C, later)]


def test_a_subscription_that_is_confirmed_after_its_slot_has_moved_is_renewed() -> None:
    """The map was quicker than what its former server had said before."""
    world = World()
    session: ClientSession = world.session()
    item, corr_id = world.say(session, c.Sub(), AT_A)
    world.edge.learned(moved(slot_map(), slot_of(AT_A), owner=C))
    world.take()

    world.reply(A, session, corr_id, AT_A, b"SOK ")

    assert world.take() == [(C, ClientTransmission(item))]


def test_an_ack_that_overtook_a_grant_is_said_again() -> None:
    """Q-131: what came with NEW is resumed beside the stream's commands."""
    world = World()
    session: ClientSession = world.session()
    node_id, newq, corr_id = begin(world, session, NEW)
    world.reply(node_id, session, corr_id, b"", b"IDS made")
    world.hear(node_id, session.stream, made(newq))
    ((_, number, _),) = world.requests()
    world.hear(node_id, number, w.Cok())
    target = A if node_id != A else B
    world.edge.learned(
        moved(moved(slot_map(), newq.home, owner=target), slot_of(AT_A), owner=target)
    )
    item, ack_id = world.say(session, ACK, AT_A)
    assert world.take() == [(target, w.Sres(RecipientId(AT_A))), (target, ClientTransmission(item))]

    world.reply(target, session, ack_id, AT_A, NO_MSG)

    assert world.take() == [(target, ClientTransmission(item))]
    world.hear(target, session.stream, w.Cok())
    world.reply(target, session, ack_id, AT_A, NO_MSG)
    assert world.told(session)[-1] == NO_MSG


def test_a_server_that_lost_a_get_is_informed_once(world: Subscribed) -> None:
    session = world.session()
    _, corr_id = world.say(session, c.Get(), AT_A)
    world.reply(A, session, corr_id, AT_A, b"MSG \x18" + ACK.message_id + b"body")
    world.edge.stream_down(A, session.stream)
    item, ack_id = world.say(session, ACK, AT_A)
    world.take()
    world.told(session)

    world.reply(A, session, ack_id, AT_A, NO_MSG)

    assert world.take() == [
        (A, w.Sdlv(RecipientId(AT_A), True, ACK.message_id)),
        (A, ClientTransmission(item)),
    ]
    world.reply(A, session, ack_id, AT_A, NO_MSG)
    assert world.told(session) == [NO_MSG]


def test_an_ack_for_which_there_is_no_room_to_wait_ends_the_connection(
    world: Subscribed, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = world.session()
    _, corr_id = world.say(session, c.Get(), AT_A)
    world.reply(A, session, corr_id, AT_A, b"MSG \x18" + ACK.message_id + b"body")
    _, ack_id = world.say(session, ACK, AT_A)
    world.take()
    monkeypatch.setattr(command_routing, "HELD_MAX", 0)

    world.reply(A, session, ack_id, AT_A, NO_MSG)

    assert world.hung_up == [session]
    assert world.take() == [(A, w.Sclose())]
