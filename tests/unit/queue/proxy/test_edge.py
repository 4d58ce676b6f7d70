"""An edge between clients and servers that a test plays."""

import random
from collections.abc import Callable

import pytest

from waystation.queue.cluster.slot_map import Assignment, Node, NodeId, SlotMap
from waystation.queue.errors import TRY_LATER, Code, Fault
from waystation.queue.model import (
    AuthKey,
    CorrId,
    DhKey,
    DhPrivateKey,
    KeyKind,
    LinkData,
    LinkId,
    MessageId,
    QueueMode,
    RecipientId,
    RefKind,
    SenderId,
    SessionId,
    Slot,
    SubMode,
    slot_of,
)
from waystation.queue.proxy import edge as edges
from waystation.queue.proxy import passage
from waystation.queue.proxy.edge import Edge
from waystation.queue.proxy.guest import Guest
from waystation.queue.proxy.outlet import Budget
from waystation.queue.proxy.refs import RefCache
from waystation.queue.wire import commands as c
from waystation.queue.wire import link_words as w
from waystation.queue.wire import responses as r
from waystation.queue.wire.link import REQUESTS_FROM, Body, Frame, Said, Sent
from waystation.queue.wire.transmission import (
    Dialect,
    decode_answer,
    encode_answer,
    encode_transmission,
)

DIALECT = Dialect(18, SessionId(b"\xaa" * 32))
KEY = DhPrivateKey(b"k" * 32)
A, B, C = NodeId(1), NodeId(2), NodeId(3)
AUTH_KEY = AuthKey(KeyKind.ED25519, bytes(32))
NEW = c.New(AUTH_KEY, DhKey(bytes(32)))
AT_A, AT_B, AT_C = (bytes((n,)) + b"\0" + b"i" * 22 for n in (0x00, 0x60, 0xC0))
PROOF = b"p" * 64
IDS = b"IDS made"
NEW_CONTACT = c.New(
    AUTH_KEY,
    DhKey(bytes(32)),
    mode=QueueMode.CONTACT,
    link=c.NewLink(SenderId(AT_B), LinkData(b"f", b"u"), LinkId(AT_C)),
)


def slot_map(epoch: int = 1, *, weights: tuple[int, ...] = (100, 100, 100)) -> SlotMap:
    """Three servers with a third of the slots each."""
    nodes = {
        node_id: Node(node_id=node_id, host="h", port=1, fingerprint=bytes(32), weight_new=weight)
        for node_id, weight in zip((A, B, C), weights, strict=True)
    }
    slots = tuple(Assignment(NodeId(1 + slot * 3 // 4096)) for slot in range(4096))
    return SlotMap(epoch=epoch, nodes=nodes, slots=slots)


def moved(before: SlotMap, slot: Slot, **changes: object) -> SlotMap:
    slots = list(before.slots)
    slots[slot] = Assignment(**changes)  # pyright: ignore[reportArgumentType]
    return SlotMap(epoch=before.epoch + 1, nodes=before.nodes, slots=tuple(slots))


class World:
    """Keeps what the edge sends; answers are a test's."""

    def __init__(self, *, up: tuple[NodeId, ...] = (A, B, C), asks_first: bool = False) -> None:
        self.sent: list[tuple[NodeId, int, Body]] = []
        self.answers: list[tuple[Guest, bytes]] = []
        self.hung_up: list[Guest] = []
        self.refreshes = 0
        self.budgets: list[Budget] = []
        self.later: list[Callable[[], None]] = []
        self.refs = RefCache(100)
        self.edge = Edge(
            self, slot_map(), refs=self.refs, chance=random.Random(1), asks_first=asks_first
        )
        for node_id in up:
            self.edge.link_up(node_id)
        self.corr = 0

    def send(self, node_id: NodeId, stream: int, body: Body) -> None:
        assert self.edge.is_up(node_id)
        self.sent.append((node_id, stream, body))

    def answer(self, guest: Guest, item: bytes) -> None:
        self.answers.append((guest, item))

    def hang_up(self, guest: Guest) -> None:
        self.hung_up.append(guest)

    def refresh(self) -> None:
        self.refreshes += 1

    def spent(self, guest: Guest, budget: Budget) -> None:
        self.budgets.append(budget)

    def after_a_hop(self, then: Callable[[], None]) -> None:
        self.later.append(then)

    def hop(self) -> None:
        later, self.later = self.later, []
        for then in later:
            then()

    # What clients do

    def guest(self) -> Guest:
        return self.edge.opened(DIALECT, KEY)

    def say(
        self, guest: Guest, command: c.Command, entity_id: bytes = b"", *, mono: float = 0.0
    ) -> tuple[bytes, CorrId]:
        self.corr += 1
        corr_id = CorrId(b"%024d" % self.corr)
        proof = b"" if command.presence in (c.Presence.NEITHER, c.Presence.ENTITY_ONLY) else PROOF
        encoded = c.encode_command(command, 18)
        item = encode_transmission(corr_id, entity_id, encoded, DIALECT, proof)
        self.edge.received(guest, [item], mono)
        return item, corr_id

    # What servers do

    def hear(self, node_id: NodeId, stream: int, body: Body, *, epoch: int = 1) -> None:
        self.edge.heard(node_id, Frame(stream, epoch, body), 0.0)

    def reply(
        self, node_id: NodeId, guest: Guest, corr_id: bytes, entity_id: bytes, said: bytes
    ) -> None:
        self.hear(node_id, guest.stream, Said(encode_answer(corr_id, entity_id, said, DIALECT)))

    # What came out

    def take(self) -> list[tuple[NodeId, Body]]:
        """Everything that went to servers, without the introductions."""
        taken: list[tuple[NodeId, Body]] = [
            (node, body) for node, _, body in self.sent if not isinstance(body, w.Sopen)
        ]
        self.sent.clear()
        return taken

    def told(self, guest: Guest) -> list[bytes]:
        told = [decode_answer(item, DIALECT).response for who, item in self.answers if who is guest]
        self.answers.clear()
        return told

    def requests(self) -> list[tuple[NodeId, int, Body]]:
        taken = [one for one in self.sent if one[1] >= REQUESTS_FROM]
        self.sent.clear()
        return taken


@pytest.fixture
def world() -> World:
    return World()


def error(fault: Fault) -> bytes:
    return r.encode_response(r.Err(fault), 18)


def test_commands_go_to_the_owner_of_their_slot(world: World) -> None:
    """Q-121: one client, queues on all servers."""
    guest = world.guest()

    items = [world.say(guest, c.Sub(), entity_id)[0] for entity_id in (AT_A, AT_B, AT_C, AT_A)]

    assert world.sent[0] == (A, guest.stream, w.Sopen(18, DIALECT.session_id, KEY))
    assert sum(isinstance(body, w.Sopen) for _, _, body in world.sent) == 3
    assert world.take() == [
        (node, Sent(item)) for node, item in zip((A, B, C, A), items, strict=True)
    ]


def test_answers_and_events_go_to_the_client_as_they_are(world: World) -> None:
    guest, other = world.guest(), world.guest()
    _, corr_id = world.say(guest, c.Sub(), AT_A)

    world.reply(A, guest, corr_id, AT_A, b"SOK 0")
    world.reply(A, guest, b"", AT_A, b"MSG body")
    world.hear(A, 999, Said(b"for nobody"))

    assert world.told(other) == []
    world.reply(A, guest, b"", AT_A, b"MSG body")
    assert world.told(guest) == [b"MSG body"]


def test_what_the_edge_answers_by_itself(world: World) -> None:
    guest = world.guest()
    ping, _ = world.say(guest, c.Ping())
    world.say(guest, c.Subs(), AT_A)
    world.edge.received(guest, [b"\xff"], 0.0)
    world.say(guest, c.Sub())
    own = world.edge.received(guest, [encode_transmission(b"c", b"", b"RFWD layers", DIALECT)], 0.0)

    assert world.told(guest) == [
        b"PONG",
        error(Code.SERVICE),
        error(Code.BLOCK),
        error(Code.CMD_NO_AUTH),
    ]
    assert world.take() == []
    assert [transmission.command for _, transmission in own] == [c.Rfwd(b"layers")]
    assert ping


def test_a_reference_is_followed_and_remembered(world: World) -> None:
    """Q-116: MOVED once, then directly."""
    guest = world.guest()
    item, corr_id = world.say(guest, c.Send(False, b"x"), AT_A)
    world.take()

    world.hear(A, guest.stream, w.Moved(corr_id, RefKind.SENDER, slot_of(AT_C)))
    assert world.take() == [(C, Sent(item))]
    world.reply(C, guest, corr_id, AT_A, b"OK")
    again, _ = world.say(world.guest(), c.Send(False, b"y"), AT_A)

    assert world.take() == [(C, Sent(again))]
    assert world.told(guest) == [b"OK"]
    recipient, _ = world.say(guest, c.Sub(), AT_A)
    assert world.take() == [(A, Sent(recipient))]  # another kind of id


def test_a_remembered_home_that_refuses_is_doubted_once(world: World) -> None:
    guest = world.guest()
    world.refs.learn(RefKind.LINK, AT_A, slot_of(AT_B))
    item, corr_id = world.say(guest, c.Lget(), AT_A)
    assert world.take() == [(B, Sent(item))]

    world.reply(B, guest, corr_id, AT_A, error(Code.AUTH))
    assert world.told(guest) == []
    assert world.take() == [(A, Sent(item))]
    world.reply(A, guest, corr_id, AT_A, error(Code.AUTH))

    assert world.told(guest) == [error(Code.AUTH)]


def test_a_reference_that_leads_to_a_refusal_does_not_spin(world: World) -> None:
    """Q-117: a link that is gone, while its reference is still there."""
    guest = world.guest()
    item, corr_id = world.say(guest, c.Lget(), AT_A)
    home = slot_of(AT_B)
    for _ in range(2):
        world.hear(A, guest.stream, w.Moved(corr_id, RefKind.LINK, home))
        world.take()
        world.reply(B, guest, corr_id, AT_A, error(Code.AUTH))

    assert world.told(guest) == [error(Code.AUTH)]
    assert world.take() == []
    assert not guest.pending
    assert item


def test_a_home_that_does_not_know_the_id_is_a_refusal(world: World) -> None:
    """Q-117: after LDEL the reference remains, and its home looks at the slot of the id."""
    guest = world.guest()
    world.refs.learn(RefKind.LINK, AT_A, slot_of(AT_B))
    item, corr_id = world.say(guest, c.Lget(), AT_A)
    assert world.take() == [(B, Sent(item))]

    world.hear(B, guest.stream, w.Unknown(corr_id, 1))
    assert world.take() == [(A, Sent(item))]
    world.hear(A, guest.stream, w.Moved(corr_id, RefKind.LINK, slot_of(AT_B)))
    assert world.take() == [(B, Sent(item))]
    world.hear(B, guest.stream, w.Unknown(corr_id, 1))

    assert world.told(guest) == [error(Code.AUTH)]
    assert not guest.pending


def test_a_home_that_is_not_served_at_present_is_no_refusal(world: World) -> None:
    """Its server has lost its lease for a moment: the queue is there, and nobody may say so."""
    guest = world.guest()
    world.refs.learn(RefKind.SENDER, AT_A, slot_of(AT_B))
    item, corr_id = world.say(guest, c.Send(False, b"x"), AT_A)

    world.hear(B, guest.stream, w.WrongSlot(corr_id, 1))
    assert world.told(guest) == []
    world.take()
    world.edge.tick(0.5)

    assert world.take() == [(B, w.Sagain(AT_A)), (B, Sent(item))]


def test_a_link_that_is_somebody_elses_now_is_found_though_its_former_home_has_a_copy(
    world: World,
) -> None:
    guest = world.guest()
    world.refs.learn(RefKind.LINK, AT_A, slot_of(AT_B))
    item, corr_id = world.say(guest, c.Lget(), AT_A)
    assert world.take() == [(B, Sent(item))]

    world.hear(B, guest.stream, w.WrongSlot(corr_id, 1))
    assert world.take() == [(A, Sent(item))]
    world.reply(A, guest, corr_id, AT_A, b"LNK new")

    assert world.told(guest) == [b"LNK new"]
    assert not guest.pending


def test_a_server_that_is_not_the_home_by_its_map_is_asked_again(world: World) -> None:
    """It keeps the reference too, and is the home no more, or does not know yet that it is."""
    guest = world.guest()
    world.refs.learn(RefKind.SENDER, AT_A, slot_of(AT_B))
    item, corr_id = world.say(guest, c.Send(False, b""), AT_A)
    world.take()

    world.hear(B, guest.stream, w.Moved(corr_id, RefKind.SENDER, slot_of(AT_B)))

    assert world.told(guest) == []
    assert world.refreshes
    assert world.take() == []
    world.edge.tick(0.5)
    assert world.take() == [(B, Sent(item))]


def test_a_stale_map_is_read_again_and_the_client_is_unaware(world: World) -> None:
    """Q-125"""
    guest = world.guest()
    item, corr_id = world.say(guest, c.Sub(), AT_A)
    world.take()

    world.hear(A, guest.stream, w.WrongSlot(corr_id, 2))
    assert world.refreshes == 1
    assert world.take() == []
    world.edge.learned(moved(slot_map(), slot_of(AT_A), owner=B))

    assert world.take() == [(B, Sent(item))]
    world.reply(B, guest, corr_id, AT_A, b"SOK 0")
    assert world.told(guest) == [b"SOK 0"]
    assert not world.hung_up


def test_a_server_that_refuses_for_ever_does_not_spin(world: World) -> None:
    guest = world.guest()
    item, corr_id = world.say(guest, c.Send(False, b"x"), AT_A)

    world.hear(A, guest.stream, w.WrongSlot(corr_id, 1))
    assert world.edge.waits
    for half_seconds in range(1, 16):
        world.edge.tick(half_seconds / 2)
        world.hear(A, guest.stream, w.WrongSlot(corr_id, 1))

    said = [body for _, body in world.take() if isinstance(body, Sent)]
    assert said == [Sent(item)] * 16  # once at first, then with every look
    assert world.told(guest) == []
    world.edge.tick(8.0)
    assert world.told(guest) == [error(TRY_LATER)]
    assert not guest.pending


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


def test_what_was_under_way_when_a_link_broke(world: World) -> None:
    sender, recipient, other = world.guest(), world.guest(), world.guest()
    world.say(sender, c.Send(False, b"x"), AT_A)
    world.say(recipient, c.Sub(), AT_A)
    world.say(other, c.Sub(), AT_B)

    world.edge.link_down(A)

    assert world.told(sender) == [error(TRY_LATER)]
    assert world.hung_up == [recipient]
    assert not other.gone


def subscribed(world: World, entity_id: bytes, node_id: NodeId) -> tuple[Guest, bytes, CorrId]:
    guest = world.guest()
    item, corr_id = world.say(guest, c.Sub(), entity_id)
    world.reply(node_id, guest, corr_id, entity_id, b"SOK 0")
    world.told(guest)
    world.take()
    return guest, item, corr_id


def test_subscriptions_are_said_again_where_their_slot_went(world: World) -> None:
    """Q-123, Q-128: the reply to a replay is swallowed, its message is not."""
    guest, item, corr_id = subscribed(world, AT_A, A)
    subscribed(world, AT_B, B)

    world.edge.learned(moved(slot_map(), slot_of(AT_A), owner=C))

    assert world.take() == [(C, Sent(item))]
    world.reply(C, guest, corr_id, AT_A, b"SOK 0")
    world.reply(C, guest, b"", AT_A, b"MSG again")
    assert world.told(guest) == [b"MSG again"]
    assert not world.hung_up


def test_subscriptions_are_said_again_over_a_new_link(world: World) -> None:
    """Q-126"""
    guest, item, corr_id = subscribed(world, AT_A, A)

    world.edge.link_down(A)
    assert not guest.gone
    world.edge.link_up(A)

    assert world.sent[0] == (A, guest.stream, guest.introduction())
    assert world.take() == [(A, Sent(item))]
    world.reply(A, guest, corr_id, AT_A, b"SOK 0")
    assert world.told(guest) == []
    again, again_id = world.say(guest, c.Sub(), AT_A)  # the client's own, later
    world.reply(A, guest, again_id, AT_A, b"SOK 0")
    assert world.told(guest) == [b"SOK 0"]
    assert again


def test_a_replay_that_fails_ends_the_connection_and_is_no_end(world: World) -> None:
    """Q-131"""
    guest, _, corr_id = subscribed(world, AT_A, A)
    world.edge.learned(moved(slot_map(), slot_of(AT_A), owner=C))

    world.reply(C, guest, corr_id, AT_A, error(Code.AUTH))

    assert world.hung_up == [guest]
    assert world.told(guest) == []


def test_whoever_is_told_end_is_subscribed_no_more(world: World) -> None:
    """Q-122"""
    guest, _, _ = subscribed(world, AT_A, A)

    world.reply(A, guest, b"", AT_A, b"END")
    world.edge.learned(moved(slot_map(), slot_of(AT_A), owner=C))

    assert world.told(guest) == [b"END"]
    assert world.take() == []


def test_a_message_got_and_not_acknowledged_is_known_at_the_new_server(world: World) -> None:
    guest = world.guest()
    _, corr_id = world.say(guest, c.Get(), AT_A)
    world.reply(A, guest, corr_id, AT_A, b"MSG \x02id" + b"body")
    world.take()

    world.edge.learned(moved(slot_map(), slot_of(AT_A), owner=C))

    assert world.take() == [(C, w.Sdlv(RecipientId(AT_A), True, MessageId(b"id")))]
    _, corr_id = world.say(guest, c.Ack(MessageId(b"id")), AT_A)
    world.reply(C, guest, corr_id, AT_A, b"OK")
    assert not guest.delivered


def test_leaving_is_told_to_every_server_that_knew_the_client(world: World) -> None:
    guest, _, _ = subscribed(world, AT_A, A)
    world.say(guest, c.Sub(), AT_B)
    world.take()

    world.edge.closed(guest)

    assert sorted(world.take(), key=str) == [(A, w.Sclose()), (B, w.Sclose())]
    world.edge.learned(moved(slot_map(), slot_of(AT_A), owner=C))
    assert world.take() == []


def begin(world: World, guest: Guest, command: c.New = NEW) -> tuple[NodeId, w.Newq, CorrId]:
    _, corr_id = world.say(guest, command)
    ((node_id, body),) = world.take()
    assert isinstance(body, w.Newq)
    return node_id, body, corr_id


def made(newq: w.Newq, *needs: RefKind, sender_id: bytes = AT_B, link_id: bytes = AT_C) -> w.Newr:
    return w.Newr(
        newq.tx_id,
        RecipientId(AT_A),
        SenderId(sender_id),
        None,
        LinkId(link_id),
        needs,
    )


def test_a_queue_is_made_elsewhere_while_a_server_is_full(world: World) -> None:
    """§6.10: and the one that is full is spared for a while."""
    guest = world.guest()
    full, newq, corr_id = begin(world, guest)
    world.reply(full, guest, corr_id, b"", b"IDS made")
    world.hear(full, guest.stream, made(newq))
    ((_, number, _),) = world.requests()

    world.hear(full, number, w.Busy(CorrId(b"")))

    tried = [node_id for node_id, body in world.take() if isinstance(body, w.Newq)]
    assert len(tried) == 1
    later = [begin(world, world.guest())[0] for _ in range(20)]
    assert full not in (*tried, *later)
    assert world.told(guest) == []
    world.edge.tick(6.0)
    assert full in [begin(world, world.guest())[0] for _ in range(40)]


def test_a_queue_is_shown_when_it_is_committed(world: World) -> None:
    """Q-131: and its subscription, which was never said, is resumed by grant."""
    guest = world.guest()
    node_id, newq, corr_id = begin(world, guest)
    assert world.edge.slot_map.slots[newq.home].owner == node_id

    world.reply(node_id, guest, corr_id, b"", IDS)
    world.hear(node_id, guest.stream, made(newq))
    assert world.told(guest) == []
    ((asked, number, body),) = world.requests()
    assert (asked, body) == (node_id, w.Newc(newq.tx_id))
    world.hear(node_id, number, w.Cok())

    assert world.told(guest) == [IDS]
    target = A if node_id != A else B
    world.edge.learned(moved(slot_map(), newq.home, owner=target))
    assert world.take() == [(target, w.Sres(RecipientId(AT_A)))]
    world.hear(target, guest.stream, w.NotFound())
    assert world.hung_up == [guest]


def test_ids_of_the_clients_choice_get_references_first(world: World) -> None:
    """Q-116, Q-117: stored at the slots of the ids, before the queue is seen."""
    guest = world.guest()
    node_id, newq, corr_id = begin(world, guest)
    world.reply(node_id, guest, corr_id, b"", IDS)
    world.hear(node_id, guest.stream, made(newq, RefKind.SENDER, RefKind.LINK))

    (b, first, sender_ref), (cc, second, link_ref) = world.requests()
    assert (b, sender_ref) == (B, w.SetRef(RefKind.SENDER, AT_B, newq.home, newq.tx_id))
    assert (cc, link_ref) == (C, w.SetRef(RefKind.LINK, AT_C, newq.home, newq.tx_id))
    world.hear(B, first, w.Cok())
    assert world.requests() == []
    world.hear(C, second, w.Cok())
    ((_, number, body),) = world.requests()
    assert body == w.Newc(newq.tx_id)
    world.hear(node_id, number, w.Cok())

    assert world.told(guest) == [IDS]
    assert world.refs.home(RefKind.SENDER, AT_B) == newq.home
    assert world.refs.home(RefKind.LINK, AT_C) == newq.home


@pytest.mark.parametrize("answer", [w.Duplicate(), w.NotFound()], ids=["taken", "odd"])
def test_nothing_remains_of_a_queue_that_could_not_be_made(world: World, answer: w.Word) -> None:
    """Q-117: an id that is taken is AUTH. Q-118: anything else is taken back and tried anew."""
    guest = world.guest()
    node_id, newq, corr_id = begin(world, guest, NEW_CONTACT)
    world.reply(node_id, guest, corr_id, b"", IDS)
    world.hear(node_id, guest.stream, made(newq, RefKind.SENDER, RefKind.LINK))
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
        assert world.told(guest) == [error(Code.AUTH)]
        assert bodies[3:] == []
    else:
        assert world.told(guest) == []
        assert [type(body) for body in bodies[3:]] == [w.Newq]
    assert len(world.refs) == 0


def test_an_id_that_a_server_drew_and_somebody_has_is_drawn_again(world: World) -> None:
    guest = world.guest()
    node_id, newq, corr_id = begin(world, guest)
    world.reply(node_id, guest, corr_id, b"", IDS)
    world.hear(node_id, guest.stream, made(newq, RefKind.SENDER))
    ((_, number, _),) = world.requests()

    world.hear(B, number, w.Duplicate())

    assert [type(body) for _, body in world.take()] == [w.Newx, w.DelRef, w.Newq]
    assert world.told(guest) == []


def test_what_clients_do_too_often_is_counted(world: World) -> None:
    guest = world.guest()
    begin(world, guest)
    _, corr_id = world.say(guest, c.Sub(), AT_A)
    world.reply(A, guest, corr_id, AT_A, error(Code.AUTH))

    assert world.budgets == [Budget.CREATIONS, Budget.REFUSALS]


def test_a_refused_new_is_told_as_it_is(world: World) -> None:
    guest = world.guest()
    node_id, _, corr_id = begin(world, guest)

    world.reply(node_id, guest, corr_id, b"", error(Code.AUTH))

    assert world.told(guest) == [error(Code.AUTH)]
    assert not guest.pending


def test_new_queues_go_where_the_weights_say() -> None:
    """Q-114: none to a weight of 0, none to a server that is away."""
    world = World()
    world.edge.learned(slot_map(2, weights=(300, 100, 0)))
    guest = world.guest()
    counts = dict.fromkeys((A, B, C), 0)
    for _ in range(300):
        node_id, newq, corr_id = begin(world, guest)
        counts[node_id] += 1
        assert world.edge.slot_map.slots[newq.home].owner == node_id
        world.reply(node_id, guest, corr_id, b"", error(Code.QUOTA))

    assert counts[C] == 0
    assert 180 < counts[A] < 270
    world.edge.link_down(A)
    assert {begin(world, world.guest())[0] for _ in range(20)} == {B}


def test_a_server_that_dies_while_it_makes_a_queue_is_replaced(world: World) -> None:
    """Q-114: the client still gets its queue."""
    guest = world.guest()
    node_id, newq, corr_id = begin(world, guest)

    world.edge.link_down(node_id)
    ((other, again),) = world.take()

    assert other != node_id
    assert isinstance(again, w.Newq)
    assert again.tx_id != newq.tx_id
    assert again.transmission == newq.transmission
    world.hear(other, guest.stream, w.Busy(corr_id))
    (taken_back, (third, _)) = world.take()
    assert taken_back == (other, w.Newx(again.tx_id))
    assert third != node_id
    world.hear(third, guest.stream, w.Busy(corr_id))
    assert world.hung_up == [guest]  # three tries


def test_a_creation_that_nobody_answers_is_given_up(world: World) -> None:
    guest = world.guest()
    node_id, newq, _ = begin(world, guest)

    world.edge.tick(14.9)
    assert not world.hung_up
    world.edge.tick(15.0)

    assert world.hung_up == [guest]
    assert world.take() == [(node_id, w.Newx(newq.tx_id)), (node_id, w.Sclose())]


def test_without_any_server_nobody_is_told_a_lie() -> None:
    world = World(up=())
    guest = world.guest()

    world.say(guest, NEW)

    assert world.hung_up == [guest]
    assert world.told(guest) == []


def test_create_only_is_not_resumed(world: World) -> None:
    guest = world.guest()
    command = c.New(AUTH_KEY, DhKey(bytes(32)), sub_mode=SubMode.CREATE)
    node_id, newq, corr_id = begin(world, guest, command)
    world.reply(node_id, guest, corr_id, b"", IDS)
    world.hear(node_id, guest.stream, made(newq))
    ((_, number, _),) = world.requests()
    world.hear(node_id, number, w.Cok())

    assert world.told(guest) == [IDS]
    assert not guest.subscriptions


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


def test_a_newer_epoch_makes_us_look(world: World) -> None:
    world.hear(A, 1, w.Cpong(9), epoch=9)

    assert world.refreshes == 1
    assert not world.edge.learned(slot_map(1))
    assert world.edge.epoch == 1


def test_remembered_homes_are_bounded() -> None:
    refs = RefCache(2)
    for number in range(3):
        refs.learn(RefKind.SENDER, bytes((number, 0)), Slot(7))

    assert len(refs) == 2
    assert refs.home(RefKind.SENDER, b"\0\0") == 0
    assert refs.home(RefKind.SENDER, b"\x02\0") == 7
    assert refs.home(RefKind.SENDER, b"") == 0
    assert refs.forget(RefKind.SENDER, b"\x02\0")
    assert not refs.forget(RefKind.SENDER, b"\x02\0")
