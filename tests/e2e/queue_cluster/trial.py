"""Clients that exchange messages through a cluster under disturbances, and record each wait.

What is checked is what `tests/e2e/queue/exchange.py` checks: nothing that was answered `OK` is
lost, the order of each queue is kept, a message comes twice only if its sender said it twice
because an answer was lost, and nothing comes after its ACK was confirmed.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple, Protocol

from tests.e2e.queue.exchange import Outcome, Watched, check_outcome, create_queue
from tests.e2e.queue_cluster.fleet import Fleet
from waystation.client.queue.address import ServerAddress
from waystation.client.queue.client import QueueClient
from waystation.client.queue.connection import (
    ConnectionSettings,
    NotConnectedError,
    OutcomeUnknownError,
)
from waystation.client.queue.error_replies import QueueFullError, TemporaryError
from waystation.client.queue.events import QuotaReached, Received
from waystation.client.queue.keys import PrivateKey
from waystation.client.queue.queue_secrets import RecipientQueue, SenderQueue
from waystation.client.queue.tls import client_context
from waystation.queue.cluster.slot_map import NodeId
from waystation.queue.model import slot_letters, slot_of

PATIENCE_S = 120.0  # of one command; a server that is killed is replaced after its lease


class Wait(NamedTuple):
    """How long a sender waited for one OK, repetitions included."""

    began: float
    lasted_s: float


class Servers(Protocol):
    """Where clients go: a fleet, or one server."""

    def address(self, first: int = 0) -> ServerAddress: ...


class Pair:
    """A sender at one edge, a recipient at the other."""

    def __init__(self, fleet: Servers, number: int, pause_s: float) -> None:
        settings = ConnectionSettings(
            patience_s=PATIENCE_S, connect_timeout_s=20.0, backoff_base_s=0.05, backoff_max_s=0.3
        )
        tls = client_context(any_suite=True)
        here = number % 2
        self.sender = QueueClient(fleet.address(here), settings=settings, tls=tls)
        self.recipient = QueueClient(fleet.address(1 - here), settings=settings, tls=tls)
        self._watched = self.recipient._inbox.deliveries = Watched()
        self._pause_s = pause_s
        self.queue: RecipientQueue | None = None
        self.waits: list[Wait] = []
        self.sent = 0
        self._complete = asyncio.Event()  # nothing more will be sent
        self._sent_again: set[int] = set()
        self._numbers: list[int] = []
        self._message_ids: list[bytes] = []
        self._unconfirmed = 0

    @property
    def slot(self) -> int:
        assert self.queue is not None
        return slot_of(self.queue.recipient_id)

    async def meet(self) -> None:
        self.queue = await create_queue(self.recipient)

    async def send(self, over: asyncio.Event) -> None:
        assert self.queue is not None
        there = SenderQueue(self.queue.sender_id, PrivateKey.generate("x25519"))
        await self._secure(there)
        while not over.is_set():
            began = time.monotonic()
            await self._until_ok(there)
            self.waits.append(Wait(began, time.monotonic() - began))
            self.sent += 1
            await asyncio.sleep(self._pause_s)
        self._complete.set()

    async def _secure(self, there: SenderQueue) -> None:
        """With one key it may be said again."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    return await self.sender.secure_as_sender(there)
                except (TemporaryError, NotConnectedError, OutcomeUnknownError):
                    await asyncio.sleep(0.05)

    async def _until_ok(self, there: SenderQueue) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    return await self.sender.send(there, b"%d" % self.sent)
                except QueueFullError:
                    await asyncio.sleep(0.01)  # it takes more once it was read empty
                except OutcomeUnknownError:
                    self._sent_again.add(self.sent)
                except TemporaryError:  # the edge cannot know whether its server has it
                    self._sent_again.add(self.sent)
                    await asyncio.sleep(0.05)
                except NotConnectedError:
                    await asyncio.sleep(0.05)

    async def receive(self) -> None:
        ended = asyncio.create_task(self._complete.wait())
        while not (self._complete.is_set() and self._read_all()):
            event = asyncio.create_task(self.recipient.receive())
            done, _ = await asyncio.wait({event, ended}, return_when=asyncio.FIRST_COMPLETED)
            if event not in done and self._read_all():
                event.cancel()
                return
            async with asyncio.timeout(PATIENCE_S):
                await self._take(await event)

    def _read_all(self) -> bool:
        return bool(self._numbers) and self._numbers[-1] == self.sent - 1

    async def _take(self, event: object) -> None:
        if isinstance(event, QuotaReached):
            return
        assert isinstance(event, Received), event
        self._numbers.append(int(event.body))
        self._message_ids.append(event.message_id)
        if await self.recipient.ack(event):
            self._watched.confirmed.add(event.message_id)
        else:
            self._unconfirmed += 1

    def outcome(self) -> Outcome:
        return Outcome(
            self._numbers,
            self._message_ids,
            self._sent_again,
            self.recipient.repeated,
            self._watched.too_late,
            self._unconfirmed,
        )


class Trial:
    """Everybody writes from the beginning to the end; `during` says what happens meanwhile."""

    def __init__(self, fleet: Fleet, *, pairs: int, pause_s: float, seed: int = 1) -> None:
        self.fleet = fleet
        self.pairs = [Pair(fleet, number, pause_s) for number in range(pairs)]
        self.chance = random.Random(seed)
        self.moves_asked = 0
        self._over = asyncio.Event()
        self._phases: list[tuple[str, float, float]] = []

    async def live(self, story: Callable[["Trial"], Awaitable[None]]) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for pair in self.pairs:
                await stack.enter_async_context(pair.sender)
                await stack.enter_async_context(pair.recipient)
                await pair.meet()
            async with asyncio.TaskGroup() as group:
                for pair in self.pairs:
                    group.create_task(pair.send(self._over))
                    group.create_task(pair.receive())
                await self.gone_on(3)
                await story(self)
                self._over.set()

    @contextlib.contextmanager
    def during(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._phases.append((what, began, time.monotonic()))

    async def move_some(self, targets: list[int]) -> None:
        """Each pair's slot to another server, one command for each, as a person would."""
        for pair in self.pairs:
            async with self.fleet.map() as store:
                one = (await store.read()).slots[pair.slot]
            others = [target for target in targets if target not in (one.owner, one.target)]
            if one.state == "S" and others:
                await self.ask(
                    "move", "--", slot_letters(pair.slot), str(self.chance.choice(others))
                )
                self.moves_asked += 1

    async def ask(self, *words: str) -> str:
        return await asyncio.to_thread(self.fleet.run, *words)

    async def make_queues(self, count: int) -> None:
        """New queues are made whatever happens to one server: at another."""
        client = self.pairs[0].sender
        made = [await create_queue(client, subscribe=False) for _ in range(count)]
        assert len({queue.recipient_id for queue in made}) == count

    async def gone_on(self, messages: int) -> None:
        """Until every pair has so many more answers, and so life goes on."""
        goals = {pair: pair.sent + messages for pair in self.pairs}
        async with asyncio.timeout(PATIENCE_S):
            for pair, goal in goals.items():
                while pair.sent < goal:  # noqa: ASYNC110 - it is polled beside everything else
                    await asyncio.sleep(0.02)

    async def server_is_up(self, number: int) -> None:
        await self.fleet.until(
            lambda m: (node := m.nodes.get(NodeId(number))) is not None and node.status == "up",
            60,
        )

    # The end

    def check(self) -> None:
        for pair in self.pairs:
            check_outcome(pair.outcome(), pair.sent)

    def report(self) -> str:
        waits = [wait for pair in self.pairs for wait in pair.waits]
        lines = [
            f"{len(waits)} messages, {self.moves_asked} moves asked for, "
            f"{sum(len(pair.outcome().sent_again) for pair in self.pairs)} answers lost, "
            f"{sum(pair.outcome().given_again for pair in self.pairs)} given again"
        ]
        for what, began, ended in self._phases:
            # A wait belongs to the phase in which it began, or during which it lasted.
            told = [w.lasted_s for w in waits if w.began < ended and w.began + w.lasted_s > began]
            longest = max(told, default=0.0)
            middle = sorted(told)[len(told) // 2] if told else 0.0
            lines.append(
                f"{what}: {ended - began:.1f} s, {len(told)} messages, longest pause"
                f" {longest * 1000:.0f} ms, median {middle * 1000:.0f} ms"
            )
        return "\n".join(lines)
