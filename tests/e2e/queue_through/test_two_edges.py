"""Two edges under one address, in both id modes and with both upstream modes.

What one edge has learnt by making a queue, the other has to find out: its memory is cold.
"""

import asyncio
import secrets
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.request import urlopen

import pytest

from tests.e2e.platform import until
from tests.e2e.queue.peer import Answer, Mailbox, Peer, Signer
from tests.e2e.queue.test_links import CHANGED, DATA, contact, invitation, link_id_of
from tests.e2e.queue.test_notifying import Credentials
from tests.e2e.queue_through.conftest import Connect
from tests.e2e.queue_through.front import Edge, Front, Way
from waystation.queue.errors import TRY_LATER, Code
from waystation.queue.model import LinkId, QueueMode, slot_of
from waystation.queue.wire.commands import (
    Ldel,
    Lget,
    Lkey,
    Lset,
    Ndel,
    NewNotifier,
    Nsub,
    Send,
    Sub,
)
from waystation.queue.wire.responses import Deld, End, Err, Lnk, Msg, Nmsg, Ok, Sok

WINDOW = 16


@pytest.fixture(scope="session")
def front(way: Way, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with Front(tmp_path_factory.mktemp("edges"), way, edges=2, queue_quota=10_000) as front:
        yield front


@pytest.fixture
def connect(front: Front) -> Iterator[Connect]:
    with ExitStack() as stack:

        def connect(edge: Edge) -> Peer:
            return stack.enter_context(Peer(edge))  # pyright: ignore[reportArgumentType]

        yield connect


@pytest.fixture
def here(front: Front, connect: Connect) -> Peer:
    return connect(front.edges[0])


@pytest.fixture
def there(front: Front, connect: Connect) -> Peer:
    return connect(front.edges[1])


def test_edges_of_one_address_show_one_identity(front: Front, here: Peer, there: Peer) -> None:
    """Q-122: a client cannot tell them apart by what its address names."""
    first, second = front.edges

    assert first.identity.fingerprint == second.identity.fingerprint
    assert here.server_hello.chain[1] == there.server_hello.chain[1]
    assert here.session_id != there.session_id


def test_a_subscription_moves_between_clients_of_two_edges(here: Peer, there: Peer) -> None:
    """Q-122: END to the first, and what it had not acknowledged to the second."""
    box = here.create()
    there.send(box, b"first")
    delivered = here.received(box)

    there.subscribe(box)

    assert here.event(End, box.recipient_id)
    assert there.received(box) == delivered
    assert here.fault(Sub(), box.recipient_id, Signer()) is Code.AUTH
    here.subscribe(box)
    assert there.event(End, box.recipient_id)


def test_ids_share_their_slot_in_one_mode_and_nothing_in_the_other(here: Peer, way: Way) -> None:
    """Q-115"""
    boxes = [here.create(subscribe=False) for _ in range(8)]
    notifiers = [Credentials().set_up(here, box).notifier_id for box in boxes]
    shared = [
        slot_of(box.recipient_id) == slot_of(box.sender_id) == slot_of(notifier_id)
        for box, notifier_id in zip(boxes, notifiers, strict=True)
    ]

    assert shared == [way.id_mode == "hybrid"] * 8


def test_every_id_leads_to_its_queue_through_the_other_edge(here: Peer, there: Peer) -> None:
    """Q-116: senders and notifiers whose ids have a reference, or none."""
    for _ in range(4):
        credentials = Credentials()
        notifier = NewNotifier(credentials.signer.public, credentials.public)
        box = here.create(notifier=notifier)
        ids = box.ids.notifier
        assert ids is not None
        credentials.learn(ids.notifier_id, ids.dh_key)
        credentials.subscribe(there)
        there.send(box, b"found", notify=True)

        assert here.take(box) == b"found"
        assert there.event(Nmsg, credentials.notifier_id)


def test_a_notifier_that_came_later_is_found_and_forgotten(here: Peer, there: Peer) -> None:
    """NKEY sets its reference before it is answered; NDEL and a second NKEY remove it."""
    box = here.create()
    first = Credentials().set_up(here, box)
    first.subscribe(there)
    second = Credentials().set_up(here, box)
    assert there.event(Deld, first.notifier_id)
    second.subscribe(there)
    assert there.ask(Nsub(), first.notifier_id, first.signer) == Err(Code.AUTH)
    there.send(box, notify=True)
    assert there.event(Nmsg, second.notifier_id)
    here.take(box)

    assert isinstance(here.ask(Ndel(), box.recipient_id, box.signer), Ok)

    assert there.event(Deld, second.notifier_id)
    assert there.ask(Nsub(), second.notifier_id, second.signer) == Err(Code.AUTH)


def test_an_invitation_is_opened_through_the_other_edge(here: Peer, there: Peer) -> None:
    """Q-116, Q-087"""
    for _ in range(4):
        box, signer = invitation(here), Signer()

        answer = there.ask(Lkey(signer.public), link_id_of(box), signer)

        assert answer == Lnk(box.sender_id, DATA)
        there.send(box, b"first", signer=signer)
        assert here.take(box) == b"first"
        assert there.fault(Lkey(signer.public), link_id_of(box), signer) is Code.AUTH


def test_a_contact_address_works_for_every_client_until_it_is_deleted(
    here: Peer, there: Peer
) -> None:
    """Q-117: the reference goes with the link, so that its id may be used again."""
    for _ in range(4):
        box = contact(here)
        link_id = link_id_of(box)
        assert there.ask(Lget(), link_id) == Lnk(box.sender_id, DATA)
        assert refused_twice(there, link_id)

        assert isinstance(here.ask(Ldel(), box.recipient_id, box.signer), Ok)

        assert there.fault(Lget(), link_id) is Code.AUTH
        again = until_made(there, link_id)
        assert there.ask(Lget(), link_id) == Lnk(again.sender_id, DATA)
        assert here.ask(Lget(), link_id) == Lnk(again.sender_id, DATA)


def refused_twice(peer: Peer, link_id: LinkId) -> bool:
    """A second queue does not get this link, whichever way it asks for it."""
    with pytest.raises(AssertionError, match="AUTH"):
        contact(peer, link_id=link_id)
    other = peer.create(mode=QueueMode.CONTACT, subscribe=False)
    return peer.fault(Lset(link_id, DATA), other.recipient_id, other.signer) is Code.AUTH


def until_made(peer: Peer, link_id: LinkId) -> Mailbox:
    """A reference is removed behind the answer to the command that made it useless."""
    for _ in range(100):
        try:
            return contact(peer, link_id=link_id)
        except AssertionError:
            threading.Event().wait(0.05)
    return contact(peer, link_id=link_id)


def test_a_link_that_is_set_later_has_a_reference_too(here: Peer, there: Peer) -> None:
    """LSET: a new link on a slot of somebody else's, changed, and taken away."""
    for _ in range(4):
        box = here.create(mode=QueueMode.CONTACT)
        link_id = LinkId(secrets.token_bytes(24))
        assert isinstance(here.ask(Lset(link_id, DATA), box.recipient_id, box.signer), Ok)
        assert there.ask(Lget(), link_id) == Lnk(box.sender_id, DATA)
        assert isinstance(there.ask(Lset(link_id, CHANGED), box.recipient_id, box.signer), Ok)
        assert here.ask(Lget(), link_id) == Lnk(box.sender_id, CHANGED)
        assert here.fault(Lset(link_id, DATA), box.recipient_id, Signer()) is Code.AUTH

        assert refused_twice(there, link_id)


def test_a_link_that_was_refused_leaves_no_reference(here: Peer, there: Peer) -> None:
    """LSET with a wrong key; the id is free for whoever has the right one."""
    box = here.create(mode=QueueMode.CONTACT)
    link_id = LinkId(secrets.token_bytes(24))
    assert here.fault(Lset(link_id, DATA), box.recipient_id, Signer()) is Code.AUTH

    made = until_made(there, link_id)

    assert here.ask(Lget(), link_id) == Lnk(made.sender_id, DATA)


# Slots that move


class Pipeline:
    """Sends without waiting for answers, up to a window, and knows what was answered."""

    def __init__(self, peer: Peer, box: Mailbox) -> None:
        self._peer = peer
        self._box = box
        self._waiting: dict[bytes, int] = {}
        self.sent = 0
        self.answered: list[int] = []

    def send(self, count: int) -> None:
        """One block with so many commands, when there is room for them."""
        while len(self._waiting) > WINDOW - count:
            self._take(self._peer.next())
        said: list[bytes] = []
        for _ in range(count):
            item, corr_id = self._peer.transmission(
                Send(False, b"%d" % self.sent), self._box.sender_id
            )
            self._waiting[corr_id] = self.sent
            self.sent += 1
            said.append(item)
        self._peer.write(*said)

    def settle(self) -> None:
        while self._waiting:
            self._take(self._peer.next())

    def _take(self, answer: Answer) -> None:
        assert answer.response == Ok(), answer
        self.answered.append(self._waiting.pop(answer.corr_id))


def drained(peer: Peer, box: Mailbox) -> list[int]:
    peer.subscribe(box)
    message = box.open(peer.event(Msg, box.recipient_id))
    bodies: list[int] = []
    while True:
        assert message.body is not None
        bodies.append(int(message.body))
        answer = peer.ack(box, message)
        if answer == Ok():
            return bodies
        message = box.open(answer)


def test_what_one_client_sends_stays_in_order_while_its_slot_moves(
    front: Front, here: Peer, there: Peer, connect: Connect
) -> None:
    """Q-123: every command is answered OK though none waited for the one before it, and all are
    there, once and in their order; a subscriber is told nothing but messages."""
    box, watched = here.create(subscribe=False), there.create()
    slot = slot_of(box.recipient_id)
    moves = 4

    def move() -> None:
        for _ in range(moves):
            asyncio.run(front.move(slot))

    moving = threading.Thread(target=move)
    pipeline = Pipeline(connect(front.edges[1]), box)
    pipeline.send(1)  # the other edge has found the queue
    moving.start()
    while moving.is_alive():
        pipeline.send(4)
        # All of it is read again at the end: as much as shows the moves, and not more.
        moving.join(0.005 if pipeline.sent < 1500 else None)
    pipeline.send(4)
    pipeline.settle()

    assert pipeline.answered == list(range(pipeline.sent))
    assert drained(here, box) == list(range(pipeline.sent))
    here.send(watched, b"still there")
    assert there.take(watched) == b"still there"


def test_subscribers_go_on_where_their_slots_went(front: Front, here: Peer, there: Peer) -> None:
    """Q-123, Q-131: subscribed by NEW, by SUB, as a notifier and by GET; twice moved."""
    by_new, by_sub = here.create(), here.create(subscribe=False)
    here.subscribe(by_sub)
    by_get = here.create(subscribe=False)
    credentials = Credentials().set_up(here, by_new)
    credentials.subscribe(here)
    there.send(by_get, b"got")
    got = by_get.open(here.get(by_get))
    for _ in range(2):
        for box in (by_new, by_sub, by_get):
            asyncio.run(front.move(slot_of(box.recipient_id)))

    there.send(by_new, b"n", notify=True)
    there.send(by_sub, b"s")

    answers = [here.next() for _ in range(3)]
    assert {(one.entity_id, type(one.response)) for one in answers} == {
        (by_new.recipient_id, Msg),
        (by_sub.recipient_id, Msg),
        (credentials.notifier_id, Nmsg),
    }
    assert here.ack(by_get, got) == Ok()


def test_a_server_that_vanishes_in_the_middle_of_a_batch(
    front: Front, here: Peer, there: Peer, way: Way
) -> None:
    """Q-126: whatever is for it is told to come back; the rest of the batch is done, and what was
    answered OK is there when it returns. Q-114: new queues are made meanwhile."""
    boxes: list[Mailbox] = []

    def is_at_second(box: Mailbox) -> bool:
        """The queue, or, with `refs`, what leads to it."""
        ids = (box.recipient_id, box.sender_id)[: 1 + (way.id_mode == "refs")]
        return any(front.owner_of(slot_of(one)) == 2 for one in ids)

    while {is_at_second(box) for box in boxes} != {True, False}:
        boxes += [here.create() for _ in range(4)]
    said = [there.transmission(Send(False, b"1"), box.sender_id) for box in boxes]
    front.servers[1].kill()
    try:
        there.write(*(one for one, _ in said))
        answers = [there.next() for _ in boxes]
        responses = {one.entity_id: one.response for one in answers}
        for box in boxes:
            expected = Err(TRY_LATER) if is_at_second(box) else Ok()
            assert responses[box.sender_id] == expected
        for _ in range(4):
            made = there.create()
            assert front.owner_of(slot_of(made.recipient_id)) == 1
    finally:
        front.servers[1].start()
    for box in boxes:
        sent_again(there, box, b"2")
    assert {answer.entity_id for answer in (here.next() for _ in boxes)} == {
        box.recipient_id for box in boxes
    }


def sent_again(peer: Peer, box: Mailbox, body: bytes) -> None:
    """As clients do: until it is answered."""
    for _ in range(10):
        answer = peer.ask(Send(False, body), box.sender_id)
        if answer == Ok():
            return
        assert answer == Err(TRY_LATER)
    raise AssertionError("nobody took it")


def test_an_edge_reports_its_state_to_operators(front: Front, here: Peer, way: Way) -> None:
    here.send(here.create())
    assert here.ask(Sub(), bytes(24), Signer()) == Err(Code.AUTH)

    def told(path: str) -> str:
        url = f"http://127.0.0.1:{front.edges[0].ops_port}{path}"
        with urlopen(url, timeout=20) as answer:
            return answer.read().decode()

    until(lambda: 'waystation_edge_commands_total{kind="send"}' in told("/metrics"))
    numbers = dict(
        line.replace('worker="edge.0",', "").replace(',worker="edge.0"', "").rsplit(" ", 1)
        for line in told("/metrics").splitlines()
        if not line.startswith("#")
    )

    assert float(numbers['waystation_edge_commands_total{kind="new"}']) >= 1
    assert float(numbers['waystation_edge_refusals_total{kind="auth"}']) >= 1
    assert float(numbers['waystation_edge_links{kind="shared"}']) == 2
    own = float(numbers['waystation_edge_links{kind="own"}'])
    assert (own > 0) == (way.upstream_mode == "dedicated")
    assert '"status":"OK"' in told("/__heartbeat__")


def test_a_batch_over_all_servers_is_answered_as_one_server_would(here: Peer, there: Peer) -> None:
    """Q-121, Q-072: all subscriptions first, in their order, then messages."""
    boxes = [here.create(subscribe=False) for _ in range(30)]
    for box in boxes[::3]:
        here.send(box)
    said = [there.transmission(Sub(), box.recipient_id, box.signer) for box in boxes]
    there.write(*(one for one, _ in said))
    answers = [there.next() for _ in range(40)]

    assert [one.corr_id for one in answers[:30]] == [corr_id for _, corr_id in said]
    assert all(isinstance(one.response, Sok) for one in answers[:30])
    assert {one.entity_id for one in answers[30:]} == {box.recipient_id for box in boxes[::3]}
