"""An edge whose clients and servers are played by a test."""

import random
from collections.abc import Callable

from waystation.queue.cluster.slot_map import Assignment, Node, NodeId, SlotMap
from waystation.queue.edge.client_session import ClientSession
from waystation.queue.edge.edge import Edge
from waystation.queue.edge.effects import Budget
from waystation.queue.edge.refs import RefCache
from waystation.queue.errors import Fault
from waystation.queue.model import (
    AuthKey,
    CorrId,
    DhKey,
    DhPrivateKey,
    KeyKind,
    LinkData,
    LinkId,
    QueueMode,
    RecipientId,
    RefKind,
    SenderId,
    SessionId,
    Slot,
)
from waystation.queue.wire import commands as c
from waystation.queue.wire import link_messages as w
from waystation.queue.wire import responses as r
from waystation.queue.wire.link import (
    REQUESTS_FROM,
    Body,
    ClientTransmission,
    Frame,
    ServerTransmission,
)
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
        self.answers: list[tuple[ClientSession, bytes]] = []
        self.hung_up: list[ClientSession] = []
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

    def answer(self, session: ClientSession, item: bytes) -> None:
        self.answers.append((session, item))

    def disconnect(self, session: ClientSession) -> None:
        self.hung_up.append(session)

    def refresh(self) -> None:
        self.refreshes += 1

    def spent(self, session: ClientSession, budget: Budget) -> None:
        self.budgets.append(budget)

    def after_a_hop(self, then: Callable[[], None]) -> None:
        self.later.append(then)

    def hop(self) -> None:
        later, self.later = self.later, []
        for then in later:
            then()

    # What clients do

    def session(self) -> ClientSession:
        return self.edge.opened(DIALECT, KEY)

    def say(
        self,
        session: ClientSession,
        command: c.Command,
        entity_id: bytes = b"",
        *,
        mono: float = 0.0,
    ) -> tuple[bytes, CorrId]:
        self.corr += 1
        corr_id = CorrId(b"%024d" % self.corr)
        proof = b"" if command.presence in (c.Presence.NEITHER, c.Presence.ENTITY_ONLY) else PROOF
        encoded = c.encode_command(command, 18)
        item = encode_transmission(corr_id, entity_id, encoded, DIALECT, proof)
        self.edge.received(session, [item], mono)
        return item, corr_id

    # What servers do

    def hear(self, node_id: NodeId, stream: int, body: Body, *, epoch: int = 1) -> None:
        self.edge.frame_arrived(node_id, Frame(stream, epoch, body), 0.0)

    def reply(
        self, node_id: NodeId, session: ClientSession, corr_id: bytes, entity_id: bytes, said: bytes
    ) -> None:
        self.hear(
            node_id,
            session.stream,
            ServerTransmission(encode_answer(corr_id, entity_id, said, DIALECT)),
        )

    # What came out

    def take(self) -> list[tuple[NodeId, Body]]:
        """Everything that went to servers, without the introductions."""
        taken: list[tuple[NodeId, Body]] = [
            (node, body) for node, _, body in self.sent if not isinstance(body, w.Sopen)
        ]
        self.sent.clear()
        return taken

    def told(self, session: ClientSession) -> list[bytes]:
        told = [
            decode_answer(item, DIALECT).response for who, item in self.answers if who is session
        ]
        self.answers.clear()
        return told

    def requests(self) -> list[tuple[NodeId, int, Body]]:
        taken = [one for one in self.sent if one[1] >= REQUESTS_FROM]
        self.sent.clear()
        return taken


def error(fault: Fault) -> bytes:
    return r.encode_response(r.Err(fault), 18)


def subscribed(
    world: World, entity_id: bytes, node_id: NodeId
) -> tuple[ClientSession, bytes, CorrId]:
    session = world.session()
    item, corr_id = world.say(session, c.Sub(), entity_id)
    world.reply(node_id, session, corr_id, entity_id, b"SOK 0")
    world.told(session)
    world.take()
    return session, item, corr_id


def send(
    world: World, session: ClientSession, body: bytes, entity_id: bytes = AT_A
) -> tuple[ClientTransmission, CorrId]:
    item, corr_id = world.say(session, c.Send(False, body), entity_id)
    return ClientTransmission(item), corr_id


def begin(
    world: World, session: ClientSession, command: c.New = NEW
) -> tuple[NodeId, w.Newq, CorrId]:
    _, corr_id = world.say(session, command)
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
