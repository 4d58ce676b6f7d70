"""Simulated connections between nodes and Redis; those of clients are in `tests.sim.sockets`.

Rule 1: what travels in one direction of a connection keeps its order and takes some time.
Rule 2: when a connection breaks, requests that have not arrived and answers that have not returned
        are lost. The caller learns only that the store does not answer.
Rule 3: published messages travel on a connection of their own, which may lose some of them.
Rule 4: a stopped process receives and sends nothing; everything reaches it when it continues.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, cast

from tests.sim.presence.redis import RedisModel, raw
from waystation.base.errors import StoreUnavailableError
from waystation.storage.redis.connection import Argument, Command, RedisStats, Reply
from waystation.storage.redis.presence import RedisPresenceStore
from waystation.storage.redis.presence_nodes import NodeRows
from waystation.storage.redis.presence_rows import PartyKeys
from waystation.storage.redis.scripts import Script
from waystation.storage.redis.subscriber import Subscriber
from waystation.storage.redis.url import Address

PATIENCE_S: Final = 0.8  # of whoever asks the store
APART_S: Final = 1e-6  # what is sent later arrives later
SHARDS: Final = 2


class FaultRates:
    """How long things take and how often they fail; all of it drawn from one source."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.slow_share = rng.choice((0.02, 0.1))
        self.bell_lost = rng.choice((0.0, 0.03, 0.1))
        self.calm = False

    def delay_s(self) -> float:
        if self.calm or self.rng.random() >= self.slow_share:
            return 0.0005 + 0.01 * self.rng.random()
        return 0.3 * self.rng.random()

    def hits(self, share: float) -> bool:
        return not self.calm and self.rng.random() < share


class Process(Protocol):
    """A process that may be stopped and go on later."""

    def when_awake(self, call: Callable[[], None]) -> None:
        """At once if it is awake, in order when it wakes otherwise; never if it is dead."""
        ...


class DelayedDelivery:
    """One direction of a line."""

    def __init__(self, faults: FaultRates) -> None:
        self._faults = faults
        self._last_at = 0.0

    def carry(self, call: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        at = max(self._last_at + APART_S, loop.time() + self._faults.delay_s())
        self._last_at = at
        loop.call_at(at, call)


# --- to Redis ------------------------------------------------------------------------------------


class SimRedisConnection:
    """`Session` for the store of one process of a node."""

    def __init__(self, redis: RedisModel, faults: FaultRates, sleeper: Process) -> None:
        self.stats = RedisStats()
        self.redis = redis
        self.faults = faults
        self.sleeper = sleeper
        self._forth, self._back = DelayedDelivery(faults), DelayedDelivery(faults)
        self._waiting: dict[asyncio.Future[Any], None] = {}
        self._broken_until_s = 0.0
        self.line = 0  # how often it broke
        self.dead = False
        self.on_break: Callable[[], None] = lambda: None

    @property
    def broken(self) -> bool:
        return self.dead or asyncio.get_running_loop().time() < self._broken_until_s

    def break_for(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._broken_until_s = loop.time() + seconds
        self.line += 1
        for answer in list(self._waiting):
            self._give_up_later(answer)
        self.on_break()

    def die(self) -> None:
        """The process is gone: nobody hears an answer any more."""
        self.dead = True
        self.line += 1
        self._waiting.clear()
        self.on_break()

    def _give_up_later(self, answer: "asyncio.Future[Any]") -> None:
        loop = asyncio.get_running_loop()
        wait_s = self.faults.rng.choice((0.001, PATIENCE_S))
        loop.call_later(wait_s, self.sleeper.when_awake, lambda: self._fail(answer))

    def _fail(self, answer: "asyncio.Future[Any]") -> None:
        if not answer.done():
            self._waiting.pop(answer, None)
            answer.set_exception(StoreUnavailableError("Redis does not answer"))

    def ask(self, execute: Callable[[], Any]) -> "asyncio.Future[Any]":
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_seen)
        self._waiting[answer] = None
        self.sleeper.when_awake(lambda: self._send(execute, answer))
        return answer

    def _send(self, execute: Callable[[], Any], answer: "asyncio.Future[Any]") -> None:
        if self.broken:
            if not self.dead:
                self._give_up_later(answer)
            return
        line = self.line

        def arrive() -> None:
            if line == self.line:
                reply = execute()
                self._back.carry(lambda: self.sleeper.when_awake(lambda: answered(reply)))

        def answered(reply: Any) -> None:
            if line == self.line and not answer.done():
                self._waiting.pop(answer, None)
                answer.set_result(reply)

        self._forth.carry(arrive)

    # What the store asks of a session.

    async def run(self, key: str, commands: Sequence[Command]) -> list[Reply]:
        answers = [self.ask(lambda one=one: self.redis.run(one)) for one in commands]
        return [await answer for answer in answers]

    async def run_script(self, script: Script, keys: Sequence[str], *args: Argument) -> Reply:
        return await self.ask(lambda: self.redis.run_script(script.name, keys, args))

    async def run_everywhere(self, command: Command) -> list[Reply]:
        return await self.run("", (command,))

    async def server_of(self, key: str) -> Address:
        return Address("redis", 6379)

    async def close(self) -> None: ...


def _seen(answer: "asyncio.Future[Any]") -> None:
    """Whoever asked may have stopped at an earlier one."""
    if not answer.cancelled():
        answer.exception()


class SimSubscriber:
    """Stands in for the store's `Subscriber`."""

    def __init__(
        self, redis_connection: SimRedisConnection, hear: Callable[[str, bytes], None]
    ) -> None:
        self._redis_connection = redis_connection
        self._hear = hear
        self._delivery = DelayedDelivery(redis_connection.faults)
        self._channels: dict[bytes, None] = {}
        self._deaf = False
        redis_connection.on_break = self._broke

    async def subscribe(self, channel: str) -> None:
        name = raw(channel)
        if name not in self._channels:
            await self._redis_connection.ask(
                lambda: self._redis_connection.redis.listen(name, self._heard)
            )
            self._channels[name] = None

    def unsubscribe(self, channel: str) -> None:
        self._channels.pop(raw(channel), None)
        self._redis_connection.redis.unlisten(raw(channel), self._heard)

    def _heard(self, channel: bytes, data: bytes) -> None:
        redis_connection = self._redis_connection
        line = redis_connection.line
        if redis_connection.faults.hits(redis_connection.faults.bell_lost):
            return

        def arrive() -> None:
            if line == redis_connection.line and channel in self._channels:
                redis_connection.sleeper.when_awake(lambda: self._hear(channel.decode(), data))

        self._delivery.carry(arrive)

    def _broke(self) -> None:
        for channel in self._channels:
            self._redis_connection.redis.unlisten(channel, self._heard)
        if not self._deaf and not self._redis_connection.dead:
            self._deaf = True
            asyncio.get_running_loop().call_later(0.05, self._again)

    def _again(self) -> None:
        if self._redis_connection.broken:
            if not self._redis_connection.dead:
                asyncio.get_running_loop().call_later(0.2, self._again)
            return
        self._deaf = False
        for channel in self._channels:
            self._redis_connection.redis.listen(channel, self._heard)

    async def close(self) -> None:
        for channel in self._channels:
            self._redis_connection.redis.unlisten(channel, self._heard)


class SimPresenceStore(RedisPresenceStore):
    """The store of production on the Redis of the world, with times that fit it."""

    reap_ms = 3000
    lapse_from_ms = 1500
    second_look_ms = 1500

    def __init__(
        self, redis_connection: SimRedisConnection, *, log_max: int, linger_s: float
    ) -> None:
        keys = PartyKeys("pp", shards=SHARDS)
        NodeRows.__init__(self, redis_connection, keys, log_max=log_max, linger_s=linger_s)
        self._min_replicas = 0
        self._listener = None
        self._subscriber = cast(Subscriber, SimSubscriber(redis_connection, self._hear))
