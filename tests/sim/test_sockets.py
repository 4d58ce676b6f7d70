"""What a simulated network does to bytes, and that the production loop runs on it."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.sim.sockets import (
    Luck,
    SimHost,
    SimNetLoop,
    SimNetwork,
    SimSocket,
    SimTls,
)
from waystation.net.connection import Connection
from waystation.net.loop import Port
from waystation.testing.loop import SimClock, run_sim

PORT = 80


class Talk(Connection):
    """Remembers what happens; sends back what it gets if it is told to."""

    def __init__(self, port: Port, *, echoes: bool = False) -> None:
        super().__init__(port)
        self.seen = b""
        self.log: list[str] = []
        self.echoes = echoes

    def opened(self) -> None:
        self.log.append("opened")

    def received(self, data: bytes) -> None:
        self.seen += data
        if self.echoes:
            self.send(data)

    def half_closed(self) -> None:
        self.log.append("half closed")
        self.end()

    def closed(self) -> None:
        self.log.append("closed")


class World:
    def __init__(self, clock: SimClock, luck: Luck) -> None:
        self.clock = clock
        self.network = SimNetwork(luck)
        self.talks: list[Talk] = []

    def loop(self, name: str) -> tuple[SimHost, SimNetLoop, Port]:
        host = self.network.host(name)
        net = SimNetLoop(host, clock=self.clock)
        return host, net, Port(net, send_bytes_max=0)

    def serve(self, name: str = "server", tls: SimTls | None = None) -> SimNetLoop:
        host, net, port = self.loop(name)

        def make(_address: str) -> Connection:
            self.talks.append(Talk(port, echoes=True))
            return self.talks[-1]

        port.listen(host.listening(PORT), make, tls)
        return net


def run(
    test: Callable[[World], Coroutine[Any, Any, None]], seed: int = 1, **luck: float
) -> SimClock:
    clock = SimClock()

    async def main() -> None:
        await test(World(clock, Luck(random.Random(seed), **luck)))  # pyright: ignore[reportArgumentType]

    run_sim(main(), clock)
    return clock


async def read_all(sock: SimSocket, size: int) -> bytes:
    """As a peer without a loop reads, by looking."""
    seen = b""
    while len(seen) < size:
        data = sock.read()
        if data is None:
            await asyncio.sleep(0.01)
        elif not data:
            break
        else:
            seen += data
    return seen


@pytest.mark.parametrize("seed", range(20))
def test_bytes_come_back_in_order_through_small_windows_and_odd_pieces(seed: int) -> None:
    async def test(world: World) -> None:
        world.serve()
        _, _, port = world.loop("client")
        talk = Talk(port)
        await port.connect(talk, ("server", PORT))
        sent = bytes(range(256)) * 40
        for at in range(0, len(sent), 1000):
            talk.send(sent[at : at + 1000])
        await asyncio.sleep(600)
        assert talk.seen == sent
        talk.end()
        await asyncio.sleep(10)

        assert talk.log == ["opened", "closed"]
        assert world.talks[0].log == ["opened", "half closed", "closed"]
        assert port.descriptors == world.talks[0].port.descriptors == 0

    run(test, seed, piece_share=0.5, window_bytes=700)


def test_the_same_seed_takes_the_same_time() -> None:
    async def test(world: World) -> None:
        world.serve()
        sock = await world.network.host("peer").dial(("server", PORT))
        sock.write(b"x" * 100)
        await read_all(sock, 100)

    assert len({run(test, seed).elapsed_s for seed in (1, 1, 2)}) == 2


def test_nobody_listens_and_a_parted_host_is_not_reached_before_it_is_joined() -> None:
    async def test(world: World) -> None:
        client = world.network.host("client")
        with pytest.raises(ConnectionRefusedError):
            await client.dial(("server", PORT))
        world.serve()
        world.network.part("server", "client")
        tries = [asyncio.create_task(client.dial(("server", PORT))) for _ in range(20)]
        await asyncio.sleep(20)
        at_once = [one for one in tries if one.done()]
        assert 0 < len(at_once) < 20
        assert all(isinstance(one.exception(), OSError) for one in at_once)
        world.network.join("client", "server")
        await asyncio.sleep(20)

        assert all(one.done() for one in tries)
        assert len(world.talks) == 20 - len(at_once)

    run(test)


def test_what_parted_hosts_send_arrives_when_they_are_joined() -> None:
    async def test(world: World) -> None:
        world.serve()
        sock = await world.network.host("peer").dial(("server", PORT))
        world.network.part("peer", "server")
        sock.write(b"one ")
        await asyncio.sleep(5)
        sock.write(b"two")
        await asyncio.sleep(5)
        assert world.talks[0].seen == b""
        world.network.join_all()

        assert await read_all(sock, 7) == b"one two"

    run(test)


def test_a_cut_is_noticed_on_both_sides_and_a_vanishing_on_none() -> None:
    async def test(world: World) -> None:
        world.serve()
        host = world.network.host("peer")
        cut, vanished = [await host.dial(("server", PORT)) for _ in range(2)]
        await asyncio.sleep(5)
        cut.cut()
        vanished.vanish()
        await asyncio.sleep(5)

        assert sorted(talk.log for talk in world.talks) == [["opened"], ["opened", "closed"]]
        with pytest.raises(ConnectionResetError):
            cut.read()

    run(test)


def test_closing_with_unread_input_resets() -> None:
    async def test(world: World) -> None:
        world.serve()
        sock = await world.network.host("peer").dial(("server", PORT))
        sock.write(b"x")
        await asyncio.sleep(10)
        sock.close()
        await asyncio.sleep(10)

        assert world.talks[0].log == ["opened", "closed"]

    run(test)


def test_a_peer_that_does_not_read_stops_the_writer_until_it_reads() -> None:
    async def test(world: World) -> None:
        world.serve()
        sock = await world.network.host("peer").dial(("server", PORT))
        for _ in range(20):
            sock.write(b"x" * 500)
            await asyncio.sleep(3)
        (talk,) = world.talks
        assert talk.is_blocked
        assert talk.out_bytes == len(talk.seen) - 1000

        assert len(await read_all(sock, len(talk.seen))) == len(talk.seen)

    run(test, window_bytes=1000)


def test_a_peer_without_a_loop_is_told_that_there_is_something_to_read() -> None:
    async def test(world: World) -> None:
        world.serve()
        sock = await world.network.host("peer").dial(("server", PORT))
        seen: list[bytes | None] = []
        sock.on_ready = lambda: seen.append(sock.read())
        sock.write(b"echo")
        await asyncio.sleep(5)
        world.talks[0].end()
        await asyncio.sleep(5)

        assert seen == [b"echo", b""]

    run(test, piece_share=0.0)


def test_a_process_that_is_killed_ends_its_connections_and_hears_of_nothing() -> None:
    async def test(world: World) -> None:
        net = world.serve()
        sock = await world.network.host("peer").dial(("server", PORT))
        await asyncio.sleep(5)
        (talk,) = world.talks
        talk.send(b"the kernel has not seen this")
        net.kill()
        talk.send(b"nor this")
        await asyncio.sleep(5)

        assert talk.log == ["opened"]
        assert sock.read() == b""
        with pytest.raises(ConnectionRefusedError):
            await world.network.host("peer").dial(("server", PORT))
        world.serve()
        await world.network.host("peer").dial(("server", PORT))

    run(test)


@pytest.mark.parametrize("seed", range(10))
def test_tls_shows_what_both_sides_are(seed: int) -> None:
    async def test(world: World) -> None:
        world.serve(tls=SimTls(protocol="smp/1", chain=(b"leaf", b"root")))
        _, _, port = world.loop("client")
        talk = Talk(port)
        await port.connect(talk, ("server", PORT), tls=SimTls(protocol="smp/1"))
        talk.send(b"hello")
        await asyncio.sleep(10)

        secure, other = talk.secure, world.talks[0].secure
        assert secure is not None
        assert other is not None
        assert (secure.peer_chain, other.peer_chain) == ((b"leaf", b"root"), ())
        assert secure.binding == other.binding
        assert secure.protocol == "smp/1"
        assert talk.seen == b"hello"

    run(test, seed, piece_share=0.5)


def test_a_peer_without_tls_fails_the_handshake() -> None:
    async def test(world: World) -> None:
        world.serve(tls=SimTls())
        sock = await world.network.host("peer").dial(("server", PORT))
        sock.write(b"GET / HTTP/1.1\r\n\r\n")
        await asyncio.sleep(10)

        assert world.talks[0].log == ["closed"]
        with pytest.raises(ConnectionResetError):
            sock.read()

    run(test)
