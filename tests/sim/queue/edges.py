"""Edges of the simulated cluster, and the connections of their clients.

An edge is production code from the network loop on: blocks, hellos, `EdgeDriver`, links. Its
clients speak SMP to it over simulated sockets; of these, TLS alone is simulated.
"""

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from tests.sim.queue.servers import LifeTasks, member_tls
from tests.sim.sockets import SimHost, SimNetLoop, SimTls
from waystation.net.blocks import Blocks
from waystation.net.loop import Port
from waystation.queue.cluster.link_connection import Links
from waystation.queue.edge.driver import EdgeDriver
from waystation.queue.edge.refs import RefCache
from waystation.queue.edge.upstreams import Upstreams
from waystation.queue.identity import Identity
from waystation.queue.model import VERSION_MAX, SessionId, VersionRange
from waystation.queue.server.observer import NoObserver
from waystation.queue.server.server import BlockServer
from waystation.queue.server.tls import ALPN
from waystation.queue.settings import Queue as QueueSettings
from waystation.queue.wire.block import seal_plain
from waystation.queue.wire.boxes import new_dh_pair
from waystation.queue.wire.certificates import leaf_key
from waystation.queue.wire.handshake import (
    Agreement,
    ClientHello,
    ServerHandshake,
    agreement,
    encode_client_hello,
    expected_identity,
    server_hello_of,
)
from waystation.queue.wire.responses import Response, decode_response
from waystation.queue.wire.signed_key import open_signed_key
from waystation.queue.wire.transmission import (
    Dialect,
    decode_answer,
    join_batch,
    split_batch,
)

if TYPE_CHECKING:
    from tests.sim.queue.world import EdgeWorld

VERSION = 18
PORT = 5223
CONNECT_S = 20.0
REFS_MAX = 8  # so few that references are asked for again and again


class GoneError(Exception):
    """The connection is over."""


class Connection(Blocks):
    """A client's, to one edge, until it is cut."""

    def __init__(self, world: "EdgeWorld", port: Port) -> None:
        super().__init__(port)
        self._world = world
        self._waiting: dict[bytes, asyncio.Future[Response]] = {}
        self._agreement: Agreement | None = None
        self.agreed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.events: asyncio.Queue[tuple[bytes, Response] | None] = asyncio.Queue()
        # Told of everything at the moment it is heard: what is read later may have come before.
        self.on_heard: Callable[[bytes, bytes, Response], None] | None = None

    @classmethod
    async def to(cls, world: "EdgeWorld", edge: "EdgeNode") -> "Connection":
        connection = cls(world, world.people)
        try:
            async with asyncio.timeout(CONNECT_S):
                tls = SimTls(protocol=ALPN)
                await world.people.connect(connection, (edge.name, PORT), tls=tls)
                await connection.agreed
        except (OSError, TimeoutError) as error:
            connection.leave()
            raise GoneError from error
        return connection

    @property
    def dialect(self) -> Dialect:
        assert self._agreement is not None
        return self._agreement.dialect

    def say(self, items: list[tuple[bytes, bytes]]) -> list["asyncio.Future[Response]"]:
        """One block with transmissions, each with its correlation id."""
        loop = asyncio.get_running_loop()
        if not self.is_open:
            raise GoneError
        assert self._agreement is not None
        answers: list[asyncio.Future[Response]] = []
        for corr_id, _ in items:
            answers.append(loop.create_future())
            self._waiting[corr_id] = answers[-1]
        self.send(self._agreement.blocks.seal(join_batch([item for _, item in items])))
        return answers

    def leave(self) -> None:
        """By the client."""
        if self.is_open:
            self.end()

    def block_received(self, block: bytes) -> None:
        if self._agreement is None:
            self._greet(block)
            return
        for item in split_batch(self._agreement.blocks.open(block)):
            self._hear(item)

    def closed(self) -> None:
        for one in (self.agreed, *self._waiting.values()):
            if not one.done():
                one.set_exception(GoneError())
                one.exception()  # whoever waited has heard; nobody need have
        self._waiting.clear()
        self.events.put_nowait(None)

    def _greet(self, block: bytes) -> None:
        hello = server_hello_of(block)
        secure = self.secure
        assert secure is not None
        assert hello.session_id == secure.binding
        public, private = new_dh_pair()
        answer = ClientHello(VERSION, expected_identity(hello.chain), public)
        self.send(seal_plain(encode_client_hello(answer)))
        self._agreement = agreement(
            version=VERSION,
            session_id=hello.session_id,
            own=private,
            peer=open_signed_key(hello.signed_key, leaf_key(hello.chain)),
            is_proxy=False,
            is_server=False,
        )
        if not self.agreed.done():
            self.agreed.set_result(None)

    def _hear(self, item: bytes) -> None:
        answer = decode_answer(item, self.dialect)
        response = decode_response(answer.response, VERSION)
        if self.on_heard is not None:
            self.on_heard(answer.corr_id, answer.entity_id, response)
        if not answer.corr_id:
            self.events.put_nowait((answer.entity_id, response))
            return
        waiting = self._waiting.pop(answer.corr_id, None)
        if waiting is None:
            self._world.complain(f"an answer that nobody asked for: {response}")
        elif not waiting.done():
            waiting.set_result(response)


class EdgeNode:
    """An edge's process. A life's memory is its own."""

    def __init__(self, world: "EdgeWorld", name: str, identity: Identity) -> None:
        self._world = world
        self._identity = identity
        self.name = name
        self.host: SimHost | None = None
        self.is_up = False
        self._net: SimNetLoop | None = None
        self._tasks: LifeTasks | None = None

    def start(self) -> None:
        if self._tasks is not None and not self._tasks.is_dead:
            return  # it is starting, and cannot read the map yet: one life has one edge
        tasks = self._tasks = LifeTasks(self._world.task_failed)
        tasks.spawn("boot", self._boot(tasks))

    async def _boot(self, tasks: LifeTasks) -> None:
        world = self._world
        self.host = host = world.network.host(self.name)
        self._net = net = SimNetLoop(host, clock=world.clock)
        maps = world.map_for(self.name)
        settings = QueueSettings(id_mode=world.id_mode, auth_errors_per_min=0)
        driver = EdgeDriver(
            slot_map=await world.patiently(maps.read),
            maps=maps,
            handshake=self._handshake,
            proxies=cast(Any, None),  # no client of this world asks for them
            refs=RefCache(REFS_MAX),
            settings=settings,
            tasks=tasks,
            clock=world.clock,
            chance=random.Random(world.chance.getrandbits(64)),
            asks_first=world.id_mode == "refs",
        )
        tls = member_tls(self.name)
        driver.use(
            Upstreams(
                driver,
                links=Links(net),
                tls=lambda: tls,
                tasks=tasks,
                dedicated_max=1000 if world.upstream_mode == "dedicated" else 0,
            )
        )
        server = BlockServer(
            net,
            driver,
            tls=SimTls(protocol=ALPN),
            versions=VersionRange(VERSION, VERSION_MAX),
            without_alpn=None,
            settings=settings,
            observer=NoObserver(),
            clock=world.clock,
        )
        server.listen(host.listening(PORT))
        tasks.spawn("time", driver.run(world.map_interval_s))
        self.is_up = True

    def kill(self) -> None:
        self.is_up = False
        if self._net is not None:
            self._net.kill()
        if self._tasks is not None:
            self._tasks.kill()

    def _handshake(self, session_id: SessionId, versions: VersionRange) -> ServerHandshake:
        return ServerHandshake(
            versions=versions,
            session_id=session_id,
            chain=self._identity.chain,
            leaf_key=self._identity.leaf_key,
        )
