import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.sim.push.websocket_client import Wire, take_frame
from tests.sim.sockets import Luck, SimNetLoop, SimNetwork
from waystation.net.websocket.connection import Ending, Handler, WebSocket
from waystation.net.websocket.frames import close_frame, ping_frame, text_frame
from waystation.net.websocket.limits import WebSocketLimits
from waystation.net.websocket.server import WebSocketServer
from waystation.net.websocket.upgrade import Upgrade
from waystation.testing.loop import SimClock, run_sim


class Recorder:
    """A driver and a user agent, both of which only write down."""

    connection: WebSocket

    def __init__(self) -> None:
        self.seen: list[object] = []

    # the driver's side
    def open(self, connection: WebSocket, upgrade: Upgrade) -> Handler:
        self.connection = connection
        return self

    def text(self, connection: WebSocket, text: bytes) -> None:
        self.seen.append(text)

    def binary(self, connection: WebSocket) -> None: ...

    def pinged(self, connection: WebSocket, payload: bytes) -> None: ...

    def ponged(self, connection: WebSocket) -> None:
        self.seen.append("pong")

    def broken(self, connection: WebSocket, code: int, reason: str) -> None:
        self.seen.append((code, reason))

    def closed(self, connection: WebSocket) -> None:
        self.seen.append(connection.ending)

    # the user agent's side
    def heard(self, wire: Wire, opcode: int, payload: bytes) -> None:
        self.seen.append((opcode, payload))

    def lost(self, wire: Wire, code: int) -> None:
        self.seen.append(("lost", code))


class World:
    def __init__(self, clock: SimClock, window_bytes: int) -> None:
        network = SimNetwork(Luck(random.Random(1), window_bytes=window_bytes))
        self.net = SimNetLoop(network.host("node"), clock=clock)
        self.driver, self.peer = Recorder(), Recorder()
        server = WebSocketServer(
            self.net,
            make_handler=self.driver.open,
            http=lambda _request: None,
            clock=clock,
            limits=WebSocketLimits(connections_max=1, send_high_bytes=1000, send_bytes_max=4000),
        )
        server.listen(self.net.host.listening(80))
        self.server = server
        self._client = network.host("client")

    async def connect(self) -> Wire:
        wire = await Wire.dial(self.peer, self._client, ("node", 80))
        await asyncio.sleep(5)
        return wire


def run(test: Callable[[World], Coroutine[Any, Any, None]], window_bytes: int = 65_536) -> World:
    worlds: list[World] = []
    clock = SimClock()

    async def main() -> None:
        worlds.append(World(clock, window_bytes))
        await test(worlds[0])

    run_sim(main(), clock)
    return worlds[0]


def test_frames_of_every_length_are_read_back() -> None:
    payloads = [b"", b"a", b"b" * 125, b"c" * 126, b"d" * 70_000]
    data = bytearray(b"".join(map(text_frame, payloads)) + ping_frame() + close_frame(1011, "SM"))
    frames: list[tuple[int, bytes]] = []
    while (frame := take_frame(data)) is not None:
        frames.append(frame)

    assert [payload for opcode, payload in frames if opcode == 1] == payloads
    assert [opcode for opcode, _ in frames[-2:]] == [9, 8]
    assert not data


@pytest.mark.parametrize("size", [0, 1, 2, 3, 9, 200])
def test_half_a_frame_waits_for_the_rest(size: int) -> None:
    data = bytearray(text_frame(b"x" * 300)[:size])

    assert take_frame(data) is None
    assert len(data) == size


@pytest.mark.parametrize("window_bytes", [200, 65_536])
def test_nothing_overtakes_anything_on_one_connection(window_bytes: int) -> None:
    async def test(world: World) -> None:
        wire = await Wire.dial(world.peer, world._client, ("node", 80))
        wire.say(b"before the server has answered")
        await asyncio.sleep(20)
        for n in range(40):
            wire.say(b"%d" % n)
            world.driver.connection.send(text_frame(b"%d" % n))
            await asyncio.sleep(0)
        await asyncio.sleep(60)

    world = run(test, window_bytes)

    assert world.driver.seen == [
        b"before the server has answered",
        *(b"%d" % n for n in range(40)),
    ]
    assert world.peer.seen == [(1, b"%d" % n) for n in range(40)]


def test_a_cut_is_noticed_on_both_sides_and_a_vanishing_on_none() -> None:
    async def test(world: World) -> None:
        wire = await world.connect()
        wire.cut()
        world.driver.connection.send(text_frame(b"lost"))
        await asyncio.sleep(10)
        assert world.driver.seen == [Ending.VANISHED]
        assert world.peer.seen == [("lost", 0)]

        wire = await world.connect()
        wire.vanish()
        world.driver.connection.send(text_frame(b"lost"))
        await asyncio.sleep(10)

    world = run(test)
    assert (world.driver.seen, world.peer.seen) == ([Ending.VANISHED], [("lost", 0)])


def test_a_close_of_the_node_reaches_the_user_agent_with_its_code() -> None:
    async def test(world: World) -> None:
        await world.connect()
        world.driver.connection.close(1011, "SM")
        await asyncio.sleep(10)
        assert world.server.descriptors == 0

    world = run(test)
    assert (world.driver.seen, world.peer.seen) == ([Ending.CLOSED], [("lost", 1011)])


def test_a_user_agent_that_hangs_up_says_so_and_hears_nothing_more() -> None:
    async def test(world: World) -> None:
        wire = await world.connect()
        wire.say(b"last")
        wire.hang_up()
        world.driver.connection.send(text_frame(b"too late"))
        await asyncio.sleep(10)
        assert world.server.descriptors == 0

    world = run(test)
    assert (world.driver.seen, world.peer.seen) == ([b"last", Ending.CLIENT_CLOSED], [])


def test_a_user_agent_that_is_refused_has_lost_its_connection() -> None:
    async def test(world: World) -> None:
        await world.connect()
        wire = await world.connect()
        wire.say(b"never heard")
        await asyncio.sleep(10)

    world = run(test)
    assert (world.driver.seen, world.peer.seen) == ([], [("lost", 0)])


def test_a_user_agent_that_does_not_read_congests_and_then_overflows() -> None:
    async def test(world: World) -> None:
        wire = await world.connect()
        wire.stall()
        world.driver.connection.send(text_frame(b"x" * 2000))
        await asyncio.sleep(5)
        assert world.driver.connection.congested
        world.driver.connection.send(text_frame(b"x" * 4000))
        await asyncio.sleep(10)

    assert run(test, window_bytes=500).driver.seen == [Ending.OVERFLOWED]
