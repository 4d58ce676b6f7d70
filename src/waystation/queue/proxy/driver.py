"""The edge's shell: clients on one side, links on the other, and `Edge`, which decides, between.

Rule 1: a client is not read while it has much under way, while it does not read its answers, and
        while a link that its commands go over takes no more. One that does not read is told to
        the servers as well (`SPAUSE`), so that nobody else waits for it. Links are always read.
Rule 2: the map is read again when somebody tells of a newer one, and now and then anyway; one read
        at a time.
Rule 3: a client that has spent a budget (queues made, authorisations refused) is read slowly from
        then on; the answers that it is owed come as they do.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Final, Protocol

from waystation.base.clock import Clock
from waystation.base.errors import UnavailableError
from waystation.base.limits import BucketTable, TokenBucket
from waystation.base.origins import UNKNOWN
from waystation.base.tasks import Tasks
from waystation.queue.cluster.slot_map import NodeId, SlotMap
from waystation.queue.errors import BadHelloError
from waystation.queue.model import SessionId, VersionRange
from waystation.queue.proxy.edge import PENDING_MAX, Edge
from waystation.queue.proxy.forwarded import ForwardedDesk
from waystation.queue.proxy.guest import Guest
from waystation.queue.proxy.observer import EdgeObserver
from waystation.queue.proxy.outlet import Budget
from waystation.queue.proxy.refs import RefCache
from waystation.queue.proxy.visitor import EdgeSession, Visitor
from waystation.queue.server.client import Client, Line
from waystation.queue.settings import Queue as QueueSettings
from waystation.queue.wire.block import BLOCK_BYTES
from waystation.queue.wire.handshake import ServerHandshake
from waystation.queue.wire.link import Body, Frame
from waystation.queue.wire.link_words import Spause, Sresume
from waystation.queue.wire.responses import Err, Response
from waystation.queue.wire.transmission import NOT_A_BATCH, Transmission

READ_AGAIN_BELOW: Final = PENDING_MAX // 4
STOP_READING_AT: Final = PENDING_MAX // 2
STOP_READING_BYTES: Final = 64 * BLOCK_BYTES  # of commands under way
TICK_S: Final = 0.5
SLOWED_S_MAX: Final = 5.0
ORIGINS_MAX: Final = 100_000  # whose creations are counted
LOOK_S: Final = 0.05  # how often the map is read while something waits for a newer one


class Links(Protocol):
    @property
    def hop_s(self) -> float: ...

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
        asks_first: bool = False,
        new_per_min: int = 0,
        new_per_address_per_min: int = 0,
        observer: EdgeObserver | None = None,
    ) -> None:
        self._budgets = {
            Budget.CREATIONS: new_per_min,
            Budget.REFUSALS: settings.auth_errors_per_min,
        }
        self._by_origin: BucketTable[str] | None = None
        if new_per_address_per_min:
            rate, burst = new_per_address_per_min / 60, new_per_address_per_min
            self._by_origin = BucketTable(rate, burst, keys_max=ORIGINS_MAX)
        self._maps = maps
        self._handshake = handshake
        self._proxies = proxies
        self._settings = settings
        self._tasks = tasks
        self._clock = clock
        self._links: Links | None = None
        self._reading: asyncio.Task[None] | None = None
        self._visitors: dict[int, Visitor] = {}  # by stream
        self._pressed: set[NodeId] = set()  # servers whose link takes no more at the moment
        self._pressing: dict[Visitor, None] = {}  # who waits for that
        self.edge = Edge(
            self, slot_map, refs=refs, chance=chance, asks_first=asks_first, observer=observer
        )
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
        if visitor.congested or visitor.guest is None:
            return
        if visitor.slow:
            visitor.slow = False
            self._tell_servers(visitor.guest, Sresume())
        if visitor.paused:
            self._throttle(visitor)

    def closed(self, client: Client) -> None:
        visitor, _ = _visitor(client)
        visitor.gone = True
        self.clients.pop(visitor, None)
        self._pressing.pop(visitor, None)
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
        if not visitor.paused:
            if self._has_enough(visitor, guest, STOP_READING_AT, STOP_READING_BYTES):
                visitor.paused = True
                visitor.line.pause()
        elif not self._has_enough(visitor, guest, READ_AGAIN_BELOW, STOP_READING_BYTES // 2):
            visitor.paused = False
            visitor.line.resume()

    def _has_enough(
        self, visitor: Visitor, guest: Guest, commands: int, commands_bytes: int
    ) -> bool:
        if visitor.congested or visitor.pressed or visitor.slowed:
            return True
        if self._pressed and self._pressed & {one.node_id for one in guest.pending.values()}:
            self._pressing[visitor] = None
            return True
        return (
            len(guest.pending) >= commands
            or guest.pending_bytes >= commands_bytes
            or visitor.forwarding >= self._settings.proxy_concurrency
        )

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
        if visitor.paused or visitor.slow:
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

    def spent(self, guest: Guest, budget: Budget) -> None:
        """Rule 3."""
        visitor = self._visitors.get(guest.stream)
        if visitor is None:
            return
        wait_s = max(self._own_wait_s(visitor, budget), self._origins_wait_s(visitor, budget))
        if wait_s and not visitor.slowed:
            visitor.slowed = True
            self._throttle(visitor)
            loop = asyncio.get_running_loop()
            loop.call_later(min(wait_s, SLOWED_S_MAX), self._read_again, visitor)

    def _own_wait_s(self, visitor: Visitor, budget: Budget) -> float:
        limit = self._budgets[budget]
        if not limit:
            return 0.0
        if visitor.buckets is None:
            visitor.buckets = {}
        bucket = visitor.buckets.setdefault(budget, TokenBucket(limit / 60, limit))
        return bucket.take(self._clock.mono())

    def _origins_wait_s(self, visitor: Visitor, budget: Budget) -> float:
        origin = visitor.line.origin
        if self._by_origin is None or budget is not Budget.CREATIONS or origin == UNKNOWN:
            return 0.0
        return self._by_origin.take(origin, self._clock.mono())

    def _read_again(self, visitor: Visitor) -> None:
        visitor.slowed = False
        if not visitor.gone:
            self._throttle(visitor)

    def after_a_hop(self, then: Callable[[], None]) -> None:
        assert self._links is not None
        asyncio.get_running_loop().call_later(self._links.hop_s, then)

    def _tell_servers(self, guest: Guest, body: Spause | Sresume) -> None:
        for node_id in guest.opened:
            if self.edge.is_up(node_id):
                self.send(node_id, guest.stream, body)

    # For the links

    def link_up(self, node_id: NodeId) -> None:
        self.edge.link_up(node_id)

    def link_down(self, node_id: NodeId) -> None:
        self.edge.link_down(node_id)
        self.link_pressed(node_id, is_pressed=False)

    def link_pressed(self, node_id: NodeId, *, is_pressed: bool) -> None:
        if is_pressed:
            self._pressed.add(node_id)
            return
        self._pressed.discard(node_id)
        waiting, self._pressing = self._pressing, {}
        for visitor in waiting:
            self._throttle(visitor)

    def stream_down(self, node_id: NodeId, stream: int) -> None:
        self.stream_pressed(node_id, stream, is_pressed=False)
        self.edge.stream_down(node_id, stream)

    def stream_pressed(self, node_id: NodeId, stream: int, *, is_pressed: bool) -> None:
        visitor = self._visitors.get(stream)
        if visitor is not None:
            visitor.pressed = is_pressed
            self._throttle(visitor)

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
        read_at = ticked_at = self._clock.mono()
        while True:
            await asyncio.sleep(LOOK_S)
            mono = self._clock.mono()
            if mono - ticked_at >= TICK_S:
                ticked_at = mono
                self.edge.tick(mono)
            if self.edge.waits or mono - read_at >= map_interval_s:
                read_at = mono
                self.refresh()


def _visitor(client: Client) -> tuple[Visitor, EdgeSession]:
    assert isinstance(client, Visitor)
    session = client.session
    assert isinstance(session, EdgeSession)
    return client, session
