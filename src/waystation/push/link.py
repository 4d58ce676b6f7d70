"""The link: the relay's three requests over one connection, many at a time.

Rule 1: requests and replies of one loop turn leave in one write.
Rule 2: when a link breaks, all pending requests are answered UNREACHABLE at once.
Rule 3: at most `IN_FLIGHT_MAX` requests are pending; a further push is answered BUSY, so that the
        endpoint stores it. The server stops reading at the same number.
Rule 4: requests have no timers of their own. Their deadlines are in order, so one sweep checks the
        oldest. A late sweep expires nothing, because the process was blocked and the replies may
        be in the socket: they are read first.
Rule 5: a push carries a deadline on the node's clock, a little before its sender stops waiting. A
        node that was blocked and reads it later refuses it, because the endpoint has stored it by
        then. If the node took it in time but replied too late, the notification is both sent and
        stored: `push_abandoned` tells the node, so that the ack deletes the row as well.
Rule 6: processes of one machine share a monotonic clock. Another machine sends its clock with the
        upgrade and with each reply; the estimate made from it is never ahead of the real one.

The transport is a unix socket between workers of a node and an upgraded connection between
machines; this module does not depend on which.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Coroutine
from typing import Any, Final, Protocol, assert_never

from waystation.base.clock import Clock
from waystation.base.tasks import Done, eager
from waystation.net.link import FrameConnection
from waystation.net.loop import Port
from waystation.push.errors import BadFrameError
from waystation.push.model import Notification, Uaid, Update
from waystation.push.wire.link_frames import (
    Call,
    CheckStored,
    Displace,
    Frame,
    Prove,
    Push,
    PushUpdate,
    Reply,
    decode_frame,
    encode_frame,
)
from waystation.push.wire.relay import Answer, ServedNode

IN_FLIGHT_MAX: Final = 4_096
SWEEP_S: Final = 0.25
TAKEN_SHARE: Final = 0.9  # of the time that a sender waits; the rest is for the reply to arrive
CLOCK_ERROR_S: Final = 0.1  # a slower reply is not used to estimate the node's clock
PROOF_S: Final = 5.0  # from the upgrade to the client's proof


class NotALinkError(Exception):
    """The peer answers, but does not support the link."""


class _Link(FrameConnection):
    """One end of a link. Data that is not a frame closes it."""

    def frame(self, payload: bytes) -> None:
        try:
            frame = decode_frame(payload)
        except BadFrameError:
            self.end()
        else:
            self.take(frame)

    def take(self, frame: Frame) -> None: ...


class LinkServer(_Link):
    """The connection node's end. With `proof`, the client's first frame must contain it."""

    def __init__(
        self, port: Port, node: ServedNode, clock: Clock, *, proof: bytes | None = None
    ) -> None:
        super().__init__(port)
        self._node = node
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._proof = proof
        self._tells_clock = proof is not None
        self._tasks: dict[asyncio.Task[Answer], Call] = {}
        self._late: dict[Uaid, None] = {}  # pushes of this read refused as too late
        self._taken: list[Push | PushUpdate] = []  # taken in time, reply not written yet

    def opened(self) -> None:
        if self._proof is not None:
            self._loop.call_later(PROOF_S, self._check_proven)

    def _check_proven(self) -> None:
        if self._proof is not None:
            self.end()

    def received(self, data: bytes) -> None:
        super().received(data)
        if self._late:
            late, self._late = self._late, {}
            for uaid in late:
                self._node.push_abandoned(uaid, None)

    def take(self, frame: Frame) -> None:
        proof = self._proof
        match frame:
            case Prove() if proof is not None and hmac.compare_digest(frame.proof, proof):
                self._proof = None
            case Push() | PushUpdate() | CheckStored() | Displace() if proof is None:
                self._answer(frame)
            case _:
                self.end()

    def _answer(self, call: Call) -> None:
        if isinstance(call, Push | PushUpdate) and call.until and self._clock.mono() >= call.until:
            self._late[call.uaid] = None
            self._reply(call, Answer.BUSY)
            return
        try:
            step = eager(self._asked(call), self._loop)
        except Exception:
            self._reply(call, Answer.UNEXPECTED)
            return
        if isinstance(step, Done):
            self._reply(call, step.value)
            return
        self._tasks[step] = call
        step.add_done_callback(self._finished)
        if len(self._tasks) >= IN_FLIGHT_MAX:
            self.pause()

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
        call = self._tasks.pop(task)
        failed = task.cancelled() or task.exception() is not None
        self._reply(call, Answer.UNEXPECTED if failed else task.result())
        if len(self._tasks) < IN_FLIGHT_MAX:
            self.resume()

    def _reply(self, call: Call, answer: Answer) -> None:
        clock = self._clock.mono() if self._tells_clock else 0.0
        self.send_frame(encode_frame(Reply(call.number, answer, clock)))
        if answer is Answer.TAKEN and isinstance(call, Push | PushUpdate) and call.until:
            if not self._taken:
                self._loop.call_soon(self._replied)
            self._taken.append(call)

    def _replied(self) -> None:
        """After the replies of a turn are written: report those that were too late (rule 5)."""
        taken, self._taken = self._taken, []
        if not taken:
            return
        now = self._clock.mono()
        for call in taken:
            if now >= call.until:
                self._node.push_abandoned(
                    call.uaid, call.notification if isinstance(call, Push) else call.update
                )


class LinkConnection(_Link):
    """The endpoint node's end of one connection."""

    def __init__(self, port: Port, *, timeout_s: float) -> None:
        super().__init__(port)
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._number = 0
        self._waiting: dict[int, tuple[asyncio.Future[Answer], float]] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._sweep_due = 0.0
        self.clock_ahead_s: float | None = None  # the node's clock minus ours; None: not sent

    def closed(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for future, _ in waiting.values():
            if not future.done():
                future.set_result(Answer.UNREACHABLE)
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    def take(self, frame: Frame) -> None:
        if not isinstance(frame, Reply):
            self.end()
            return
        waiting = self._waiting.pop(frame.number, None)
        if waiting is not None and frame.clock:
            self._learn_clock(frame.clock, waiting[1])
        if waiting is not None and not waiting[0].done():
            waiting[0].set_result(_answer(frame.answer))

    @property
    def full(self) -> bool:
        return self.congested or len(self._waiting) >= IN_FLIGHT_MAX

    def until(self) -> float:
        """The deadline, on the node's clock, of a push that is sent now; 0 is none."""
        if self.clock_ahead_s is None:
            return 0.0
        return self._loop.time() + self._timeout_s * TAKEN_SHARE + self.clock_ahead_s

    def _learn_clock(self, clock: float, deadline: float) -> None:
        """Update the clock difference with each reply: clocks drift by seconds a day."""
        now = self._loop.time()
        if now - (deadline - self._timeout_s) < CLOCK_ERROR_S:
            self.clock_ahead_s = clock - now

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def ask(self, number: int, frame: bytes) -> asyncio.Future[Answer]:
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting[number] = (future, self._loop.time() + self._timeout_s)
        self.send_frame(frame)
        if self._sweeper is None:
            self._sweep_later()
        return future

    def _sweep_later(self) -> None:
        self._sweep_due = self._loop.time() + SWEEP_S
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self._sweeper = None
        now = self._loop.time()
        if now > self._sweep_due + SWEEP_S:
            self._sweep_later()
            return
        while self._waiting:
            number, (future, deadline) = next(iter(self._waiting.items()))
            if deadline > now and not future.done():
                self._sweep_later()
                return
            del self._waiting[number]
            if not future.done():
                future.set_result(Answer.UNREACHABLE)


def _answer(number: int) -> Answer:
    try:
        return Answer(number)
    except ValueError:
        return Answer.UNEXPECTED


class Dial(Protocol):
    """Opens a link. Raises `OSError` or `TimeoutError` if no node answers, and `NotALinkError` if
    the peer does not support the link."""

    def __call__(self, *, timeout_s: float) -> Awaitable[LinkConnection]:
        """`timeout_s` is how long each request on it may take."""
        ...


class LinkClient:
    """A node at the other end of a link. Connects with the first request, and with the next one
    after the link broke."""

    def __init__(
        self,
        dial: Dial,
        *,
        timeout_s: float = 3.0,
    ) -> None:
        self._dial = dial
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._connection: LinkConnection | None = None
        self._dialling: asyncio.Task[LinkConnection] | None = None
        self._closed = False

    async def push(self, uaid: Uaid, notification: Notification | Update) -> Answer:
        connection = await self._connected()
        if connection is None:
            return Answer.UNREACHABLE
        if connection.full:
            return Answer.BUSY
        number = connection.next_number()
        if isinstance(notification, Update):
            frame = encode_frame(PushUpdate(number, uaid, notification, connection.until()))
        else:
            frame = encode_frame(Push(number, uaid, notification, connection.until()))
        return await connection.ask(number, frame)

    async def check_stored(self, uaid: Uaid) -> Answer:
        """Not refused at `IN_FLIGHT_MAX`: the node must learn of stored notifications."""
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

    def push_abandoned(self, uaid: Uaid, taken: Notification | Update | None) -> None:
        """Nothing to do for a forwarded request: the node's client is this process, and that has
        waited for the reply."""

    async def _connected(self) -> LinkConnection | None:
        """The open connection; None if no node answers. `NotALinkError` passes through."""
        connection = self._connection
        if connection is not None and connection.is_open:
            return connection
        if self._closed:
            return None
        if self._dialling is None or self._dialling.done():
            self._dialling = self._loop.create_task(self._dialled(), name="link.dial")
            self._dialling.add_done_callback(_seen)
        try:
            # Shielded: many requests wait for one attempt, and one of them may be cancelled.
            return await asyncio.shield(self._dialling)
        except (OSError, TimeoutError):
            return None

    async def _dialled(self) -> LinkConnection:
        connection = self._connection = await self._dial(timeout_s=self._timeout_s)
        return connection

    async def close(self) -> None:
        self._closed = True
        if self._dialling is not None and not self._dialling.done():
            self._dialling.cancel()
            await asyncio.wait({self._dialling})
        if self._connection is not None:
            self._connection.abort()


def _seen(task: asyncio.Task[LinkConnection]) -> None:
    """Mark the exception as retrieved: all requests that waited may have been cancelled."""
    if not task.cancelled():
        task.exception()
