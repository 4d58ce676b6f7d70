"""The edge's driver with clients that speak the protocol, and servers played by a test."""

import asyncio
import random

import pytest

from tests.unit.queue.edge.stage import AT_A, AT_B, A, B, moved, slot_map
from tests.unit.queue.wire.chains import chain
from waystation.base.clock import ManualClock
from waystation.base.errors import UnavailableError
from waystation.base.tasks import Tasks
from waystation.queue.cluster.slot_map import NodeId, SlotMap
from waystation.queue.edge.driver import STOP_READING_AT, STOP_READING_BYTES, EdgeDriver
from waystation.queue.edge.refs import RefCache
from waystation.queue.errors import Broker, BrokerFault, Code
from waystation.queue.model import (
    CURRENT_VERSIONS,
    AuthKey,
    CorrId,
    DhKey,
    KeyKind,
    SessionId,
    VersionRange,
    slot_of,
)
from waystation.queue.server.client import Client
from waystation.queue.settings import Queue as QueueSettings
from waystation.queue.wire import link_messages as w
from waystation.queue.wire.block import seal_plain
from waystation.queue.wire.boxes import agree, box_key, new_dh_pair
from waystation.queue.wire.certificates import fingerprint_of, leaf_key
from waystation.queue.wire.commands import (
    Command,
    Lget,
    New,
    Ping,
    Prxy,
    RelayAddress,
    Rfwd,
    Send,
    Sub,
    encode_command,
)
from waystation.queue.wire.forwarding import (
    Forwarded,
    open_forwarded_answer,
    open_inner_answer,
    seal_forwarded,
    seal_inner,
)
from waystation.queue.wire.handshake import (
    Agreement,
    ClientHello,
    ServerHandshake,
    agreement,
    encode_client_hello,
    server_hello_of,
)
from waystation.queue.wire.link import Body, ClientTransmission, Frame, ServerTransmission
from waystation.queue.wire.responses import OK, PONG, Err, Response, Rres, decode_response
from waystation.queue.wire.signed_key import open_signed_key
from waystation.queue.wire.transmission import (
    Dialect,
    Transmission,
    decode_answer,
    encode_answer,
    encode_transmission,
    join_batch,
    split_batch,
)

CHAIN, LEAF_KEY = chain()
SESSION_ID = SessionId(b"\xaa" * 32)
PROOF = b"p" * 64


async def turns() -> None:
    """As many turns of the loop as any of this takes."""
    for _ in range(10):
        await asyncio.sleep(0)


class Line:
    """A socket that only remembers what it was asked."""

    def __init__(self, origin: str = "") -> None:
        self.origin = origin
        self.paused = self.aborted = False

    def touch(self) -> None: ...

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def finish(self) -> None: ...

    def abort(self) -> None:
        self.aborted = True


class World:
    def __init__(self, *, new_per_address_per_min: int = 0) -> None:
        self.map = slot_map()
        self.fails = False
        self.sent: list[tuple[NodeId, int, Body]] = []
        self.tasks = Tasks(lambda name, error: pytest.fail(f"{name}: {error!r}"))
        self.driver = EdgeDriver(
            slot_map=self.map,
            maps=self,
            handshake=self.handshake,
            proxies=self,
            refs=RefCache(100),
            settings=QueueSettings(out_blocks_max=2, auth_errors_per_min=3),
            tasks=self.tasks,
            clock=ManualClock(),
            chance=random.Random(1),
            new_per_address_per_min=new_per_address_per_min,
        )
        self.driver.use(self)
        for node_id in (A, B, NodeId(3)):
            self.driver.link_up(node_id)

    # What the driver is given

    def handshake(self, session_id: SessionId, versions: VersionRange) -> ServerHandshake:
        return ServerHandshake(
            versions=versions, session_id=session_id, chain=CHAIN, leaf_key=LEAF_KEY
        )

    async def read(self) -> SlotMap:
        if self.fails:
            raise UnavailableError
        return self.map

    def send(self, node_id: NodeId, stream: int, epoch: int, body: Body) -> None:
        assert epoch == self.driver.edge.epoch
        if not isinstance(body, w.Sopen):
            self.sent.append((node_id, stream, body))

    def learned(self, slot_map: SlotMap) -> None:
        pass

    hop_s = 0.0

    async def forward(self, client: Client, transmission: Transmission) -> Response:
        assert isinstance(transmission.command, Prxy)
        return Err(Code.PROXY_BASIC_AUTH)

    def take(self) -> list[tuple[NodeId, Body]]:
        taken = [(node_id, body) for node_id, _, body in self.sent]
        self.sent.clear()
        return taken


class Visit:
    """A client at the edge."""

    def __init__(
        self, world: World, *, is_proxy: bool = False, with_key: bool = True, origin: str = ""
    ) -> None:
        self.world = world
        self.line = Line(origin)
        self.client = world.driver.opened(self.line, SESSION_ID, CURRENT_VERSIONS)
        hello = server_hello_of(self.client.session.hello())
        public, private = new_dh_pair()
        self.server_key = open_signed_key(hello.signed_key, leaf_key(hello.chain))
        identity = fingerprint_of(CHAIN[1])
        said = ClientHello(18, identity, public if with_key else None, is_proxy)
        assert world.driver.received(self.client, seal_plain(encode_client_hello(said)))
        self.agreed: Agreement = agreement(
            version=18,
            session_id=SESSION_ID,
            own=private,
            peer=self.server_key if with_key else None,
            is_proxy=is_proxy,
            is_server=False,
        )
        (self.stream,) = [
            stream for stream, one in world.driver._connections.items() if one is self.client
        ]

    def say(self, corr_id: bytes, command: Command, entity_id: bytes = b"") -> bytes:
        proof = PROOF if isinstance(command, Sub | New) else b""
        item = encode_transmission(
            corr_id, entity_id, encode_command(command, 18), self.agreed.dialect, proof
        )
        assert self.world.driver.received(self.client, self.agreed.blocks.seal(join_batch([item])))
        return item

    def said(self) -> list[tuple[bytes, Response]]:
        told: list[tuple[bytes, Response]] = []
        while (block := self.client.session.next_block()) is not None:
            for item in split_batch(self.agreed.blocks.open(block)):
                answer = decode_answer(item, self.agreed.dialect)
                told.append((answer.corr_id, decode_response(answer.response, 18)))
        return told

    def reply(self, node_id: NodeId, corr_id: bytes, entity_id: bytes, response: bytes) -> None:
        item = encode_answer(corr_id, entity_id, response, self.agreed.dialect)
        self.world.driver.frame_arrived(node_id, Frame(self.stream, 1, ServerTransmission(item)))


async def test_commands_leave_as_they_came_and_answers_enter_as_they_are() -> None:
    world = World()
    visit = Visit(world)

    item = visit.say(b"1", Sub(), AT_A)
    visit.say(b"2", Ping())
    assert world.take() == [(A, ClientTransmission(item))]
    visit.reply(A, b"1", AT_A, b"OK")

    assert visit.said() == [(b"1", OK), (b"2", PONG)]  # in the order of the commands
    assert not visit.client.is_idle
    world.driver.closed(visit.client)
    assert world.take() == [(A, w.Sclose())]
    assert not world.driver.clients


async def test_a_block_that_is_none_is_answered_and_the_next_is_served() -> None:
    """Q-012"""
    world = World()
    visit = Visit(world)

    assert world.driver.received(visit.client, bytes(16384))
    visit.agreed.blocks.seal(b"the key that the broken block took")
    visit.say(b"1", Ping())

    assert visit.said() == [(b"", Err(Code.BLOCK)), (b"1", PONG)]


async def test_a_bad_hello_ends_the_connection() -> None:
    world = World()
    client = world.driver.opened(Line(), SESSION_ID, CURRENT_VERSIONS)

    assert not world.driver.received(client, bytes(16384))
    world.driver.closed(client)
    assert not world.driver.clients


async def test_a_client_with_many_commands_in_flight_is_not_read() -> None:
    world = World()
    visit = Visit(world)
    for number in range(STOP_READING_AT):
        visit.say(b"%d" % number, Sub(), AT_A)
    assert visit.line.paused

    for number in range(STOP_READING_AT):
        visit.reply(A, b"%d" % number, AT_A, b"OK")

    assert not visit.line.paused


async def test_servers_learn_of_a_client_that_does_not_read() -> None:
    """Q-128 in its logic: the others do not wait for it."""
    world = World()
    visit = Visit(world)
    visit.say(b"1", Sub(), AT_A)
    visit.reply(A, b"1", AT_A, b"OK")
    world.take()

    for _ in range(3):
        visit.reply(A, b"", AT_A, b"MSG " + bytes(16000))
    assert world.take() == [(A, w.Spause())]
    while visit.client.session.next_block() is not None:
        pass
    world.driver.has_room(visit.client)

    assert world.take() == [(A, w.Sresume())]


async def test_a_client_that_does_not_read_is_not_read_either() -> None:
    """Answers must not pile up at the edge for whoever asks and never listens."""
    world = World()
    visit = Visit(world)
    for number in range(3):
        visit.say(b"%d" % number, Lget(), AT_A)
        visit.reply(A, b"%d" % number, AT_A, b"LNK " + bytes(16000))
    assert visit.line.paused

    while visit.client.session.next_block() is not None:
        pass
    world.driver.has_room(visit.client)

    assert not visit.line.paused


async def test_commands_in_flight_are_also_limited_by_size() -> None:
    world = World()
    visit = Visit(world)
    number = 0
    while not visit.line.paused:
        visit.say(b"%d" % number, Send(False, bytes(16000)), AT_A)
        number += 1

    assert number * 16000 < STOP_READING_BYTES + 3 * 16384
    for one in range(number):
        visit.reply(A, b"%d" % one, AT_A, b"OK")
    assert not visit.line.paused


async def test_a_client_whose_commands_use_a_congested_link_is_not_read() -> None:
    """Back-pressure goes through: from the server over the link to those clients, and no others."""
    world = World()
    visit, other = Visit(world), Visit(world)
    world.driver.link_congested(A, is_congested=True)
    visit.say(b"1", Send(False, b"x"), AT_A)
    other.say(b"1", Send(False, b"x"), AT_B)

    assert visit.line.paused
    assert not other.line.paused
    world.driver.link_congested(A, is_congested=False)
    assert not visit.line.paused
    world.driver.stream_congested(B, other.stream, is_congested=True)
    assert other.line.paused
    world.driver.stream_down(B, other.stream)
    assert not other.line.paused


async def test_a_client_that_guesses_ids_is_slowed() -> None:
    """§6.10: three refusals a minute here, then reading pauses."""
    world = World()
    visit = Visit(world)
    for number in range(4):
        assert not visit.line.paused
        visit.say(b"%d" % number, Sub(), AT_A)
        visit.reply(A, b"%d" % number, AT_A, b"ERR AUTH")

    assert visit.line.paused
    assert len(visit.said()) == 4


async def test_creating_queues_over_many_connections_is_slowed() -> None:
    """§6.10: three queues a minute from one address, however many connections it makes."""
    world = World(new_per_address_per_min=3)
    visits = [Visit(world, origin="192.0.2.7") for _ in range(4)]
    neighbour = Visit(world, origin="192.0.2.8")
    for visit in visits:
        visit.say(b"1", New(AuthKey(KeyKind.ED25519, bytes(32)), DhKey(bytes(32))))
    neighbour.say(b"1", New(AuthKey(KeyKind.ED25519, bytes(32)), DhKey(bytes(32))))

    assert [visit.line.paused for visit in visits] == [False, False, False, True]
    assert not neighbour.line.paused


async def test_a_stop_waits_for_what_servers_owe() -> None:
    world = World()
    visit = Visit(world)
    assert visit.client.work is None
    visit.say(b"1", Send(False, b"x"), AT_A)
    assert visit.client.work is not None

    visit.reply(A, b"1", AT_A, b"OK")

    assert visit.client.work is None


async def test_a_newer_map_is_read_once_and_followed() -> None:
    world = World()
    visit = Visit(world)
    item = visit.say(b"1", Sub(), AT_A)
    world.take()
    world.map = moved(slot_map(), slot_of(AT_A), owner=B)

    world.driver.frame_arrived(A, Frame(visit.stream, 1, w.WrongSlot(CorrId(b"1"), 2)))
    world.driver.refresh()
    await turns()

    assert world.take() == [(B, ClientTransmission(item))]
    world.fails = True
    await world.driver.read_map()
    assert world.driver.edge.epoch == 2


async def test_a_client_that_cannot_be_served_is_disconnected() -> None:
    world = World()
    visit = Visit(world)
    visit.say(b"1", Sub(), AT_A)

    world.driver.link_down(A)

    assert visit.line.aborted
    assert visit.said() == []


async def test_prxy_is_the_edges_own_business() -> None:
    world = World()
    visit = Visit(world)

    relay = RelayAddress((b"host",), b"", fingerprint_of(CHAIN[1]))
    visit.say(b"1", Prxy(relay))
    await turns()

    assert visit.said() == [(b"1", Err(Code.PROXY_BASIC_AUTH))]
    assert world.take() == []
    assert visit.client.forwarding == 0


class Sender:
    """A client of the proxy that `visit` is."""

    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        assert visit.agreed.secret is not None
        self.key = box_key(visit.agreed.secret)
        self.dialect = Dialect(17, SESSION_ID)
        self.public, private = new_dh_pair()
        self.inner_key = agree(visit.server_key, private)
        self.corr_id = CorrId(b"N" * 24)

    def send(self, outer: CorrId, command: Command, entity_id: bytes) -> bytes:
        item = encode_transmission(b"inner", entity_id, encode_command(command, 17), self.dialect)
        sealed = seal_inner(self.inner_key, self.corr_id, join_batch([item]))
        forwarded = Forwarded(self.corr_id, 17, self.public, sealed)
        self.visit.say(outer, Rfwd(seal_forwarded(self.key, outer, forwarded)))
        return item

    def opened(self, outer: CorrId, response: Response) -> Response:
        assert isinstance(response, Rres)
        corr_id, sealed = open_forwarded_answer(self.key, outer, response.encrypted)
        assert corr_id == self.corr_id
        (item,) = split_batch(open_inner_answer(self.inner_key, self.corr_id, sealed))
        return decode_response(decode_answer(item, self.dialect).response, 17)


async def answered(visit: Visit) -> tuple[CorrId, Response]:
    await turns()
    ((corr_id, response),) = visit.said()
    return CorrId(corr_id), response


async def test_a_foreign_proxy_reaches_a_queue_on_any_server() -> None:
    """Q-129"""
    world = World()
    visit = Visit(world, is_proxy=True)
    sender = Sender(visit)
    outer = CorrId(b"M" * 24)

    item = sender.send(outer, Send(False, b"hello"), AT_B)
    await turns()
    ((node_id, stream, body),) = world.sent
    assert (node_id, body) == (B, ClientTransmission(item))
    assert stream != visit.stream
    said = encode_answer(b"inner", AT_B, b"OK", sender.dialect)
    world.driver.frame_arrived(B, Frame(stream, 1, ServerTransmission(said)))

    assert sender.opened(*await answered(visit)) == OK
    world.sent.clear()
    world.driver.closed(visit.client)
    assert world.take() == [(B, w.Sclose())]


async def test_what_may_not_be_forwarded_is_refused_inside() -> None:
    world = World()
    visit = Visit(world, is_proxy=True)
    sender = Sender(visit)

    sender.send(CorrId(b"M" * 24), Ping(), b"")
    assert sender.opened(*await answered(visit)) == Err(Code.CMD_PROHIBITED)
    sender.send(CorrId(b"O" * 24), Send(False, b"x"), b"")
    assert sender.opened(*await answered(visit)) == Err(Code.CMD_NO_ENTITY)
    visit.say(b"broken", Rfwd(b"layers"))
    assert (await answered(visit))[1] == Err(Code.CRYPTO)
    assert world.take() == []


async def test_a_forwarded_command_to_a_server_that_is_down_gets_a_temporary_error() -> None:
    """Q-126"""
    world = World()
    visit = Visit(world, is_proxy=True)
    sender = Sender(visit)
    sender.send(CorrId(b"M" * 24), Lget(), AT_B)
    await turns()

    world.driver.link_down(B)

    later = Err(BrokerFault(Broker.TIMEOUT))
    assert sender.opened(*await answered(visit)) == later


async def test_layers_need_a_secret() -> None:
    world = World()
    visit = Visit(world, with_key=False)

    visit.say(b"1", Rfwd(b"layers"))

    assert (await answered(visit))[1] == Err(BrokerFault(Broker.TRANSPORT_NO_AUTH))
