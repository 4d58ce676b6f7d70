"""The driver of an edge: connects clients, links and the core `Edge`.

Rule 1: a client is not read while it has too many commands in flight, while it does not read its
        answers, and while a link of its commands is congested. For a client that does not read,
        servers get `SPAUSE` as well, so that it delays no other client. Links are always read.
Rule 2: the map is read when a server reports a newer one, and every `map_interval_s`; one read at a
        time.
Rule 3: a client that used up a budget (queues created, authorisations refused) is read slowly from
        then on; its pending answers are not delayed.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Final, Protocol

from waystation.base.address_limit import UNKNOWN
from waystation.base.clock import Clock
from waystation.base.errors import UnavailableError
from waystation.base.limits import BucketTable, TokenBucket
from waystation.base.tasks import Tasks
from waystation.queue.cluster.slot_map import NodeId, SlotMap
from waystation.queue.edge.client_connection import EdgeClient, EdgeSession
from waystation.queue.edge.client_session import ClientSession
from waystation.queue.edge.edge import PENDING_MAX, Edge
from waystation.queue.edge.effects import Budget
from waystation.queue.edge.forwarded_commands import ForwardedCommands
from waystation.queue.edge.observer import EdgeObserver
from waystation.queue.edge.refs import RefCache
from waystation.queue.errors import BadHelloError
from waystation.queue.model import SessionId, VersionRange
from waystation.queue.server.client import Client, Line
from waystation.queue.settings import Queue as QueueSettings
from waystation.queue.wire.block import BLOCK_BYTES
from waystation.queue.wire.handshake import ServerHandshake
from waystation.queue.wire.link import Body, Frame
from waystation.queue.wire.link_messages import Spause, Sresume
from waystation.queue.wire.responses import Err, Response
from waystation.queue.wire.transmission import NOT_A_BATCH, Transmission

READ_AGAIN_BELOW: Final = PENDING_MAX // 4
STOP_READING_AT: Final = PENDING_MAX // 2
STOP_READING_BYTES: Final = 64 * BLOCK_BYTES  # of commands in flight
TICK_S: Final = 0.5
SLOWED_S_MAX: Final = 5.0
ORIGINS_MAX: Final = 100_000  # addresses whose creations are counted
POLL_S: Final = 0.05  # how often the map is read while something waits for a newer one


class Links(Protocol):
    @property
    def hop_s(self) -> float: ...

    def send(self, node_id: NodeId, stream: int, epoch: int, body: Body) -> None: ...

    def learned(self, slot_map: SlotMap) -> None: ...


class Maps(Protocol):
    async def read(self) -> SlotMap: ...


class Proxies(Protocol):
    """PRXY and PFWD: an edge forwards commands to other servers itself."""

    async def forward(self, client: Client, transmission: Transmission) -> Response: ...


class EdgeDriver:
    """`BlockHandler` for the block server, `LinkEvents` for the links, `Effects` for the edge."""

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
        self._connections: dict[int, EdgeClient] = {}  # by stream
        self._congested_servers: set[NodeId] = set()  # servers with a congested link
        self._waiting_for_link: dict[EdgeClient, None] = {}  # clients that wait for those links
        self.edge = Edge(
            self, slot_map, refs=refs, chance=chance, asks_first=asks_first, observer=observer
        )
        self._forwarded = ForwardedCommands(self.edge, clock)
        self.clients: dict[Client, None] = {}

    def use(self, links: Links) -> None:
        self._links = links
        links.learned(self.edge.slot_map)

    # Called by the block server

    def opened(self, line: Line, session_id: SessionId, versions: VersionRange) -> Client:
        session = EdgeSession(self._handshake(session_id, versions))
        out_blocks_max = self._settings.out_blocks_max
        return EdgeClient(line, session, out_blocks_max=out_blocks_max, mono=self._clock.mono())

    def received(self, client: Client, block: bytes) -> bool:
        connection, session = _connection(client)
        mono = connection.active_at = self._clock.mono()
        client_session = connection.client_session
        if client_session is None:
            try:
                session.receive(block)
            except BadHelloError:
                return False
            agreed = session.agreement
            connection.client_session = client_session = self.edge.opened(
                agreed.dialect, agreed.session_key
            )
            self._connections[client_session.stream] = connection
            self.clients[connection] = None
            return True
        items = session.items(block)
        if items is None:
            connection.tell(NOT_A_BATCH.entity_id, Err(NOT_A_BATCH.fault))
            return True
        for _, transmission in self.edge.received(client_session, items, mono):
            connection.forwarding += 1
            self._tasks.spawn("forwarding", self._forward(connection, transmission))
        self._throttle(connection)
        return True

    def has_room(self, client: Client) -> None:
        connection, _ = _connection(client)
        if connection.congested or connection.client_session is None:
            return
        if connection.slow:
            connection.slow = False
            self._tell_servers(connection.client_session, Sresume())
        if connection.paused:
            self._throttle(connection)

    def closed(self, client: Client) -> None:
        connection, _ = _connection(client)
        connection.gone = True
        self.clients.pop(connection, None)
        self._waiting_for_link.pop(connection, None)
        client_session, connection.client_session = connection.client_session, None
        if client_session is not None:
            self._connections.pop(client_session.stream, None)
            self._forwarded.left(connection)
            if not client_session.gone:
                self.edge.closed(client_session)

    def _throttle(self, connection: EdgeClient) -> None:
        client_session = connection.client_session
        if client_session is None:
            return
        if not connection.paused:
            if self._has_enough(connection, client_session, STOP_READING_AT, STOP_READING_BYTES):
                connection.paused = True
                connection.line.pause()
        elif not self._has_enough(
            connection, client_session, READ_AGAIN_BELOW, STOP_READING_BYTES // 2
        ):
            connection.paused = False
            connection.line.resume()

    def _has_enough(
        self,
        connection: EdgeClient,
        client_session: ClientSession,
        commands: int,
        commands_bytes: int,
    ) -> bool:
        if connection.congested or connection.link_congested or connection.slowed:
            return True
        if self._congested_servers and self._congested_servers & {
            one.node_id for one in client_session.pending.values()
        }:
            self._waiting_for_link[connection] = None
            return True
        return (
            len(client_session.pending) >= commands
            or client_session.pending_bytes >= commands_bytes
            or connection.forwarding >= self._settings.proxy_concurrency
        )

    async def _forward(self, connection: EdgeClient, sent: Transmission) -> None:
        try:
            if self._forwarded.takes(sent):
                response = await self._forwarded.take_in(connection, sent)
            else:
                response = await self._proxies.forward(connection, sent)
            connection.say(sent.corr_id, sent.entity_id, response)
        finally:
            connection.forwarding -= 1
            self._throttle(connection)

    # Called by the edge core

    def send(self, node_id: NodeId, stream: int, body: Body) -> None:
        assert self._links is not None
        self._links.send(node_id, stream, self.edge.epoch, body)

    def answer(self, session: ClientSession, item: bytes) -> None:
        connection = self._connections.get(session.stream)
        if connection is None:
            self._forwarded.answered(session, item)
            return
        connection.session.hand_on(item)
        connection.line.touch()
        if connection.congested and not connection.slow:
            connection.slow = True
            self._tell_servers(session, Spause())
        if connection.paused or connection.slow:
            self._throttle(connection)

    def disconnect(self, session: ClientSession) -> None:
        connection = self._connections.get(session.stream)
        if connection is None:
            self._forwarded.ended(session)
        else:
            connection.line.abort()

    def refresh(self) -> None:
        if self._reading is None or self._reading.done():
            self._reading = self._tasks.spawn("slot map", self.read_map())

    def spent(self, session: ClientSession, budget: Budget) -> None:
        """Rule 3."""
        connection = self._connections.get(session.stream)
        if connection is None:
            return
        wait_s = max(self._own_wait_s(connection, budget), self._origins_wait_s(connection, budget))
        if wait_s and not connection.slowed:
            connection.slowed = True
            self._throttle(connection)
            loop = asyncio.get_running_loop()
            loop.call_later(min(wait_s, SLOWED_S_MAX), self._read_again, connection)

    def _own_wait_s(self, connection: EdgeClient, budget: Budget) -> float:
        limit = self._budgets[budget]
        if not limit:
            return 0.0
        if connection.buckets is None:
            connection.buckets = {}
        bucket = connection.buckets.setdefault(budget, TokenBucket(limit / 60, limit))
        return bucket.take(self._clock.mono())

    def _origins_wait_s(self, connection: EdgeClient, budget: Budget) -> float:
        origin = connection.line.origin
        if self._by_origin is None or budget is not Budget.CREATIONS or origin == UNKNOWN:
            return 0.0
        return self._by_origin.take(origin, self._clock.mono())

    def _read_again(self, connection: EdgeClient) -> None:
        connection.slowed = False
        if not connection.gone:
            self._throttle(connection)

    def after_a_hop(self, then: Callable[[], None]) -> None:
        assert self._links is not None
        asyncio.get_running_loop().call_later(self._links.hop_s, then)

    def _tell_servers(self, client_session: ClientSession, body: Spause | Sresume) -> None:
        for node_id in client_session.opened:
            if self.edge.is_up(node_id):
                self.send(node_id, client_session.stream, body)

    # Called by the links

    def link_up(self, node_id: NodeId) -> None:
        self.edge.link_up(node_id)

    def link_down(self, node_id: NodeId) -> None:
        self.edge.link_down(node_id)
        self.link_congested(node_id, is_congested=False)

    def link_congested(self, node_id: NodeId, *, is_congested: bool) -> None:
        if is_congested:
            self._congested_servers.add(node_id)
            return
        self._congested_servers.discard(node_id)
        waiting, self._waiting_for_link = self._waiting_for_link, {}
        for connection in waiting:
            self._throttle(connection)

    def stream_down(self, node_id: NodeId, stream: int) -> None:
        self.stream_congested(node_id, stream, is_congested=False)
        self.edge.stream_down(node_id, stream)

    def stream_congested(self, node_id: NodeId, stream: int, *, is_congested: bool) -> None:
        connection = self._connections.get(stream)
        if connection is not None:
            connection.link_congested = is_congested
            self._throttle(connection)

    def frame_arrived(self, node_id: NodeId, frame: Frame) -> None:
        self.edge.frame_arrived(node_id, frame, self._clock.mono())

    # The map and time

    async def read_map(self) -> None:
        try:
            slot_map = await self._maps.read()
        except UnavailableError:
            return  # the known map stays in use until a later read succeeds
        if slot_map.epoch > self.edge.epoch and self._links is not None:
            self._links.learned(slot_map)
            self.edge.learned(slot_map)

    async def run(self, map_interval_s: float) -> None:
        read_at = ticked_at = self._clock.mono()
        while True:
            await asyncio.sleep(POLL_S)
            mono = self._clock.mono()
            if mono - ticked_at >= TICK_S:
                ticked_at = mono
                self.edge.tick(mono)
            if self.edge.waits or mono - read_at >= map_interval_s:
                read_at = mono
                self.refresh()


def _connection(client: Client) -> tuple[EdgeClient, EdgeSession]:
    assert isinstance(client, EdgeClient)
    session = client.session
    assert isinstance(session, EdgeSession)
    return client, session
