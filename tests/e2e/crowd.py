"""Devices that come and go, and app servers that post to them, all under the eyes of a witness.

Everything that looks like chance comes from one seed; what remains is the machine's timing.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidHandshake

from tests.e2e.wire_clients import Message, UserAgent, from_b64url, post
from tests.e2e.witness import Line, Subscription, Witness

TROUBLE = (OSError, ConnectionClosed, InvalidHandshake, TimeoutError, asyncio.IncompleteReadError)
TTL_S = 300
ALPHABET = "abc"  # topics: few, so that they replace each other


class Device:
    """A user agent with a temper: how long it stays, how long it takes for an ack."""

    def __init__(
        self,
        name: str,
        urls: Sequence[str],
        witness: Witness,
        chance: random.Random,
        *,
        restless: float,
        slow: float,
    ) -> None:
        self.name = name
        self.endpoints: list[str] = []
        self._urls = urls
        self._agent = UserAgent(urls[0])
        self._channels: dict[str, int] = {}
        self._witness = witness
        self._chance = chance
        self._restless = chance.random() < restless
        self._slow = chance.random() < slow
        self.calm = False  # stays, and acks at once

    async def subscribe(self, count: int) -> None:
        await self._agent.connect()
        for index in range(count):
            reply = await self._agent.register()
            self.endpoints.append(reply["pushEndpoint"])
            self._channels[reply["channelID"]] = index
        await self._agent.leave()

    async def live(self) -> None:
        """Until cancelled."""
        try:
            while True:
                line = Line()
                try:
                    await self._connect()
                    await self._stay(line)
                except TROUBLE:
                    line.ended = time.monotonic()
                await self._agent.vanish()
                pause_s = 0.05 if self.calm else self._chance.uniform(0.02, 0.4)
                await asyncio.sleep(pause_s)
        finally:
            await self._agent.vanish()

    @property
    def uaid(self) -> str:
        return self._agent.uaid

    async def _connect(self) -> None:
        known = self._agent.uaid
        if len(self._urls) > 1:
            self._agent.url = self._chance.choice(self._urls)
        await self._agent.connect()
        if self._agent.uaid != known:
            self._witness.problems.append(f"{self.name} was given another uaid")
            self._agent.uaid = known

    async def _stay(self, line: Line) -> None:
        """Receive and ack until it is time to go."""
        restless = self._restless and not self.calm
        leaves_at = time.monotonic() + (self._chance.uniform(0.2, 2.5) if restless else 3600)
        owed: list[tuple[float, Message]] = []
        while (now := time.monotonic()) < leaves_at:
            due = [message for at, message in owed if at <= now]
            if due:
                owed = [(at, message) for at, message in owed if at > now]
                await self._ack(line, due)
                continue
            wake_at = min([leaves_at, now + 0.5, *(at for at, _ in owed)])
            try:
                message = await self._agent.receive(max(0.001, wake_at - now))
            except TimeoutError:
                continue
            self._got(message)
            slow = self._slow and not self.calm
            delay_s = self._chance.uniform(0.0, 0.5) if slow else 0.0
            owed.append((time.monotonic() + delay_s, message))
        await self._go(line)

    async def _go(self, line: Line) -> None:
        """What it still owes an ack for comes again."""
        if self._chance.random() < 0.5:
            line.ended = time.monotonic()
            await self._agent.vanish()
            return
        socket = self._agent.socket
        await self._agent.leave()
        line.ended = time.monotonic()
        line.graceful = socket.close_code not in (None, 1006)

    async def _ack(self, line: Line, due: list[Message]) -> None:
        now = time.monotonic()
        await self._agent.ack(*due)  # or it raises: messages outlive their connection in a buffer
        for message in due:
            self._witness.acked(number_of(message), line, now)

    def _got(self, message: Message) -> None:
        assert message["messageType"] == "notification", message
        index = self._channels[message["channelID"]]
        self._witness.got(number_of(message), (self.name, index), time.monotonic())


def number_of(message: Message) -> int:
    """The app server's number is all that a payload says."""
    return int(from_b64url(message["data"]))


class Crowd:
    """Everybody at once."""

    def __init__(
        self,
        *urls: str,
        seed: int,
        devices: int = 20,
        app_servers: int = 4,
        topics: float = 0.2,
        restless: float = 0.4,
        slow: float = 0.3,
    ) -> None:
        """With several nodes, a device connects to any of them. The last three are shares: of posts
        that have a topic, of devices that do not stay, of those that take their time to ack."""
        chance = random.Random(seed)
        self._topics = topics
        self.witness = Witness()
        self.devices = [
            Device(
                f"d{number}",
                urls,
                self.witness,
                random.Random(chance.random()),
                restless=restless,
                slow=slow,
            )
            for number in range(devices)
        ]
        self._senders = [random.Random(chance.random()) for _ in range(app_servers)]
        self._targets: list[tuple[Subscription, str]] = []

    async def subscribe(self) -> None:
        for device in self.devices:
            await device.subscribe(2)
            self._targets += [
                ((device.name, index), endpoint) for index, endpoint in enumerate(device.endpoints)
            ]

    @contextlib.asynccontextmanager
    async def alive(self) -> AsyncIterator[None]:
        """Devices live; within, `posting` puts them under load."""
        async with going_on(*(device.live() for device in self.devices)):
            yield

    @contextlib.asynccontextmanager
    async def posting(self, pause_s: float = 0.02) -> AsyncIterator[None]:
        async with going_on(*(self._post(chance, pause_s) for chance in self._senders)):
            yield

    async def _post(self, chance: random.Random, pause_s: float) -> None:
        while True:
            subscription, endpoint = chance.choice(self._targets)
            topic = chance.choice(ALPHABET) if chance.random() < self._topics else None
            number = self.witness.began(subscription, topic, time.monotonic())
            try:
                answer = await post(endpoint, str(number).encode(), ttl=TTL_S, topic=topic)
            except (*TROUBLE, asyncio.CancelledError) as exc:
                # It may have been taken, and the answer lost.
                self.witness.ended(number, "unknown", time.monotonic())
                if isinstance(exc, asyncio.CancelledError):
                    raise
                await asyncio.sleep(0.1)
            else:
                if answer.status not in (201, 503):
                    self.witness.problems.append(f"#{number} was answered {answer.status}")
                # 503 promises nothing, but the notification may have come as far as storage.
                outcome = "accepted" if answer.status == 201 else "unknown"
                self.witness.ended(number, outcome, time.monotonic())
            await asyncio.sleep(chance.uniform(0, 2 * pause_s))

    async def calm_down(self, timeout_s: float = 30.0) -> None:
        """Everybody connects and acks, until nothing is missing and all is acked."""
        for device in self.devices:
            device.calm = True
        deadline = time.monotonic() + timeout_s
        while self.witness.missing() or self.witness.unacked():
            if time.monotonic() > deadline:
                return  # the verdict says what is missing
            await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def going_on(*coros: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """As long as the block lasts."""
    tasks = [asyncio.create_task(coro) for coro in coros]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
