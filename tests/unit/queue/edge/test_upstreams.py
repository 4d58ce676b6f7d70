"""Links to the servers of a map, over real TLS on loopback."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.waiting import until
from waystation.base.clock import SystemClock
from waystation.base.tasks import Tasks
from waystation.net.loop import NetLoop, bound_socket
from waystation.queue.cluster.link_connection import LinkConnection, Links
from waystation.queue.cluster.membership import Membership, enrol, link_context, new_invitation
from waystation.queue.cluster.slot_map import NOBODY, Node, NodeId, SlotMap
from waystation.queue.edge import upstreams
from waystation.queue.edge.upstreams import Upstreams
from waystation.queue.model import SessionId
from waystation.queue.wire.link import REQUESTS_FROM, ClientTransmission, Frame
from waystation.queue.wire.link_messages import Cping, Cpong, Sclose, Sopen

ONE = NodeId(1)


class Storage:
    """A storage server that answers pings."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._net = NetLoop(clock=SystemClock())
        self._links = Links(self._net)
        self.lines: list[LinkConnection] = []
        self.frames: list[tuple[LinkConnection, Frame]] = []
        self.is_mute = False
        self.port = 0

    async def start(self) -> None:
        sock = bound_socket("127.0.0.1", self.port)
        self.port = sock.getsockname()[1]
        self._links.listen(sock, self, link_context(self._membership, server_side=True))

    def ready(self, line: LinkConnection) -> None:
        self.lines.append(line)

    def arrived(self, line: LinkConnection, frame: Frame) -> None:
        self.frames.append((line, frame))
        if isinstance(frame.body, Cping) and not self.is_mute:
            line.send_frame(frame.stream, 7, Cpong(7))

    def lost(self, line: LinkConnection) -> None:
        if line in self.lines:
            self.lines.remove(line)

    def congested(self, line: LinkConnection, *, is_congested: bool) -> None: ...

    async def stop(self) -> None:
        self._links.stop_accepting()
        for line in list(self.lines):
            line.abort()
        await until(lambda: not self.lines)

    def close(self) -> None:
        self._net.close()


class World:
    def __init__(self, edge: Membership, *, dedicated_max: int = 0) -> None:
        self.up: list[NodeId] = []
        self.down: list[NodeId] = []
        self.heard_frames: list[tuple[NodeId, Frame]] = []
        self.congestion: list[bool] = []
        self.streams_down: list[tuple[NodeId, int]] = []
        self.tasks = Tasks(lambda name, error: pytest.fail(f"{name}: {error!r}"))
        self._net = NetLoop(clock=SystemClock())
        self.links = Upstreams(
            self,
            links=Links(self._net),
            tls=lambda: link_context(edge, server_side=False),
            tasks=self.tasks,
            dedicated_max=dedicated_max,
        )

    def link_up(self, node_id: NodeId) -> None:
        self.up.append(node_id)

    def link_down(self, node_id: NodeId) -> None:
        self.down.append(node_id)

    def frame_arrived(self, node_id: NodeId, frame: Frame) -> None:
        if frame.stream < REQUESTS_FROM:  # those from there on are the links' own
            self.heard_frames.append((node_id, frame))

    def stream_down(self, node_id: NodeId, stream: int) -> None:
        self.streams_down.append((node_id, stream))

    def link_congested(self, node_id: NodeId, *, is_congested: bool) -> None:
        self.congestion.append(is_congested)

    def stream_congested(self, node_id: NodeId, stream: int, *, is_congested: bool) -> None: ...

    def learn(self, port: int | None, *, epoch: int = 1, node_id: NodeId = ONE) -> None:
        nodes: dict[NodeId, Node] = {}
        if port is not None:
            nodes[node_id] = Node(
                node_id=node_id, host="127.0.0.1", port=port, fingerprint=bytes(32)
            )
        self.links.learned(SlotMap(epoch=epoch, nodes=nodes))

    async def close(self) -> None:
        self.links.close()
        await self.tasks.close()
        self._net.close()


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[tuple[Storage, Membership]]:
    invitation = new_invitation("memory:")
    edge = enrol(tmp_path / "edge", invitation, node_id=NOBODY)
    server = Storage(enrol(tmp_path / "one", invitation, node_id=ONE))
    await server.start()
    yield server, edge
    await server.stop()
    server.close()


async def test_a_link_is_opened_used_and_opened_again(
    storage: tuple[Storage, Membership], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, edge = storage
    monkeypatch.setattr(upstreams, "BACKOFF_MAX_S", 0.2)
    world = World(edge)
    try:
        world.learn(server.port)
        assert await world.links.settle(20.0)
        world.links.send(ONE, 5, 7, Cping())
        await until(lambda: bool(world.heard_frames))
        assert world.heard_frames == [(ONE, Frame(5, 7, Cpong(7)))]

        await server.stop()
        await until(lambda: world.down == [ONE])
        assert len(world.links) == 0
        world.links.send(ONE, 5, 7, Cping())  # goes nowhere, and harms nobody
        await server.start()

        assert await world.links.settle(20.0)
        assert world.up == [ONE, ONE]
    finally:
        await world.close()


async def test_a_server_that_left_the_map_is_let_go(
    storage: tuple[Storage, Membership],
) -> None:
    server, edge = storage
    world = World(edge)
    try:
        world.learn(server.port)
        assert await world.links.settle(20.0)
        world.learn(server.port, epoch=2)  # nothing changed for it
        assert len(world.links) == 1

        world.learn(None, epoch=3)

        await until(lambda: not server.lines)
        assert len(world.links) == 0
    finally:
        await world.close()


async def test_a_link_whose_certificate_has_another_name_is_closed(
    storage: tuple[Storage, Membership],
) -> None:
    server, edge = storage
    world = World(edge)
    try:
        world.learn(server.port, node_id=NodeId(2))

        assert not await world.links.settle(0.5)
        assert world.up == []
    finally:
        await world.close()


async def test_a_server_that_answers_nothing_is_away(
    storage: tuple[Storage, Membership], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that stands still keeps its sockets open."""
    server, edge = storage
    monkeypatch.setattr(upstreams, "PING_S", 0.05)
    monkeypatch.setattr(upstreams, "SILENCE_S", 1.0)
    world = World(edge)
    try:
        world.learn(server.port)
        await until(lambda: world.links.hop_s > 0)
        assert world.down == []

        server.is_mute = True

        await until(lambda: ONE in world.down)
    finally:
        await world.close()


SOPEN = Sopen(18, SessionId(bytes(32)), None)


async def test_each_client_may_have_links_of_its_own(storage: tuple[Storage, Membership]) -> None:
    """Q-128: opened with the first word, in order, closed with the last; requests are shared."""
    server, edge = storage
    world = World(edge, dedicated_max=2)
    try:
        world.learn(server.port)
        assert await world.links.settle(20.0)
        for stream in (1, 2, 3):
            world.links.send(ONE, stream, 7, SOPEN)
            world.links.send(ONE, stream, 7, Cping())
        world.links.send(ONE, REQUESTS_FROM, 7, Cping())
        await until(lambda: len(world.heard_frames) == 3)

        assert len(world.links.own) == 2  # the third shares
        lines = {
            stream: {line for line, frame in server.frames if frame.stream == stream}
            for stream in (1, 2, 3, REQUESTS_FROM)
        }
        assert len(server.lines) == 3
        assert lines[3] == lines[REQUESTS_FROM]
        assert lines[1] != lines[2] != lines[3]
        world.links.send(ONE, 1, 7, Sclose())
        await until(lambda: len(server.lines) == 2)
        assert len(world.links.own) == 1
        assert world.streams_down == []
    finally:
        await world.close()


async def test_a_clients_own_link_that_breaks_concerns_that_client(
    storage: tuple[Storage, Membership],
) -> None:
    server, edge = storage
    world = World(edge, dedicated_max=10)
    try:
        world.learn(server.port)
        assert await world.links.settle(20.0)
        for stream in (1, 2):
            world.links.send(ONE, stream, 7, SOPEN)
        await until(lambda: len(server.lines) == 3)
        await until(lambda: sum(frame.body == SOPEN for _, frame in server.frames) == 2)
        next(line for line, frame in server.frames if frame.stream == 1).abort()
        await until(lambda: world.streams_down == [(ONE, 1)])
        assert world.down == []
        assert len(world.links.own) == 1

        await server.stop()  # a server without its shared link is away for everybody
        await until(lambda: world.down == [ONE])

        assert len(world.links.own) == 0
    finally:
        await world.close()


async def test_congestion_of_a_link_is_reported(
    storage: tuple[Storage, Membership],
) -> None:
    """Whoever writes is told, and told again when there is room; nothing gets lost in between."""
    server, edge = storage
    world = World(edge)
    count = 2000
    try:
        world.learn(server.port)
        assert await world.links.settle(20.0)
        server.lines[0].pause()
        for _ in range(count):
            world.links.send(ONE, 1, 7, ClientTransmission(bytes(16_000)))
            if world.congestion:
                break
            await asyncio.sleep(0)
        assert world.congestion == [True]

        server.lines[0].resume()

        await until(lambda: world.congestion == [True, False])
        world.links.send(ONE, 2, 7, Cping())
        await until(lambda: bool(world.heard_frames))
        assert world.down == []
    finally:
        await world.close()
