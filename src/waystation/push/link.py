"""The link: the three requests of the relay over one connection, many at a time.

Rule 1: what is asked or answered during a turn of the loop leaves in one write.
Rule 2: a link that breaks answers all that is under way at once: UNREACHABLE.
Rule 3: at most `IN_FLIGHT_MAX` requests are under way; one more push is answered BUSY, so that the
        endpoint stores it. The server stops reading at the same number.
Rule 4: no timer per request: requests end in the order of their deadlines, so one sweep looks at
        the oldest.

Nobody here knows which transport it is: unix sockets between the workers of a node, an upgraded
connection between machines.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Coroutine
from typing import Any, Final, Protocol, assert_never, cast

from waystation.base.tasks import Done, eager
from waystation.push.errors import BadFrameError
from waystation.push.model import Notification, Uaid, Update
from waystation.push.wire.link_frames import (
    Call,
    CheckStored,
    Displace,
    Frame,
    FrameReader,
    Prove,
    Push,
    PushUpdate,
    Reply,
    encode_frame,
)
from waystation.push.wire.relay import Answer, Node

IN_FLIGHT_MAX: Final = 4_096
SWEEP_S: Final = 0.25
PROOF_S: Final = 5.0  # from the upgrade to the proof of the client's


class NotALinkError(Exception):
    """The peer is there, but does not speak the link."""


class _Writer:
    """Joins what is written during one turn."""

    __slots__ = ("_armed", "_loop", "_out", "transport")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._out: list[bytes] = []
        self._armed = False
        self.transport: asyncio.Transport | None = None

    def write(self, frame: bytes) -> None:
        self._out.append(frame)
        if not self._armed:
            self._armed = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._armed = False
        out, self._out = self._out, []
        if self.transport is not None:
            self.transport.write(out[0] if len(out) == 1 else b"".join(out))


class LinkServer(asyncio.Protocol):
    """The connection node's end. `proof` is what a client must show first, if it must."""

    def __init__(
        self, node: Node, loop: asyncio.AbstractEventLoop, *, proof: bytes | None = None
    ) -> None:
        self._node = node
        self._loop = loop
        self._proof = proof
        self._reader = FrameReader()
        self._writer = _Writer(loop)
        self._tasks: dict[asyncio.Task[Answer], int] = {}
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._writer.transport = cast(asyncio.Transport, transport)
        if self._proof is not None:
            self._loop.call_later(PROOF_S, self._check_proven)

    def _check_proven(self) -> None:
        if self._proof is not None:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._writer.transport = None  # what is under way goes on: it was asked for

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                self._take(frame)
        except BadFrameError:
            self.close()

    def _take(self, frame: Frame) -> None:
        match frame:
            case Prove():
                if self._proof is None or not hmac.compare_digest(frame.proof, self._proof):
                    raise BadFrameError("not the proof we asked for")
                self._proof = None
            case Reply():
                raise BadFrameError("a reply to nothing")
            case _:
                if self._proof is not None:
                    raise BadFrameError("no proof yet")
                self._answer(frame)

    def _answer(self, call: Call) -> None:
        try:
            step = eager(self._asked(call), self._loop)
        except Exception:
            self._reply(call.number, Answer.ODD)
            return
        if isinstance(step, Done):
            self._reply(call.number, step.value)
            return
        self._tasks[step] = call.number
        step.add_done_callback(self._finished)
        if len(self._tasks) >= IN_FLIGHT_MAX and not self._paused:
            self._paused = True
            if self._writer.transport is not None:
                self._writer.transport.pause_reading()

    def _asked(self, call: Call) -> Coroutine[Any, Any, Answer]:
        match call:
            case Push():
                return self._node.push(call.uaid, call.notification)
            case PushUpdate():
                return self._node.push(call.uaid, call.update)
            case CheckStored():
                return self._node.check_stored(call.uaid)
            case Displace():
                return self._node.displace(call.uaid, call.connected_at_ms)
            case _:
                assert_never(call)

    def _finished(self, task: asyncio.Task[Answer]) -> None:
        number = self._tasks.pop(task)
        failed = task.cancelled() or task.exception() is not None
        self._reply(number, Answer.ODD if failed else task.result())
        if self._paused and len(self._tasks) < IN_FLIGHT_MAX:
            self._paused = False
            if self._writer.transport is not None:
                self._writer.transport.resume_reading()

    def _reply(self, number: int, answer: Answer) -> None:
        self._writer.write(encode_frame(Reply(number, answer)))

    def close(self) -> None:
        if self._writer.transport is not None:
            self._writer.transport.close()


class LinkConnection(asyncio.Protocol):
    """The endpoint node's end of one connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, timeout_s: float) -> None:
        self._loop = loop
        self._timeout_s = timeout_s
        self._reader = FrameReader()
        self._writer = _Writer(loop)
        self._number = 0
        self._waiting: dict[int, tuple[asyncio.Future[Answer], float]] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._congested = False
        self.open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._writer.transport = cast(asyncio.Transport, transport)
        self.open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        self._writer.transport = None
        waiting, self._waiting = self._waiting, {}
        for future, _ in waiting.values():
            if not future.done():
                future.set_result(Answer.UNREACHABLE)
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    def pause_writing(self) -> None:
        self._congested = True

    def resume_writing(self) -> None:
        self._congested = False

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                if not isinstance(frame, Reply):
                    raise BadFrameError("only replies come this way")
                waiting = self._waiting.pop(frame.number, None)
                if waiting is not None and not waiting[0].done():
                    waiting[0].set_result(_answer(frame.answer))
        except BadFrameError:
            self.close()

    @property
    def full(self) -> bool:
        return self._congested or len(self._waiting) >= IN_FLIGHT_MAX

    def send(self, frame: bytes) -> None:
        self._writer.write(frame)

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def ask(self, number: int, frame: bytes) -> asyncio.Future[Answer]:
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting[number] = (future, self._loop.time() + self._timeout_s)
        self._writer.write(frame)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)
        return future

    def _sweep(self) -> None:
        self._sweeper = None
        now = self._loop.time()
        while self._waiting:
            number, (future, deadline) = next(iter(self._waiting.items()))
            if deadline > now and not future.done():
                self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)
                return
            del self._waiting[number]
            if not future.done():
                future.set_result(Answer.UNREACHABLE)

    def close(self) -> None:
        if self._writer.transport is not None:
            self._writer.transport.abort()


def _answer(number: int) -> Answer:
    try:
        return Answer(number)
    except ValueError:
        return Answer.ODD


class Dial(Protocol):
    """Opens a connection and leaves it with the protocol that is given; raises `OSError` or
    `TimeoutError` when nobody is there and `NotALinkError` when somebody else is."""

    def __call__(self, protocol: LinkConnection, /) -> Awaitable[None]: ...


class LinkClient:
    """A node at the other end of a link. Connects when it is first asked, and again after a
    break when it is next asked."""

    def __init__(
        self,
        dial: Dial,
        loop: asyncio.AbstractEventLoop,
        *,
        timeout_s: float = 3.0,
    ) -> None:
        self._dial = dial
        self._loop = loop
        self._timeout_s = timeout_s
        self._connection: LinkConnection | None = None
        self._dialling: asyncio.Task[LinkConnection] | None = None
        self._closed = False

    async def push(self, uaid: Uaid, notification: Notification | Update) -> Answer:
        connection = await self._connected()
        if connection is None:
            return Answer.UNREACHABLE
        answer = _offered(connection, uaid, notification)
        return answer if isinstance(answer, Answer) else await answer

    def offer(
        self, uaid: Uaid, notification: Notification | Update
    ) -> Answer | asyncio.Future[Answer] | None:
        """As `push`, without a coroutine; None if there is no connection yet."""
        connection = self._connection
        if connection is None or not connection.open:
            return None
        return _offered(connection, uaid, notification)

    async def check_stored(self, uaid: Uaid) -> Answer:
        """Goes on when pushes are refused: what was stored instead wants to be told."""
        connection = await self._connected()
        if connection is None:
            return Answer.UNREACHABLE
        number = connection.next_number()
        return await connection.ask(number, encode_frame(CheckStored(number, uaid)))

    async def displace(self, uaid: Uaid, connected_at_ms: int) -> Answer:
        connection = await self._connected()
        if connection is None:
            return Answer.UNREACHABLE
        number = connection.next_number()
        frame = encode_frame(Displace(number, uaid, connected_at_ms))
        return await connection.ask(number, frame)

    async def _connected(self) -> LinkConnection | None:
        """None when nobody is there; `NotALinkError` passes."""
        connection = self._connection
        if connection is not None and connection.open:
            return connection
        if self._closed:
            return None
        if self._dialling is None or self._dialling.done():
            self._dialling = self._loop.create_task(self._dialled(), name="link.dial")
            self._dialling.add_done_callback(_seen)
        try:
            # Shielded: many may wait for one attempt, and one of them may be cancelled.
            return await asyncio.shield(self._dialling)
        except (OSError, TimeoutError):
            return None

    async def _dialled(self) -> LinkConnection:
        connection = LinkConnection(self._loop, timeout_s=self._timeout_s)
        await self._dial(connection)
        self._connection = connection
        return connection

    async def close(self) -> None:
        self._closed = True
        if self._dialling is not None and not self._dialling.done():
            self._dialling.cancel()
            await asyncio.wait({self._dialling})
        if self._connection is not None:
            self._connection.close()


def _offered(
    connection: LinkConnection, uaid: Uaid, notification: Notification | Update
) -> Answer | asyncio.Future[Answer]:
    if connection.full:
        return Answer.BUSY
    number = connection.next_number()
    if isinstance(notification, Update):
        frame = encode_frame(PushUpdate(number, uaid, notification))
    else:
        frame = encode_frame(Push(number, uaid, notification))
    return connection.ask(number, frame)


def _seen(task: asyncio.Task[LinkConnection]) -> None:
    """Whoever waited has the exception; nobody may have waited to the end."""
    if not task.cancelled():
        task.exception()
