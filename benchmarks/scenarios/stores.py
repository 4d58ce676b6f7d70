"""What push asks of a store for one POST and for one hello, without the rest of the server.

The CPU is that of the process that asks; a server store's own is not in it. Round trips are
counted with one operation in flight: with more, stores that batch put several into one.

On a store with monthly tables the same is asked once more by a process that is in the next month
already, for user agents that are not: what a node asks right after the turn of a month.
"""

import asyncio
import os
import statistics
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from time import perf_counter, process_time

import msgspec
import uvloop

from benchmarks.measurement import Measurement, percentile
from benchmarks.stores import SETTINGS, Place
from benchmarks.target import Scale
from waystation.base.clock import SystemClock
from waystation.base.ids import dashed, new_uuid4
from waystation.push.model import ChannelId, MessageId, Notification, SortKey, Uaid, UserAgent
from waystation.push.store import PushStore
from waystation.storage.open import open_push_store

IN_FLIGHT = 64
COUNTED = 9  # operations whose round trips are counted
BATCH = 10  # what a hello asks for
NODE = "http://node.example:8081"
DATA = "A" * 1024
TTL_S = 600


class NextMonth(SystemClock):
    """The time of day, so much later that it is another month."""

    __slots__ = ()
    ahead_ms = 31 * 86_400_000

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms

    def now_us(self) -> int:
        return super().now_us() + self.ahead_ms * 1000

    @classmethod
    def now_ns(cls) -> int:
        return SystemClock.now_ns() + cls.ahead_ms * 1_000_000


class Agent:
    """One user agent with one subscription; each is used by one task at a time."""

    def __init__(self, store: PushStore, clock: SystemClock, same: "Agent | None" = None) -> None:
        self.uaid = Uaid(new_uuid4()) if same is None else same.uaid
        self.channel_id = ChannelId(new_uuid4()) if same is None else same.channel_id
        self._store = store
        self._clock = clock
        self._saved = 0

    def seen_by(self, store: PushStore, clock: SystemClock) -> "Agent":
        """The same user agent, for another process."""
        return Agent(store, clock, self)

    async def add(self) -> None:
        record = UserAgent(uaid=self.uaid, connected_at_ms=self._clock.now_ms(), node_id=NODE)
        assert await self._store.add_user_agent(record)
        assert await self._store.add_channel(self.uaid, self.channel_id, channels_max=10)

    async def remove(self) -> None:
        await self._store.remove_user_agent(self.uaid)

    async def post_direct(self) -> None:
        """Read once; the rest is between endpoint node and connection node."""
        recipient = await self._store.look_up(self.uaid, self.channel_id)
        assert recipient is not None
        assert recipient.subscribed

    async def post_stored(self) -> None:
        """Read, written, and read again for where the user agent is by then."""
        await self.post_direct()
        self._saved += 1
        now_ms = self._clock.now_ms()
        notification = Notification(
            self.channel_id,
            MessageId(os.urandom(100).hex()),  # as long as a real one
            SortKey(f"02:{now_ms}:{dashed(self.channel_id)}:{self._saved:x}"),
            now_ms,
            TTL_S,
            data=DATA,
            headers={"encoding": "aes128gcm"},
        )
        await self._store.save(self.uaid, notification)
        assert await self._store.get_user_agent(self.uaid) is not None

    async def hello(self) -> None:
        """Of a known user agent for whom nothing waits."""
        record = await self._store.get_user_agent(self.uaid)
        assert record is not None
        # A claim must be later than the one before, and many may come within a millisecond.
        connected_at_ms = max(self._clock.now_ms(), record.connected_at_ms + 1)
        claim = msgspec.structs.replace(record, node_id=NODE, connected_at_ms=connected_at_ms)
        assert await self._store.claim_route(claim)
        rows = await self._store.fetch(
            self.uaid, now_ms=self._clock.now_ms(), after=None, limit=BATCH
        )
        assert not rows


OPERATIONS: dict[str, Callable[[Agent], Awaitable[None]]] = {
    "POST, direct": Agent.post_direct,
    "hello": Agent.hello,
    "POST, stored": Agent.post_stored,  # last, so that nothing waits for a hello
}


def run(place: Place, scale: Scale) -> list[Measurement]:
    with (
        tempfile.TemporaryDirectory(prefix="waystation-bench-") as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(_measure(place, scale, Path(folder)))


async def _measure(place: Place, scale: Scale, data_dir: Path) -> list[Measurement]:
    clock = SystemClock()
    store = await open_push_store(place.url, data_dir=data_dir, settings=SETTINGS, clock=clock)
    agents = [Agent(store, clock) for _ in range(max(scale.store_agents, IN_FLIGHT))]
    try:
        await _each(agents, Agent.add)
        try:
            measured = await _all(place, store, agents, scale)
            if place.months:
                measured += await _behind(place, agents, scale, data_dir)
            return measured
        finally:
            await _each(agents, Agent.remove)
    finally:
        await store.close()


async def _all(
    place: Place, store: PushStore, agents: Sequence[Agent], scale: Scale
) -> list[Measurement]:
    return [
        await _one(place, store, agents, name=name, operation=operation, seconds=scale.seconds)
        for name, operation in OPERATIONS.items()
    ]


async def _behind(
    place: Place, agents: Sequence[Agent], scale: Scale, data_dir: Path
) -> list[Measurement]:
    clock = NextMonth()
    store = await open_push_store(place.url, data_dir=data_dir, settings=SETTINGS, clock=clock)
    try:
        old = msgspec.structs.replace(place, name=f"{place.name}, last month's")
        return await _all(old, store, [agent.seen_by(store, clock) for agent in agents], scale)
    finally:
        await store.close()


async def _one(
    place: Place,
    store: PushStore,
    agents: Sequence[Agent],
    *,
    name: str,
    operation: Callable[[Agent], Awaitable[None]],
    seconds: float,
) -> Measurement:
    round_trips = await _round_trips(store, agents, operation)
    latencies_ms: list[float] = []
    began, cpu_s, asked = perf_counter(), process_time(), _asked(store)

    async def repeat(mine: Sequence[Agent]) -> None:
        number = 0
        while (start := perf_counter()) < began + seconds:
            await operation(mine[number % len(mine)])
            latencies_ms.append((perf_counter() - start) * 1e3)
            number += 1
            await asyncio.sleep(0)  # a store in memory never waits

    async with asyncio.TaskGroup() as tasks:
        for number in range(IN_FLIGHT):
            tasks.create_task(repeat(agents[number::IN_FLIGHT]))
    operations, took_s = len(latencies_ms), perf_counter() - began
    cpu_us = (process_time() - cpu_s) * 1e6 / operations
    loaded = None if asked is None else ((_asked(store) or 0) - asked) / operations
    return Measurement(
        scenario=f"{place.name}: {name}",
        operation=name,
        operations=operations,
        seconds=took_s,
        cpu_us=cpu_us,
        p50_ms=percentile(latencies_ms, 0.5),
        p99_ms=percentile(latencies_ms, 0.99),
        round_trips=round_trips,
        round_trips_loaded=loaded,
        notes=place.notes,
    )


async def _round_trips(
    store: PushStore, agents: Sequence[Agent], operation: Callable[[Agent], Awaitable[None]]
) -> float | None:
    """The median, because a store may have upkeep of its own to do meanwhile."""
    counted: list[int] = []
    for number in range(COUNTED):
        before = _asked(store)
        await operation(agents[number % len(agents)])
        after = _asked(store)
        if before is not None and after is not None:
            counted.append(after - before)
    return statistics.median(counted) if counted else None


def _asked(store: PushStore) -> int | None:
    """Round trips so far; None of a store that makes none."""
    stats = getattr(store, "stats", None)
    return getattr(stats(), "round_trips", None) if stats is not None else None


async def _each(agents: Sequence[Agent], operation: Callable[[Agent], Awaitable[None]]) -> None:
    async def repeat(mine: Sequence[Agent]) -> None:
        for agent in mine:
            await operation(agent)

    async with asyncio.TaskGroup() as tasks:
        for number in range(IN_FLIGHT):
            tasks.create_task(repeat(agents[number::IN_FLIGHT]))
