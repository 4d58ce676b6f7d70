"""From blocks to answers, without a socket: the memory for a client is limited."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.unit.queue.server.connected import Hellos, RecordedLine
from tests.unit.queue.server.test_dispatch import Room, SlowStore
from tests.unit.queue.wire.chains import chain
from waystation.base.clock import SystemClock
from waystation.base.tasks import Tasks
from waystation.queue.model import (
    CURRENT_VERSIONS,
    SessionId,
)
from waystation.queue.server.checks import Checks
from waystation.queue.server.client import Client
from waystation.queue.server.driver import Driver, NoForwarder
from waystation.queue.settings import Queue as QueueSettings
from waystation.queue.wire.block import BLOCK_BYTES, seal_plain
from waystation.queue.wire.responses import Response, Rres
from waystation.queue.wire.transmission import (
    Transmission,
    decode_answer,
    encode_transmission,
    join_batch,
    split_batch,
)

CHAIN, LEAF_KEY = chain()
HELLOS = Hellos(tuple(CHAIN), LEAF_KEY)


class Echo(NoForwarder):
    """Answers what is forwarded with much, at once or when a test says so."""

    def __init__(self) -> None:
        self.taken = 0
        self.go = asyncio.Event()
        self.fails = False

    async def forward(self, client: Client, transmission: Transmission) -> Response:
        self.taken += 1
        await self.go.wait()
        if self.fails:
            raise AssertionError("a mistake of ours")
        return Rres(bytes(16_000))


class Driven:
    def __init__(self, settings: QueueSettings, checks: Checks) -> None:
        self.failures: list[BaseException] = []
        tasks = self.tasks = Tasks(lambda _name, error: self.failures.append(error))
        self.room = Room(SlowStore(), checks)
        self.echo = Echo()
        self.driver = Driver(
            dispatch=self.room.dispatch,
            delivery=self.room.delivery,
            subscribers=self.room.subscribers,
            checks=checks,
            forwarder=self.echo,
            handshake=lambda _session, _versions: HELLOS.server(),
            settings=settings,
            tasks=tasks,
            clock=SystemClock(),
        )
        self.line = RecordedLine()
        self.client = self.driver.opened(self.line, SessionId(bytes(32)), CURRENT_VERSIONS)
        self.client.session.hello()
        assert self.driver.received(self.client, HELLOS.client())

    def say(self, *items: bytes) -> None:
        """A block, if the socket would be read."""
        if not self.line.paused:
            assert self.driver.received(self.client, seal_plain(join_batch(items)))

    def read(self) -> list[bytes]:
        """Everything that waits, as a client would that reads again."""
        heard: list[bytes] = []
        while (block := self.client.session.next_block()) is not None:
            size = int.from_bytes(block[:2], "big")
            heard += split_batch(block[2 : 2 + size])
        self.driver.has_room(self.client)
        return [decode_answer(one, self.client.session.agreement.dialect).response for one in heard]


Make = Callable[..., Driven]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    checks = Checks(threads=1, loop=asyncio.get_running_loop())
    made: list[Driven] = []

    def make(**settings: Any) -> Driven:
        made.append(Driven(QueueSettings(**settings), checks))
        return made[-1]

    yield make
    for one in made:
        await one.tasks.close()
    checks.close()


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 threads have a part in it
            await asyncio.sleep(0.01)


def ping() -> bytes:
    return b"\0\x01c\0PING"


async def test_refusals_to_a_client_that_does_not_read_are_limited(make: Make) -> None:
    """Words that nobody knows are answered; a client that sends them for ever and reads nothing
    must not fill the memory."""
    driven = make(out_blocks_max=1, in_blocks_max=2)
    word = b"\0\x18" + b"c" * 24 + b"\xff" + b"e" * 255 + b"HELLO"
    sent = 0
    while not driven.line.paused:
        driven.say(*[word] * 50)
        await turns()
        sent += 1
        assert sent < 20, "it is read for ever"

    assert driven.client.session.said_bytes < 3 * BLOCK_BYTES
    heard = []
    while len(heard) < 50 * sent:
        heard += driven.read()
        await turns()
    assert set(heard) == {b"ERR CMD UNKNOWN"}
    assert not driven.line.paused


async def test_answers_to_forwarded_commands_are_limited_for_a_client_that_does_not_read(
    make: Make,
) -> None:
    driven = make(out_blocks_max=2, in_blocks_max=2, proxy_concurrency=4)
    driven.echo.go.set()
    rfwd = b"\0\x01c\0RFWD " + bytes(100)
    for _ in range(100):
        driven.say(rfwd)
        await turns()

    assert driven.line.paused
    assert driven.client.session.said_bytes <= (2 + 4) * BLOCK_BYTES
    assert driven.echo.taken < 20


async def test_a_client_with_too_many_refusals_is_slowed_though_it_sends_on(make: Make) -> None:
    driven = make(auth_errors_per_min=600, in_blocks_max=2)
    signed = b"\x40" + bytes(64) + b"0\x01c\x18" + b"q" * 24 + b"SUB"
    for _ in range(6):  # the allowance of a minute, and some more
        driven.say(*[signed] * 110)
        await until(lambda: driven.client.work is None)
        driven.read()
    began = asyncio.get_running_loop().time()
    for _ in range(2):  # ten a second are allowed: of four, one at least waits for its tenth
        for _ in range(2):
            driven.say(signed)
        await until(lambda: driven.client.work is None)
        driven.read()

    assert asyncio.get_running_loop().time() - began > 0.05
    assert driven.client.slowed_until > 0


async def test_a_mistake_while_passing_on_ends_the_connection(make: Make) -> None:
    driven = make()
    driven.echo.fails = True
    driven.say(b"\0\x01c\0RFWD x")
    await turns()
    assert driven.line.ended == ""
    driven.echo.go.set()
    await until(lambda: bool(driven.failures))

    assert driven.line.ended == "aborted"
    assert [type(one) for one in driven.failures] == [AssertionError]


async def test_a_client_that_goes_while_its_queue_is_looked_up_leaves_nothing(make: Make) -> None:
    driven = make()
    queue = await driven.room.queue()
    driven.room.store.hold.add("find")
    sent = encode_transmission(
        b"c", queue.recipient_id, b"SUB", driven.client.session.agreement.dialect, bytes(64)
    )
    driven.say(sent)
    await turns()
    driven.driver.closed(driven.client)
    driven.room.store.release()
    await until(lambda: driven.client.work is None)

    assert len(driven.room.subscribers) == 0
    assert driven.client not in driven.driver.clients


async def test_answers_keep_the_order_of_their_commands(make: Make) -> None:
    driven = make()
    queue = await driven.room.queue()
    driven.room.store.hold.add("append")
    dialect = driven.client.session.agreement.dialect
    driven.say(encode_transmission(b"1", queue.sender_id, b"SEND F one", dialect), ping())
    await turns()
    assert driven.read() == []
    driven.room.store.release()
    await until(lambda: driven.client.work is None)

    assert driven.read() == [b"OK", b"PONG"]
