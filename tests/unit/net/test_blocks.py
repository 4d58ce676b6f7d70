"""Blocks of one size, whatever parts they arrive in, and blocks that are made when one is taken."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from tests.unit.waiting import until
from waystation.base.clock import SystemClock
from waystation.net.blocks import BLOCKS_MAX, Blocks, PulledBlocks, pulled_blocks
from waystation.net.connection import Connection
from waystation.net.loop import NetLimits, NetLoop, Port, bound_socket

SIZE = 16_384
ONE, TWO, THREE = (bytes((number,)) * SIZE for number in (1, 2, 3))


class Taker(Blocks):
    def __init__(self, port: Port) -> None:
        super().__init__(port)
        self.blocks: list[bytes] = []

    def block_received(self, block: bytes) -> None:
        self.blocks.append(block)
        if block == TWO:
            self.pause()


class Giver(PulledBlocks):
    """Has so many blocks to give, and says a word after the first time that all were taken."""

    def __init__(self, port: Port, blocks: int) -> None:
        super().__init__(port)
        self.left = blocks
        self.says_more = False
        self.is_over = False

    def opened(self) -> None:
        self.touch()

    def block_received(self, block: bytes) -> None:
        if block == TWO:
            self.finish()

    def next_block(self) -> bytes | None:
        if not self.left:
            return None
        self.left -= 1
        return THREE

    def filled(self) -> None:
        if self.says_more:
            self.says_more = False
            self.left += 1
            self.touch()

    def closed(self) -> None:
        self.is_over = True


class Stage:
    def __init__(self) -> None:
        self.net = NetLoop(clock=SystemClock(), limits=NetLimits(linger_s=0.3))
        self.made: list[Connection] = []

    async def client(self, port: Port, connection: Connection) -> socket.socket:
        port.listen(bound_socket("127.0.0.1", 0), lambda _: connection)
        client = socket.socket()
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, port.address)
        return client


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    made = Stage()
    yield made
    made.net.close()


async def read(client: socket.socket, size: int) -> bytes:
    got = bytearray()
    async with asyncio.timeout(10.0):
        while len(got) < size:
            part = await asyncio.get_running_loop().sock_recv(client, size - len(got))
            if not part:
                break
            got += part
    return bytes(got)


def test_a_read_that_is_a_block_is_handed_on_without_a_copy() -> None:
    taker = Taker(None)  # pyright: ignore[reportArgumentType] no loop is needed
    taker.received(ONE)

    assert taker.blocks[0] is ONE


@pytest.mark.parametrize("size", [1, 100, SIZE - 1, SIZE, SIZE + 1, 3 * SIZE])
def test_blocks_are_whole_whatever_parts_they_arrive_in(size: int) -> None:
    taker = Taker(None)  # pyright: ignore[reportArgumentType] no loop is needed
    said = ONE + THREE + ONE
    for at in range(0, len(said), size):
        taker.received(said[at : at + size])

    assert taker.blocks == [ONE, THREE, ONE]


async def test_a_block_behind_a_pause_waits(stage: Stage) -> None:
    port = Port(stage.net)
    taker = Taker(port)
    with await stage.client(port, taker) as client:
        await asyncio.get_running_loop().sock_sendall(client, b"\x01" * 100)
        await asyncio.sleep(0.02)
        await asyncio.get_running_loop().sock_sendall(client, (ONE + TWO + THREE)[100:])
        await until(lambda: taker.blocks == [ONE, TWO])
        await asyncio.sleep(0.02)
        assert taker.blocks == [ONE, TWO]

        taker.resume()
        await until(lambda: taker.blocks == [ONE, TWO, THREE])


async def test_blocks_are_made_as_the_peer_takes_them(stage: Stage) -> None:
    port = pulled_blocks(stage.net)
    giver = Giver(port, blocks=1000)
    with await stage.client(port, giver) as client:
        await until(lambda: giver.is_blocked)
        await asyncio.sleep(0.02)
        assert giver.left > 0
        assert giver.out_bytes <= SIZE

        assert await read(client, 1000 * SIZE) == THREE * 1000


async def test_what_is_said_when_all_was_taken_leaves_as_well(stage: Stage) -> None:
    port = pulled_blocks(stage.net)
    giver = Giver(port, blocks=BLOCKS_MAX + 1)
    giver.says_more = True
    with await stage.client(port, giver) as client:
        assert len(await read(client, (BLOCKS_MAX + 2) * SIZE)) == (BLOCKS_MAX + 2) * SIZE


async def test_what_waits_is_sent_before_the_end(stage: Stage) -> None:
    port = pulled_blocks(stage.net)
    giver = Giver(port, blocks=1000)
    with await stage.client(port, giver) as client:
        await asyncio.get_running_loop().sock_sendall(client, TWO)
        await until(lambda: giver.is_over)

        assert len(await read(client, 1001 * SIZE)) == 1000 * SIZE
    await until(lambda: not port.descriptors)
