"""Edges of the simulated cluster: the production `Edge` and its links, and a shell for clients.

Clients are connected without TLS and blocks: what they say and hear are transmissions, as the edge
takes and gives them.
"""

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from waystation.base.errors import UnavailableError
from waystation.queue.cluster.slot_map import NodeId, SlotMap
from waystation.queue.model import SessionId
from waystation.queue.proxy.driver import LOOK_S, TICK_S
from waystation.queue.proxy.edge import Edge
from waystation.queue.proxy.guest import Guest
from waystation.queue.proxy.outlet import Budget
from waystation.queue.proxy.refs import RefCache
from waystation.queue.proxy.upstreams import Upstreams
from waystation.queue.wire.link import Body, Frame
from waystation.queue.wire.responses import Response, decode_response
from waystation.queue.wire.transmission import Dialect, decode_answer
from waystation.testing.edge_world_servers import LifeTasks
from waystation.testing.edge_world_wires import TLS, context_of

if TYPE_CHECKING:
    from waystation.testing.edge_world import EdgeWorld

VERSION = 18
REFS_MAX = 8  # so few that references are asked for again and again


class GoneError(Exception):
    """The connection is over."""


class Connection:
    """A client's, to one edge, until it is cut."""

    def __init__(self, world: "EdgeWorld", edge: "EdgeNode") -> None:
        self._world = world
        self._edge = edge
        self._life = edge.life
        self._there = self._back = 0.0  # arrivals in either direction keep their order
        self._waiting: dict[bytes, asyncio.Future[Response]] = {}
        self.dialect = Dialect(VERSION, SessionId(world.chance.randbytes(32)))
        self.events: asyncio.Queue[tuple[bytes, Response] | None] = asyncio.Queue()
        # Told of everything at the moment it is heard: what is read later may have come before.
        self.on_heard: Callable[[bytes, bytes, Response], None] | None = None
        self.is_open = True
        self.guest = edge.take_in(self)

    def say(self, items: list[tuple[bytes, bytes]]) -> list["asyncio.Future[Response]"]:
        """One block with transmissions, each with its correlation id."""
        loop = asyncio.get_running_loop()
        if not self.is_open:
            raise GoneError
        answers: list[asyncio.Future[Response]] = []
        for corr_id, _ in items:
            answers.append(loop.create_future())
            self._waiting[corr_id] = answers[-1]
        self._there = self._world.wires.behind(self._there)
        context = self._world.wires.contexts[self._edge.name]
        said = [item for _, item in items]
        loop.call_at(self._there, self._edge.heard_from, self, self._life, said, context=context)
        return answers

    def answer(self, item: bytes) -> None:
        """From the edge."""
        loop = asyncio.get_running_loop()
        self._back = self._world.wires.behind(self._back)
        loop.call_at(self._back, self._hear, item)

    def _hear(self, item: bytes) -> None:
        if not self.is_open:
            return
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

    def hang_up(self) -> None:
        """By the edge, or with it; the client hears of it behind what was said."""
        loop = asyncio.get_running_loop()
        self._back = self._world.wires.behind(self._back)
        loop.call_at(self._back, self.end)

    def end(self) -> None:
        if self.is_open:
            self.is_open = False
            for one in self._waiting.values():
                if not one.done():
                    one.set_exception(GoneError())
                    one.exception()  # whoever waited has heard; nobody need have
            self._waiting.clear()
            self.events.put_nowait(None)

    def leave(self) -> None:
        """By the client."""
        if self.is_open:
            self.end()
            loop = asyncio.get_running_loop()
            context = self._world.wires.contexts[self._edge.name]
            at = self._world.wires.behind(self._there)
            loop.call_at(at, self._edge.left, self, self._life, context=context)


class EdgeNode:
    """`Outlet` of an edge, `Hears` of its links. A life's memory is its own."""

    def __init__(self, world: "EdgeWorld", name: str) -> None:
        self._world = world
        self.name = name
        self.life = 0
        self.edge: Edge | None = None
        self._links: Upstreams | None = None
        self._tasks: LifeTasks | None = None
        self._reading = False
        self._connections: dict[int, Connection] = {}
        world.wires.contexts[name] = context_of(name)

    @property
    def is_up(self) -> bool:
        return self.edge is not None

    def start(self) -> None:
        if self._tasks is not None and not self._tasks.is_dead:
            return  # it is starting, and cannot read the map yet: one life has one edge
        tasks = self._tasks = LifeTasks(self._world.task_failed)
        self._world.wires.contexts[self.name].run(tasks.spawn, "boot", self._boot(tasks))

    async def _boot(self, tasks: LifeTasks) -> None:
        world = self._world
        slot_map = await world.patiently(world.map_for(self.name).read)
        self._links = links = Upstreams(
            self,
            tls=lambda: TLS,
            tasks=tasks,
            dedicated_max=1000 if world.upstream_mode == "dedicated" else 0,
        )
        self.edge = Edge(
            self,
            slot_map,
            refs=RefCache(REFS_MAX),
            chance=random.Random(world.chance.getrandbits(64)),
            asks_first=world.id_mode == "refs",
        )
        links.learned(slot_map)
        self._reading = False
        tasks.spawn("time", self._run())

    def kill(self) -> None:
        self.life += 1
        self.edge = None
        connections, self._connections = self._connections, {}
        for one in connections.values():
            one.hang_up()
        self._world.wires.died(self.name, vanished=False)
        if self._tasks is not None:
            self._tasks.kill()

    async def _run(self) -> None:
        """As `EdgeDriver.run` does."""
        world = self._world
        read_at = ticked_at = world.clock.mono()
        while True:
            await asyncio.sleep(LOOK_S)
            mono = world.clock.mono()
            edge = self.edge
            assert edge is not None
            if mono - ticked_at >= TICK_S:
                ticked_at = mono
                edge.tick(mono)
            if edge.waits or mono - read_at >= world.map_interval_s:
                read_at = mono
                self.refresh()

    # Clients

    def take_in(self, connection: Connection) -> Guest:
        assert self.edge is not None
        guest = self.edge.opened(connection.dialect, None)
        self._connections[guest.stream] = connection
        return guest

    def heard_from(self, connection: Connection, life: int, items: list[bytes]) -> None:
        if self.edge is not None and self.life == life and not connection.guest.gone:
            self.edge.received(connection.guest, items, self._world.clock.mono())

    def left(self, connection: Connection, life: int) -> None:
        if self.edge is not None and self.life == life and not connection.guest.gone:
            self._connections.pop(connection.guest.stream, None)
            self.edge.closed(connection.guest)

    # `Outlet`

    def send(self, node_id: NodeId, stream: int, body: Body) -> None:
        if self.edge is not None and self._links is not None:
            self._links.send(node_id, stream, self.edge.epoch, body)

    def answer(self, guest: Guest, item: bytes) -> None:
        connection = self._connections.get(guest.stream)
        if connection is not None:
            connection.answer(item)

    def hang_up(self, guest: Guest) -> None:
        connection = self._connections.pop(guest.stream, None)
        if connection is not None:
            connection.hang_up()

    def refresh(self) -> None:
        if not self._reading and self._tasks is not None:
            self._reading = True
            self._tasks.spawn("slot map", self._read())

    async def _read(self) -> None:
        try:
            slot_map = await self._world.map_for(self.name).read()
        except UnavailableError:
            return
        finally:
            self._reading = False
        self._learned(slot_map)

    def _learned(self, slot_map: SlotMap) -> None:
        edge, links = self.edge, self._links
        if edge is not None and links is not None and slot_map.epoch > edge.epoch:
            links.learned(slot_map)
            edge.learned(slot_map)

    def spent(self, guest: Guest, budget: Budget) -> None:
        """Nobody is slowed here."""

    def after_a_hop(self, then: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(0.005, then)

    # `Hears`

    def link_up(self, node_id: NodeId) -> None:
        if self.edge is not None:
            self.edge.link_up(node_id)

    def link_down(self, node_id: NodeId) -> None:
        if self.edge is not None:
            self.edge.link_down(node_id)

    def link_pressed(self, node_id: NodeId, *, is_pressed: bool) -> None:
        """Links of this world take everything."""

    def stream_down(self, node_id: NodeId, stream: int) -> None:
        if self.edge is not None:
            self.edge.stream_down(node_id, stream)

    def stream_pressed(self, node_id: NodeId, stream: int, *, is_pressed: bool) -> None:
        """See `link_pressed`."""

    def heard(self, node_id: NodeId, frame: Frame) -> None:
        if self.edge is not None:
            self.edge.heard(node_id, frame, self._world.clock.mono())
