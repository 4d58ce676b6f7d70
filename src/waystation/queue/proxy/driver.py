"""The edge's shell: clients on one side, links on the other, and `Edge`, which decides, between.

Rule 1: a client that has much under way is not read; one that does not read its answers is told to
        the servers (`SPAUSE`), so that nobody else waits for it.
Rule 2: the map is read again when somebody tells of a newer one, and now and then anyway; one read
        at a time.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Final, Protocol

from waystation.base.clock import Clock
from waystation.base.errors import UnavailableError
from waystation.base.tasks import Tasks
from waystation.queue.cluster.slot_map import NodeId, SlotMap
from waystation.queue.errors import BadHelloError
from waystation.queue.model import SessionId, VersionRange
from waystation.queue.proxy.edge import PENDING_MAX, Edge
from waystation.queue.proxy.forwarded import ForwardedDesk
from waystation.queue.proxy.guest import Guest
from waystation.queue.proxy.refs import RefCache
from waystation.queue.proxy.visitor import EdgeSession, Visitor
from waystation.queue.server.client import Client, Line
from waystation.queue.settings import Queue as QueueSettings
from waystation.queue.wire.handshake import ServerHandshake
from waystation.queue.wire.link import Body, Frame
from waystation.queue.wire.link_words import Spause, Sresume
from waystation.queue.wire.responses import Err, Response
from waystation.queue.wire.transmission import NOT_A_BATCH, Transmission

READ_AGAIN_BELOW: Final = PENDING_MAX // 4
STOP_READING_AT: Final = PENDING_MAX // 2
TICK_S: Final = 0.5


class Links(Protocol):
    def send(self, node_id: NodeId, stream: int, epoch: int, body: Body) -> None: ...

    def learned(self, slot_map: SlotMap) -> None: ...


class Maps(Protocol):
    async def read(self) -> SlotMap: ...


class Proxies(Protocol):
    """PRXY and PFWD: an edge passes commands on to other servers itself."""

    async def forward(self, client: Client, transmission: Transmission) -> Response: ...


class EdgeDriver:
    """`Works` for the block server, `Hears` for the links, `Outlet` for the edge."""

    def __init__(
        self,
        *,
        slot_map: SlotMap,
        maps: Maps,
        handshake: Callable[[SessionId, VersionRange], ServerHandshake],
        proxies: Proxies,
        refs: RefCache,
        settings: QueueSettings,
        tasks: Tasks,
        clock: Clock,
        chance: random.Random,
    ) -> None:
        self._maps = maps
        self._handshake = handshake
        self._proxies = proxies
        self._settings = settings
        self._tasks = tasks
        self._clock = clock
        self._links: Links | None = None
        self._reading: asyncio.Task[None] | None = None
        self._visitors: dict[int, Visitor] = {}  # by stream
        self.edge = Edge(self, slot_map, refs=refs, chance=chance)
        self._desk = ForwardedDesk(self.edge, clock)
        self.clients: dict[Client, None] = {}

    def use(self, links: Links) -> None:
        self._links = links
        links.learned(self.edge.slot_map)

    # For the block server

    def opened(self, line: Line, session_id: SessionId, versions: VersionRange) -> Client:
        session = EdgeSession(self._handshake(session_id, versions))
        out_blocks_max = self._settings.out_blocks_max
        return Visitor(line, session, out_blocks_max=out_blocks_max, mono=self._clock.mono())

    def received(self, client: Client, block: bytes) -> bool:
        visitor, session = _visitor(client)
        mono = visitor.active_at = self._clock.mono()
        guest = visitor.guest
        if guest is None:
            try:
                session.receive(block)
            except BadHelloError:
                return False
            agreed = session.agreement
            visitor.guest = guest = self.edge.opened(agreed.dialect, agreed.session_key)
            self._visitors[guest.stream] = visitor
            self.clients[visitor] = None
            return True
        items = session.items(block)
        if items is None:
            visitor.tell(NOT_A_BATCH.entity_id, Err(NOT_A_BATCH.fault))
            return True
        for _, transmission in self.edge.received(guest, items, mono):
            visitor.forwarding += 1
            self._tasks.spawn("forwarding", self._forward(visitor, transmission))
        self._throttle(visitor)
        return True

    def has_room(self, client: Client) -> None:
        visitor, _ = _visitor(client)
        if visitor.slow and not visitor.congested and visitor.guest is not None:
            visitor.slow = False
            self._tell_servers(visitor.guest, Sresume())

    def closed(self, client: Client) -> None:
        visitor, _ = _visitor(client)
        visitor.gone = True
        self.clients.pop(visitor, None)
        guest, visitor.guest = visitor.guest, None
        if guest is not None:
            self._visitors.pop(guest.stream, None)
            self._desk.left(visitor)
            if not guest.gone:
                self.edge.closed(guest)

    def _throttle(self, visitor: Visitor) -> None:
        guest = visitor.guest
        if guest is None:
            return
        under_way = len(guest.pending)
        many = visitor.forwarding >= self._settings.proxy_concurrency
        if not visitor.paused and (under_way >= STOP_READING_AT or many):
            visitor.paused = True
            visitor.line.pause()
        elif visitor.paused and under_way < READ_AGAIN_BELOW and not many:
            visitor.paused = False
            visitor.line.resume()

    async def _forward(self, visitor: Visitor, sent: Transmission) -> None:
        try:
            if self._desk.takes(sent):
                response = await self._desk.take_in(visitor, sent)
            else:
                response = await self._proxies.forward(visitor, sent)
            visitor.say(sent.corr_id, sent.entity_id, response)
        finally:
            visitor.forwarding -= 1
            self._throttle(visitor)

    # For the edge

    def send(self, node_id: NodeId, stream: int, body: Body) -> None:
        assert self._links is not None
        self._links.send(node_id, stream, self.edge.epoch, body)

    def answer(self, guest: Guest, item: bytes) -> None:
        visitor = self._visitors.get(guest.stream)
        if visitor is None:
            self._desk.answered(guest, item)
            return
        visitor.session.hand_on(item)
        visitor.line.touch()
        if visitor.congested and not visitor.slow:
            visitor.slow = True
            self._tell_servers(guest, Spause())
        if visitor.paused:
            self._throttle(visitor)

    def hang_up(self, guest: Guest) -> None:
        visitor = self._visitors.get(guest.stream)
        if visitor is None:
            self._desk.ended(guest)
        else:
            visitor.line.abort()

    def refresh(self) -> None:
        if self._reading is None or self._reading.done():
            self._reading = self._tasks.spawn("slot map", self.read_map())

    def _tell_servers(self, guest: Guest, body: Spause | Sresume) -> None:
        for node_id in guest.opened:
            if self.edge.is_up(node_id):
                self.send(node_id, guest.stream, body)

    # For the links

    def link_up(self, node_id: NodeId) -> None:
        self.edge.link_up(node_id)

    def link_down(self, node_id: NodeId) -> None:
        self.edge.link_down(node_id)

    def heard(self, node_id: NodeId, frame: Frame) -> None:
        self.edge.heard(node_id, frame, self._clock.mono())

    # The map and time

    async def read_map(self) -> None:
        try:
            slot_map = await self._maps.read()
        except UnavailableError:
            return  # what we know is what we serve by; the next reading may succeed
        if slot_map.epoch > self.edge.epoch and self._links is not None:
            self._links.learned(slot_map)
            self.edge.learned(slot_map)

    async def run(self, map_interval_s: float) -> None:
        read_at = self._clock.mono()
        while True:
            await asyncio.sleep(TICK_S)
            mono = self._clock.mono()
            self.edge.tick(mono)
            if mono - read_at >= map_interval_s:
                read_at = mono
                self.refresh()


def _visitor(client: Client) -> tuple[Visitor, EdgeSession]:
    assert isinstance(client, Visitor)
    session = client.session
    assert isinstance(session, EdgeSession)
    return client, session
