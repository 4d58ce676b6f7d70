"""The ways of the world of presence: from a node to Redis, and from a guest to a node.

Rule 1: what travels one way over one line keeps its order, and takes its time.
Rule 2: when a line breaks, what is on it is lost: requests that have not arrived, and answers of
        those that have. Whoever asked learns only that the store does not answer.
Rule 3: what Redis publishes comes over a line of its own, which may lose some of it.
Rule 4: a node that sleeps (a process that is stopped) hears nothing and says nothing; all of it
        reaches it when it wakes.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, cast

from waystation.presence.transport.port import Gone, GrpcStatus, StreamHandler
from waystation.push.errors import StoreUnavailableError
from waystation.storage.redis.bell import Bell
from waystation.storage.redis.link import Argument, Command, LinkStats, Reply
from waystation.storage.redis.presence import RedisPresenceStore
from waystation.storage.redis.presence_nodes import NodeRows
from waystation.storage.redis.presence_rows import PartyKeys
from waystation.storage.redis.scripts import Script
from waystation.storage.redis.url import Address
from waystation.testing.presence_world_redis import RedisModel, raw

PATIENCE_S: Final = 0.8  # of whoever asks the store
APART_S: Final = 1e-6  # what is sent later arrives later
SHARDS: Final = 2
WRITABLE_MAX: Final = 30  # messages on a wire that nobody reads


class Luck:
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


class Sleeper(Protocol):
    """A process that may be stopped and go on later."""

    def when_awake(self, call: Callable[[], None]) -> None:
        """At once if it is awake, in order when it wakes otherwise; never if it is dead."""
        ...


class Lane:
    """One direction of a line."""

    def __init__(self, luck: Luck) -> None:
        self._luck = luck
        self._last_at = 0.0

    def carry(self, call: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        at = max(self._last_at + APART_S, loop.time() + self._luck.delay_s())
        self._last_at = at
        loop.call_at(at, call)


# --- to Redis ------------------------------------------------------------------------------------


class RedisWay:
    """`Session` for the store of one life of a node."""

    def __init__(self, redis: RedisModel, luck: Luck, sleeper: Sleeper) -> None:
        self.stats = LinkStats()
        self.redis = redis
        self.luck = luck
        self.sleeper = sleeper
        self._forth, self._back = Lane(luck), Lane(luck)
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
        wait_s = self.luck.rng.choice((0.001, PATIENCE_S))
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


class Ear:
    """Stands where the store has its bell."""

    def __init__(self, way: RedisWay, hear: Callable[[str, bytes], None]) -> None:
        self._way = way
        self._hear = hear
        self._lane = Lane(way.luck)
        self._channels: dict[bytes, None] = {}
        self._deaf = False
        way.on_break = self._broke

    async def subscribe(self, channel: str) -> None:
        name = raw(channel)
        if name not in self._channels:
            await self._way.ask(lambda: self._way.redis.listen(name, self._heard))
            self._channels[name] = None

    def unsubscribe(self, channel: str) -> None:
        self._channels.pop(raw(channel), None)
        self._way.redis.unlisten(raw(channel), self._heard)

    def _heard(self, channel: bytes, data: bytes) -> None:
        way = self._way
        line = way.line
        if way.luck.hits(way.luck.bell_lost):
            return

        def arrive() -> None:
            if line == way.line and channel in self._channels:
                way.sleeper.when_awake(lambda: self._hear(channel.decode(), data))

        self._lane.carry(arrive)

    def _broke(self) -> None:
        for channel in self._channels:
            self._way.redis.unlisten(channel, self._heard)
        if not self._deaf and not self._way.dead:
            self._deaf = True
            asyncio.get_running_loop().call_later(0.05, self._again)

    def _again(self) -> None:
        if self._way.broken:
            if not self._way.dead:
                asyncio.get_running_loop().call_later(0.2, self._again)
            return
        self._deaf = False
        for channel in self._channels:
            self._way.redis.listen(channel, self._heard)

    async def close(self) -> None:
        for channel in self._channels:
            self._way.redis.unlisten(channel, self._heard)


class WorldStore(RedisPresenceStore):
    """The store of production on the Redis of the world, with times that fit it."""

    reap_ms = 3000
    lapse_from_ms = 1500
    second_look_ms = 1500

    def __init__(self, way: RedisWay, *, log_max: int, linger_s: float) -> None:
        keys = PartyKeys("pp", shards=SHARDS)
        NodeRows.__init__(self, way, keys, log_max=log_max, linger_s=linger_s)
        self._min_replicas = 0
        self._listener = None
        self._bell = cast(Bell, Ear(way, self._hear))


# --- to a node -----------------------------------------------------------------------------------


class Caller(Protocol):
    """A guest's end of a wire."""

    def heard(self, wire: "Wire", data: bytes) -> None: ...

    def ended(self, wire: "Wire", status: GrpcStatus | None) -> None:
        """None: the wire is broken."""
        ...


class Wire:
    """One call of `beginStream`: a `Stream` for the broker, a line for the guest."""

    peer = "guest"
    authorization = None

    def __init__(
        self, handler: StreamHandler, caller: Caller, luck: Luck, sleeper: Sleeper
    ) -> None:
        self.holder: Any = None
        self._handler = handler
        self._caller = caller
        self._luck = luck
        self._sleeper = sleeper
        self._up, self._down = Lane(luck), Lane(luck)
        self._inbox: list[bytes] = []  # read by nobody: reading is paused
        self._outbox: list[Callable[[], None]] = []  # the guest does not read
        self._paused = False
        self._blocked = False
        self._stalled = False
        self.cut = False  # nothing arrives any more, whether or not anybody knows
        self._node_over = False  # the broker has finished it, or was told that it closed
        self.guest_over = False
        self._up.carry(lambda: self._at_node(lambda: handler.opened(self)))

    def _at_node(self, call: Callable[[], None]) -> None:
        def now() -> None:
            if not self._node_over:
                call()

        if not self.cut:
            self._sleeper.when_awake(now)

    # the guest's side

    def say(self, data: bytes) -> None:
        if not self.guest_over:
            self._up.carry(lambda: self._at_node(lambda: self._read(data)))

    def half_close(self) -> None:
        self._up.carry(lambda: self._at_node(lambda: self._handler.half_closed(self)))

    def hang_up(self) -> None:
        """The guest cancels; the node hears of it, if the line still carries."""
        if not self.guest_over:
            self.guest_over = True
            self._up.carry(lambda: self._at_node(lambda: self._close(Gone.RESET)))

    def stall(self, *, stalled: bool) -> None:
        """Whether the guest reads."""
        self._stalled = stalled
        if not stalled:
            waiting, self._outbox = self._outbox, []
            for call in waiting:
                call()
            if self._blocked:
                self._blocked = False
                self._at_node(lambda: self._handler.unblocked(self))

    def break_off(self, *, node_learns_s: float | None, guest_learns_s: float | None) -> None:
        """The line carries nothing any more; each end learns of it in its time, or never."""
        if self.cut:
            return
        self.cut = True
        loop = asyncio.get_running_loop()
        if node_learns_s is not None:
            loop.call_later(
                node_learns_s,
                self._sleeper.when_awake,
                lambda: None if self._node_over else self._close(Gone.TRANSPORT),
            )
        if guest_learns_s is not None:
            loop.call_later(guest_learns_s, self._end_for_guest, None)

    def _end_for_guest(self, status: GrpcStatus | None) -> None:
        if not self.guest_over:
            self.guest_over = True
            self._caller.ended(self, status)

    # the node's side

    def _read(self, data: bytes) -> None:
        if self._paused:
            self._inbox.append(data)
        else:
            self._handler.message(self, data)

    def _close(self, why: Gone) -> None:
        self._node_over = True
        self._handler.closed(self, why)

    @property
    def writable(self) -> bool:
        return not self._blocked

    def send(self, message: bytes) -> None:
        assert not self._node_over, "nothing is sent after the end"
        self._deliver(lambda: self._caller.heard(self, message))

    def finish(self, status: GrpcStatus, detail: str = "", *, discard_unsent: bool = False) -> None:
        assert not self._node_over, "a stream ends once"
        self._node_over = True
        if discard_unsent:
            self._outbox.clear()
        self._deliver(lambda: self._end_for_guest(status))

    def _deliver(self, call: Callable[[], None]) -> None:
        def arrive() -> None:
            if self.cut or self.guest_over:
                return
            if self._stalled:
                self._outbox.append(call)
                self._blocked = self._blocked or len(self._outbox) > WRITABLE_MAX
            else:
                call()

        if not self.cut:
            self._down.carry(arrive)

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        waiting, self._inbox = self._inbox, []
        for data in waiting:
            self._at_node(lambda data=data: self._read(data))


class WorldTransport:
    """`Transport` of a node: whoever knows it may call."""

    def __init__(self, handler: StreamHandler, port: int, luck: Luck, sleeper: Sleeper) -> None:
        self.port = port
        self._handler = handler
        self._luck = luck
        self._sleeper = sleeper
        self.accepting = False
        self._wires: dict[Wire, None] = {}

    @property
    def connections(self) -> int:
        return len(self._wires)

    async def start(self) -> None:
        self.accepting = True

    def stop_accepting(self) -> None:
        self.accepting = False

    def reload_tls(self) -> None: ...

    def call(self, caller: Caller) -> Wire | None:
        """None: nobody listens there."""
        if not self.accepting:
            return None
        for wire in [wire for wire in self._wires if wire.cut or wire.guest_over]:
            del self._wires[wire]
        wire = Wire(self._handler, caller, self._luck, self._sleeper)
        self._wires[wire] = None
        return wire

    async def close(self, grace_s: float = 0.0) -> None:
        self.accepting = False
        await asyncio.sleep(grace_s / 10)
        self.break_all(guest_learns=True)

    def break_all(self, *, guest_learns: bool) -> None:
        for wire in self._wires:
            learns_s = self._luck.rng.uniform(0, 0.2)
            wire.break_off(node_learns_s=None, guest_learns_s=learns_s if guest_learns else None)
        self._wires.clear()
