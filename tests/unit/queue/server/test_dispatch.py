"""Commands on a store that answers late or fails, as a test decides."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest

from tests.unit.queue.server.connected import Told
from waystation.app.wiring.queue_cores import QueueCores
from waystation.base.clock import ManualClock
from waystation.queue.errors import TRY_LATER, Code, QueueStoreUnavailableError
from waystation.queue.model import CorrId, EntityId, Message, MessageId, Queue
from waystation.queue.server.admission import Case
from waystation.queue.server.checks import Checks
from waystation.queue.server.dispatch import Caller, DisconnectError
from waystation.queue.server.ids import IdMaker
from waystation.queue.server.observer import NoObserver
from waystation.queue.settings import Queue as QueueSettings
from waystation.queue.store import Party
from waystation.queue.wire.commands import Ack, Command, Get, Send, Sub
from waystation.queue.wire.responses import OK, SUBSCRIBED, Err, Msg, Response
from waystation.queue.wire.transmission import Transmission
from waystation.storage.memory.queue import MemoryQueueStore
from waystation.testing.conformance.queue_samples import new_queue


class SlowStore(MemoryQueueStore):
    """Does what it does at once; `hold` names calls whose answers wait for `release`."""

    def __init__(self) -> None:
        super().__init__()
        self.hold: set[str] = set()
        self.broken: set[str] = set()
        self._gate = asyncio.Event()

    def release(self) -> None:
        self.hold.clear()
        self._gate.set()

    async def _then(self, name: str, made: Awaitable[Any]) -> Any:
        if name in self.broken:
            made.close()  # pyright: ignore[reportAttributeAccessIssue]
            raise QueueStoreUnavailableError("on holiday")
        result = await made
        if name in self.hold:
            await self._gate.wait()
        return result

    async def append(self, *args: Any, **kwargs: Any) -> Any:
        return await self._then("append", super().append(*args, **kwargs))

    async def acknowledge(self, *args: Any, **kwargs: Any) -> Any:
        return await self._then("acknowledge", super().acknowledge(*args, **kwargs))

    async def head(self, *args: Any, **kwargs: Any) -> Any:
        return await self._then("head", super().head(*args, **kwargs))

    async def find(self, *args: Any, **kwargs: Any) -> Any:
        return await self._then("find", super().find(*args, **kwargs))


class Room:
    """A server without a door."""

    def __init__(self, store: SlowStore, checks: Checks) -> None:
        cores = QueueCores(
            settings=QueueSettings(subscriptions_max=2),
            store=store,
            checks=checks,
            ids=IdMaker(hybrid=True),
            observer=NoObserver(),
            clock=ManualClock(),
        )
        self.store = store
        self.subscribers = cores.subscribers
        self.delivery = cores.delivery
        self.dispatch = cores.dispatch

    async def queue(self) -> Queue:
        queue = new_queue()
        assert await self.store.create(queue)
        return queue

    async def do(self, client: Told, queue: Queue, command: Command) -> Response:
        sent = Transmission(CorrId(b"c"), EntityId(b"e"), command)
        caller = Caller(client, 18, None)
        return await self.dispatch.execute(caller, Case(sent, queue), proven=True)

    async def subscribed(self, client: Told, queue: Queue) -> None:
        assert await self.do(client, queue, Sub()) == SUBSCRIBED
        await self.offer(client)

    async def offer(self, client: Told) -> None:
        """What a driver does after the answers of a batch."""
        while client.deferred:
            await self.delivery.offer(client.deferred.popitem()[1])


@pytest.fixture
async def room() -> AsyncIterator[Room]:
    checks = Checks(threads=1, loop=asyncio.get_running_loop())
    yield Room(SlowStore(), checks)
    checks.close()


def bodies(client: Told) -> list[bytes]:
    return [response.message_id for _, response in client.told if isinstance(response, Msg)]


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_message_that_arrives_while_the_head_is_asked_for_is_delivered(
    room: Room,
) -> None:
    """The store said that nothing waits, and then something did."""
    client, queue = Told(), await room.queue()
    await room.do(client, queue, Sub())
    room.store.hold.add("head")
    offering = asyncio.create_task(room.offer(client))
    await turn()
    assert await room.do(Told(), queue, Send(False, b"x")) == OK
    assert bodies(client) == []
    room.store.release()
    await offering

    assert len(bodies(client)) == 1


async def test_a_message_that_arrives_while_an_ack_is_written_is_delivered(room: Room) -> None:
    client, queue = Told(), await room.queue()
    await room.subscribed(client, queue)
    await room.do(Told(), queue, Send(False, b"one"))
    room.store.hold.add("acknowledge")
    acking = asyncio.create_task(room.do(client, queue, Ack(MessageId(b""))))
    await turn()
    assert await room.do(Told(), queue, Send(False, b"two")) == OK
    assert len(bodies(client)) == 1
    room.store.release()

    assert await acking == OK
    await room.offer(client)
    assert len(bodies(client)) == 2


async def test_an_ack_of_a_replaced_subscriber_delivers_nothing_more(
    room: Room,
) -> None:
    first, second, queue = Told(), Told(), await room.queue()
    await room.subscribed(first, queue)
    for _ in range(2):
        await room.do(Told(), queue, Send(False, b"x"))
    room.store.hold.add("acknowledge")
    acking = asyncio.create_task(room.do(first, queue, Ack(MessageId(b""))))
    await turn()
    await room.subscribed(second, queue)
    room.store.release()

    assert await acking == OK
    assert len(bodies(first)) == 1
    assert len(bodies(second)) == 1


async def test_a_message_whose_ack_failed_in_the_store_stays_unacknowledged(room: Room) -> None:
    client, queue = Told(), await room.queue()
    await room.subscribed(client, queue)
    await room.do(Told(), queue, Send(False, b"x"))
    room.store.broken.add("acknowledge")

    with pytest.raises(DisconnectError):
        await room.do(client, queue, Ack(MessageId(b"")))
    room.store.broken.clear()
    assert await room.do(client, queue, Ack(MessageId(b""))) == OK


async def test_what_was_delivered_before_is_acknowledged_while_the_delivery_is_put_off(
    room: Room,
) -> None:
    """Q-123: whoever subscribes again, here or where the slot went, and says ACK in the same
    breath, as edges do on behalf of clients."""
    before, client, queue = Told(), Told(), await room.queue()
    await room.subscribed(before, queue)
    for body in (b"one", b"two", b"three"):
        await room.do(Told(), queue, Send(False, body))
    (one,) = bodies(before)

    assert await room.do(client, queue, Sub()) == SUBSCRIBED
    two = await room.do(client, queue, Ack(MessageId(one)))
    assert isinstance(two, Msg)
    assert await room.do(client, queue, Sub()) == SUBSCRIBED
    assert await room.do(client, queue, Ack(MessageId(b""))) == Err(Code.NO_MSG)
    again = await room.do(client, queue, Ack(MessageId(one)))
    assert isinstance(again, Msg)
    assert again.message_id == two.message_id  # it was removed already, and nothing else was
    await room.offer(client)

    assert bodies(client) == []
    three = await room.do(client, queue, Ack(two.message_id))
    assert isinstance(three, Msg)
    assert await room.do(client, queue, Ack(three.message_id)) == OK


async def test_what_is_acknowledged_while_the_head_is_asked_for_is_not_delivered_again(
    room: Room,
) -> None:
    client, queue = Told(), await room.queue()
    await room.subscribed(client, queue)
    await room.do(Told(), queue, Send(False, b"x"))
    (message_id,) = bodies(client)
    await room.do(client, queue, Sub())
    room.store.hold.add("head")
    offering = asyncio.create_task(room.offer(client))
    await turn()

    assert await room.do(client, queue, Ack(MessageId(message_id))) == OK
    room.store.release()
    await offering

    assert bodies(client) == [message_id]
    await room.do(Told(), queue, Send(False, b"y"))
    assert len(bodies(client)) == 2


async def test_senders_get_a_temporary_error_and_recipients_are_disconnected(room: Room) -> None:
    """Anything else would make clients drop the message or give the subscription up (§4.6)."""
    client, queue = Told(), await room.queue()
    room.store.broken.update({"append", "head", "find"})

    assert await room.do(client, queue, Send(False, b"x")) == Err(TRY_LATER)
    with pytest.raises(DisconnectError):
        await room.do(client, queue, Get())
    unsent = Transmission(CorrId(b"c"), EntityId(bytes(24)), Sub())
    with pytest.raises(DisconnectError):
        await room.dispatch.look_up(unsent)
    case = await room.dispatch.look_up(
        Transmission(CorrId(b"c"), EntityId(bytes(24)), Send(False, b""))
    )
    assert case.refused == TRY_LATER


async def test_a_slow_reader_is_delivered_to_when_it_reads_again(room: Room) -> None:
    client, queue = Told(), await room.queue()
    await room.subscribed(client, queue)
    client.congested = True
    assert await room.do(Told(), queue, Send(False, b"x")) == OK
    assert bodies(client) == []
    assert client.woken == 1
    client.congested = False
    await room.offer(client)

    assert len(bodies(client)) == 1


async def test_a_connection_has_no_more_subscriptions_than_it_may(room: Room) -> None:
    client = Told()
    for _ in range(2):
        await room.subscribed(client, await room.queue())
    one_more = await room.queue()

    assert await room.do(client, one_more, Sub()) == Err(Code.QUOTA)
    assert await room.do(client, one_more, Get()) == Err(Code.QUOTA)


async def test_a_queue_deleted_under_a_command_is_refused(room: Room) -> None:
    client, queue = Told(), await room.queue()
    await room.subscribed(client, queue)
    await room.do(Told(), queue, Send(False, b"x"))
    await room.store.delete(queue.recipient_id)

    assert await room.do(client, queue, Ack(MessageId(b""))) == Err(Code.AUTH)
    assert await room.do(client, queue, Send(False, b"x")) == Err(Code.AUTH)


async def test_a_forwarded_command_is_looked_up_checked_and_done_in_one(room: Room) -> None:
    queue = await room.queue()
    caller = Caller(Told(), 18, None)
    sent = Transmission(CorrId(b"c"), EntityId(queue.sender_id), Send(False, b"x"))

    assert await room.dispatch.answer(caller, sent) == OK
    unknown = Transmission(
        CorrId(b"c"), EntityId(bytes(24)), Send(False, b"x"), bytes(64), b"authorized"
    )
    assert await room.dispatch.answer(caller, unknown) == Err(Code.AUTH)
    head = await room.store.head(queue.recipient_id)
    assert isinstance(head, Message)


async def test_days_of_use_are_written_together(room: Room) -> None:
    queue = await room.queue()
    await room.do(Told(), queue, Sub())
    await room.dispatch.write_touches()
    found = await room.store.find(Party.RECIPIENT, queue.recipient_id)

    assert found is not None
    assert found.updated_on_s == 1_699_920_000  # the day of the manual clock
