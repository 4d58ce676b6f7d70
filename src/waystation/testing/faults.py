"""Fault injection: a push store that fails and is slow, a proxy that delays, stalls and cuts.

`FaultyStore` wraps a store that never suspends, on a simulated loop. Rule 1: a call may take effect
late, fail before its effect, or fail after its effect. Rule 2: a call takes effect even if its
caller is cancelled (a killed process), because it was sent. Rule 3: reads and writes of one caller
may overtake each other, as on pooled connections.

`FaultyProxy` forwards real sockets on loopback.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import msgspec

from waystation.base.errors import StoreUnavailableError
from waystation.push.model import (
    ChannelId,
    HandedBack,
    MessageId,
    MessageStatus,
    Milestone,
    MilestoneNote,
    Notification,
    Recipient,
    Replaced,
    Route,
    SavedUpdate,
    SortKey,
    Uaid,
    Update,
    UserAgent,
)
from waystation.push.store import CursorStore, PushStore

T = TypeVar("T")

READ_BYTES = 65_536
ON_THE_WAY_MAX = 256  # delayed pieces of one direction


class StoreLuck(msgspec.Struct):
    """Probabilities of faults, drawn from one random source."""

    rng: random.Random
    waits: float = 0.5  # share of calls that do not answer at once
    wait_s: float = 0.03
    slow: float = 0.05  # share of calls that take long, before or after their effect
    slow_s: float = 3.0
    fails_before: float = 0.0
    fails_after: float = 0.0
    down: bool = False
    calm: bool = False


class StoreWitness(Protocol):
    """Observer of writes at the time of their effect."""

    def saved(
        self, source: str, uaid: Uaid, notifications: Sequence[Notification], *, ghost: bool
    ) -> None:
        """`ghost`: the caller was killed before the effect."""
        ...

    def fetched(self, source: str, uaid: Uaid, rows: Sequence[Notification]) -> None: ...

    def forgotten(
        self, source: str, uaid: Uaid, rows: Sequence[tuple[SortKey, MessageId]]
    ) -> None: ...

    def channel_removed(self, uaid: Uaid, channel_id: ChannelId) -> None: ...

    def user_agent_removed(self, uaid: Uaid) -> None: ...

    def failed(self, source: str, call: str, uaid: Uaid, *, applied: bool) -> None: ...


class FaultyStore:
    """One node's view of a shared `PushStore`, with its own faults."""

    def __init__(
        self, inner: PushStore, luck: StoreLuck, witness: StoreWitness, source: str
    ) -> None:
        self._inner = inner
        self._luck = luck
        self._witness = witness
        self._source = source
        self.ghost = False  # set when this node has been killed
        self._loop = asyncio.get_running_loop()

    async def _call(
        self,
        name: str,
        uaid: Uaid,
        coro: Coroutine[Any, Any, T],
        note: Callable[[T], None] | None = None,
    ) -> T:
        luck = self._luck
        draw = luck.rng.random
        if luck.calm:
            return self._apply(coro, note)
        fails_before = luck.down or draw() < luck.fails_before
        fails_after = not fails_before and draw() < luck.fails_after
        before_s = after_s = 0.0
        if draw() < luck.waits:
            slow = draw() < luck.slow
            whole_s = (luck.slow_s if slow else luck.wait_s) * draw()
            before_s = whole_s * draw()
            after_s = whole_s - before_s
        if fails_before:
            coro.close()
            if before_s:
                await asyncio.sleep(before_s)
            self._fail(name, uaid, applied=False)
        if not before_s:
            result = self._apply(coro, note)
        else:
            answered: asyncio.Future[T] = self._loop.create_future()
            self._loop.call_later(before_s, self._arrive, coro, note, answered, after_s)
            result = await answered
        if fails_after:
            self._fail(name, uaid, applied=True)
        return result

    def _fail(self, name: str, uaid: Uaid, *, applied: bool) -> None:
        self._witness.failed(self._source, name, uaid, applied=applied)
        raise StoreUnavailableError(f"{name}: the store did not answer")

    def _apply(self, coro: Coroutine[Any, Any, T], note: Callable[[T], None] | None) -> T:
        try:
            coro.send(None)
        except StopIteration as stop:
            if note is not None:
                note(stop.value)
            return stop.value
        raise AssertionError("the wrapped store must not suspend")

    def _arrive(
        self,
        coro: Coroutine[Any, Any, T],
        note: Callable[[T], None] | None,
        answered: "asyncio.Future[T]",
        after_s: float,
    ) -> None:
        result = self._apply(coro, note)
        self._loop.call_later(after_s, _answer, answered, result)

    # User agents and routes

    async def get_user_agent(self, uaid: Uaid) -> UserAgent | None:
        return await self._call("get_user_agent", uaid, self._inner.get_user_agent(uaid))

    async def look_up(self, uaid: Uaid, channel_id: ChannelId) -> Recipient | None:
        return await self._call("look_up", uaid, self._inner.look_up(uaid, channel_id))

    async def add_user_agent(self, user_agent: UserAgent) -> bool:
        call = self._inner.add_user_agent(user_agent)
        return await self._call("add_user_agent", user_agent.uaid, call)

    async def claim_route(self, user_agent: UserAgent) -> bool:
        call = self._inner.claim_route(user_agent)
        return await self._call("claim_route", user_agent.uaid, call)

    async def clear_route(self, uaid: Uaid, seen: Route) -> bool:
        return await self._call("clear_route", uaid, self._inner.clear_route(uaid, seen))

    async def remove_user_agent(self, uaid: Uaid) -> bool:
        return await self._call(
            "remove_user_agent",
            uaid,
            self._inner.remove_user_agent(uaid),
            lambda _: self._witness.user_agent_removed(uaid),
        )

    # Subscriptions

    async def add_channel(self, uaid: Uaid, channel_id: ChannelId, *, channels_max: int) -> bool:
        call = self._inner.add_channel(uaid, channel_id, channels_max=channels_max)
        return await self._call("add_channel", uaid, call)

    async def get_channels(self, uaid: Uaid) -> frozenset[ChannelId]:
        return await self._call("get_channels", uaid, self._inner.get_channels(uaid))

    async def remove_channel(self, uaid: Uaid, channel_id: ChannelId) -> bool:
        return await self._call(
            "remove_channel",
            uaid,
            self._inner.remove_channel(uaid, channel_id),
            lambda _: self._witness.channel_removed(uaid, channel_id),
        )

    # Notifications

    async def save(self, uaid: Uaid, notification: Notification) -> Replaced | None:
        return await self._call(
            "save",
            uaid,
            self._inner.save(uaid, notification),
            lambda _: self._witness.saved(self._source, uaid, [notification], ghost=self.ghost),
        )

    async def save_new(self, uaid: Uaid, notification: Notification) -> bool:
        def note(applied: bool) -> None:
            if applied:
                self._witness.saved(self._source, uaid, [notification], ghost=self.ghost)

        return await self._call("save_new", uaid, self._inner.save_new(uaid, notification), note)

    async def save_if_newer(self, uaid: Uaid, notifications: Sequence[Notification]) -> HandedBack:
        return await self._call(
            "save_if_newer",
            uaid,
            self._inner.save_if_newer(uaid, notifications),
            lambda _: self._witness.saved(self._source, uaid, notifications, ghost=self.ghost),
        )

    async def fetch(
        self, uaid: Uaid, *, now_ms: int, after: SortKey | None, limit: int
    ) -> Sequence[Notification]:
        return await self._call(
            "fetch",
            uaid,
            self._inner.fetch(uaid, now_ms=now_ms, after=after, limit=limit),
            lambda rows: self._witness.fetched(self._source, uaid, rows),
        )

    async def forget(self, uaid: Uaid, rows: Sequence[tuple[SortKey, MessageId]]) -> int:
        return await self._call(
            "forget",
            uaid,
            self._inner.forget(uaid, rows),
            lambda _: self._witness.forgotten(self._source, uaid, rows),
        )

    # SimplePush

    async def save_update(self, uaid: Uaid, update: Update) -> SavedUpdate:
        return await self._call("save_update", uaid, self._inner.save_update(uaid, update))

    async def fetch_updates(self, uaid: Uaid, *, limit: int) -> Sequence[Update]:
        call = self._inner.fetch_updates(uaid, limit=limit)
        return await self._call("fetch_updates", uaid, call)

    async def forget_update(self, uaid: Uaid, channel_id: ChannelId, version: int) -> bool:
        call = self._inner.forget_update(uaid, channel_id, version)
        return await self._call("forget_update", uaid, call)

    # The other operations guarantee nothing, so they have no faults.

    async def advance_cursor(self, uaid: Uaid, up_to_ms: int) -> bool:
        return isinstance(self._inner, CursorStore) and await self._inner.advance_cursor(
            uaid, up_to_ms
        )

    async def publish_broadcast(self, broadcast_id: str, version: str) -> bool:
        return await self._inner.publish_broadcast(broadcast_id, version)

    async def get_broadcasts(self) -> Mapping[str, str]:
        return await self._inner.get_broadcasts()

    async def note_milestones(self, notes: Sequence[MilestoneNote]) -> None:
        await self._inner.note_milestones(notes)

    async def get_status(self, message_id: MessageId, *, now_ms: int) -> MessageStatus | None:
        return await self._inner.get_status(message_id, now_ms=now_ms)

    async def track(
        self, reliability_id: str, milestone: Milestone, *, at_ms: int, expires_at_ms: int
    ) -> None:
        await self._inner.track(reliability_id, milestone, at_ms=at_ms, expires_at_ms=expires_at_ms)

    async def count_milestones(self, *, now_ms: int) -> Mapping[str, int]:
        return await self._inner.count_milestones(now_ms=now_ms)

    async def sweep(self, *, now_ms: int, limit: int) -> int:
        return await self._inner.sweep(now_ms=now_ms, limit=limit)

    async def check(self) -> None:
        await self._inner.check()

    async def close(self) -> None: ...


def _answer(answered: "asyncio.Future[T]", result: T) -> None:
    if not answered.done():  # else the caller was killed
        answered.set_result(result)


class FaultyProxy:
    """`async with FaultyProxy(host, port) as proxy`: connect to `proxy.port` instead."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._target_port = port
        self._server: asyncio.Server | None = None
        self._pairs: dict[asyncio.Task[None], tuple[asyncio.StreamWriter, ...]] = {}
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.refusing = False  # new connections are cut at once
        self.delay_s = 0.0  # latency in each direction
        self.accepted = 0
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        self._flowing.set()
        if self._pairs:
            await asyncio.wait(list(self._pairs))

    def stall(self) -> None:
        """Connections stay open, but no data passes in either direction."""
        self._flowing.clear()

    def resume(self) -> None:
        self._flowing.set()

    def cut(self) -> None:
        """Resets every connection on both sides."""
        for task, writers in list(self._pairs.items()):
            for writer in writers:
                writer.transport.abort()
            task.cancel()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        if self.refusing:
            writer.transport.abort()
            return
        self._pairs[task] = (writer,)
        try:
            far_reader, far_writer = await asyncio.open_connection(self._host, self._target_port)
            self._pairs[task] = (writer, far_writer)
            await self._join((reader, far_writer), (far_reader, writer))
        except (OSError, asyncio.CancelledError):
            pass  # the other side is closed, or this direction was cut
        finally:
            for end in self._pairs.pop(task):
                end.transport.abort()

    async def _join(self, *ways: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for reader, writer in ways:
                    # Latency without a bandwidth limit: pieces are delayed in parallel.
                    way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(ON_THE_WAY_MAX)
                    group.create_task(self._send_off(reader, way))
                    group.create_task(self._hand_over(way, writer))
        except* OSError:
            pass  # one side is closed, so the other is closed too

    async def _send_off(
        self, reader: asyncio.StreamReader, way: "asyncio.Queue[tuple[float, bytes]]"
    ) -> None:
        now = asyncio.get_running_loop().time
        data = b"-"
        while data:  # the end of the stream is delayed too
            data = await reader.read(READ_BYTES)
            await way.put((now() + self.delay_s, data))

    async def _hand_over(
        self, way: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter
    ) -> None:
        now = asyncio.get_running_loop().time
        while True:
            due, data = await way.get()
            if (ahead_s := due - now()) > 0:
                await asyncio.sleep(ahead_s)
            await self._flowing.wait()
            if not data:
                break
            writer.write(data)
            await writer.drain()
        with suppress(OSError):
            writer.write_eof()
