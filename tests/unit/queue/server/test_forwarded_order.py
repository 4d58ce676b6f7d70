"""The order of forwarded commands: alone, and with real checks in threads."""

import asyncio
import secrets
import threading
from collections.abc import AsyncIterator

import pytest

from tests.unit.queue.server.connected import RecordedLine
from tests.unit.queue.server.test_dispatch import Room, SlowStore
from waystation.base.clock import ManualClock
from waystation.base.tasks import Tasks
from waystation.queue import auth
from waystation.queue.model import (
    CorrId,
    EntityId,
    KeyKind,
    Queue,
    SessionId,
)
from waystation.queue.server.checks import Checks
from waystation.queue.server.client import Client
from waystation.queue.server.forwarded_order import Begun, ForwardedOrder
from waystation.queue.server.proxying import NoProxyObserver, Proxying
from waystation.queue.server.relays import Relays
from waystation.queue.server.session import Session
from waystation.queue.settings import Queue as QueueSettings
from waystation.queue.wire.block import PlainBlocks
from waystation.queue.wire.boxes import agree, box_key, new_dh_pair
from waystation.queue.wire.commands import Rfwd, Send, encode_command
from waystation.queue.wire.forwarding import Forwarded, seal_forwarded, seal_inner
from waystation.queue.wire.handshake import Agreement
from waystation.queue.wire.responses import Rres
from waystation.queue.wire.transmission import (
    Dialect,
    Transmission,
    encode_transmission,
    join_batch,
)
from waystation.testing.conformance.queue_samples import drained, new_key, new_queue

PROXY = "a connection"


class Steps:
    """Commands that begin and end when a test says so."""

    def __init__(self) -> None:
        self.order = ForwardedOrder()
        self.log: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []

    def start(
        self, name: str, entity: bytes = b"q", *, is_message: bool = True, connection: str = PROXY
    ) -> tuple[asyncio.Event, asyncio.Event]:
        begin, end = asyncio.Event(), asyncio.Event()

        async def work(begun: Begun) -> None:
            self.log.append(f"{name} looks")
            await begin.wait()
            self.log.append(f"{name} begins")
            begun()
            await end.wait()
            self.log.append(f"{name} ends")

        run = self.order.run(connection, entity, work, is_message=is_message)
        self._tasks.append(asyncio.ensure_future(run))
        return begin, end

    async def turn(self) -> list[str]:
        for _ in range(8):
            await asyncio.sleep(0)
        seen, self.log = self.log, []
        return seen

    async def over(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def test_messages_begin_in_their_order_and_end_as_they_may() -> None:
    steps = Steps()
    one, two = steps.start("one"), steps.start("two")
    two[0].set()
    assert await steps.turn() == ["one looks"]
    one[0].set()
    assert await steps.turn() == ["one begins", "two looks", "two begins"]
    two[1].set()
    assert await steps.turn() == ["two ends"]
    one[1].set()
    await steps.over()

    assert len(steps.order) == 0


async def test_anything_else_waits_for_the_end_of_what_is_before_it() -> None:
    steps = Steps()
    one, two = steps.start("one"), steps.start("two", is_message=False)
    three = steps.start("three")
    for begin, _ in (one, two, three):
        begin.set()
    assert await steps.turn() == ["one looks", "one begins"]
    one[1].set()
    assert await steps.turn() == ["one ends", "two looks", "two begins"]
    two[1].set()
    assert await steps.turn() == ["two ends", "three looks", "three begins"]
    three[1].set()
    await steps.over()

    assert len(steps.order) == 0


async def test_other_ids_and_other_connections_do_not_wait() -> None:
    steps = Steps()
    started = [steps.start("one"), steps.start("two", b"r"), steps.start("three", connection="b")]

    assert await steps.turn() == ["one looks", "two looks", "three looks"]
    for begin, end in started:
        begin.set()
        end.set()
    await steps.over()
    assert len(steps.order) == 0


async def test_a_command_that_fails_before_it_begins_blocks_no_other() -> None:
    order = ForwardedOrder()

    async def fail(_begun: Begun) -> None:
        await asyncio.sleep(0)
        raise ConnectionError

    async def succeed(begun: Begun) -> str:
        begun()
        return "done"

    first = asyncio.ensure_future(order.run(PROXY, b"q", fail, is_message=True))
    second = asyncio.ensure_future(order.run(PROXY, b"q", succeed, is_message=True))

    assert await second == "done"
    with pytest.raises(ConnectionError):
        await first
    assert len(order) == 0


class Relay:
    """Two threads that check, a store, and the connection of one proxy."""

    def __init__(self, room: Room, proxying: Proxying) -> None:
        self.room = room
        self.proxying = proxying
        self.public, private = new_dh_pair()
        self.secret = secrets.token_bytes(32)
        self.dialect = Dialect(18, SessionId(b"\xaa" * 32))
        session = Session.__new__(Session)
        session._agreement = Agreement(self.dialect, PlainBlocks(), self.secret, private, True)
        self.client = Client(RecordedLine(), session, out_blocks_max=4, mono=0.0)

    def brought(self, queue: Queue, body: bytes) -> Transmission:
        """RFWD around a signed SEND."""
        public, private = new_dh_pair()
        said = encode_command(Send(False, body), 18)
        sent = encode_transmission(b"c" * 24, queue.sender_id, said, self.dialect, bytes(64))
        nonce, own = CorrId(secrets.token_bytes(24)), CorrId(secrets.token_bytes(24))
        inner = seal_inner(agree(self.public, private), nonce, join_batch([sent]))
        forwarded = Forwarded(nonce, 18, public, inner)
        outer = seal_forwarded(box_key(self.secret), own, forwarded)
        return Transmission(own, EntityId(b""), Rfwd(outer))


@pytest.fixture
async def relay() -> AsyncIterator[Relay]:
    checks = Checks(threads=2, loop=asyncio.get_running_loop())
    room = Room(SlowStore(), checks)
    clock, tasks = ManualClock(), Tasks(lambda *_: None)
    relays = Relays(
        None,  # pyright: ignore[reportArgumentType]
        tasks=tasks,
        clock=clock,
        links_max=1,
        failure_memory_s=1.0,
    )
    proxying = Proxying(
        relays=relays,
        dispatch=room.dispatch,
        settings=QueueSettings(),
        observer=NoProxyObserver(),
    )
    yield Relay(room, proxying)
    await tasks.close()
    checks.close()


async def test_a_message_whose_check_is_quicker_does_not_overtake(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first check takes until the second one was made, or until it is clear that it is not."""
    second_checked = threading.Event()

    def slow_first(_keys: object, _proof: bytes, authorized: bytes, *_: object) -> bool:
        if authorized.endswith(b"one"):
            second_checked.wait(0.3)
        else:
            second_checked.set()
        return True

    monkeypatch.setattr(auth, "check", slow_first)
    checks = Checks(threads=2, loop=asyncio.get_running_loop())
    relay.room.dispatch._checks = checks
    queue = new_queue(sender_key=new_key())
    assert queue.sender_key is not None
    assert queue.sender_key.kind is KeyKind.ED25519
    await relay.room.store.create(queue)
    answers = await asyncio.gather(
        *(
            relay.proxying.forward(relay.client, relay.brought(queue, body))
            for body in (b"one", b"two")
        )
    )
    checks.close()

    assert all(isinstance(answer, Rres) for answer in answers)
    assert [one.body for one in await drained(relay.room.store, queue)] == [b"one", b"two"]
