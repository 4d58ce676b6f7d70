"""Relay over HTTP, for connection nodes that do not support the link: Mozilla's, and older ones.

Rule 1: connecting has the timeout `connection_timeout_s` and a request `request_timeout_s`; after
        that the answer is UNREACHABLE. A late timer expires nothing: data that already waits in
        the socket is read first.
Rule 2: connections are kept open and carry one request at a time. There are at most
        `CONNECTIONS_MAX` per node, and `WAITING_MAX` requests wait for one; a further push is
        answered BUSY and stored.
Rule 3: if the node has just closed a kept connection, the request is sent once more on a new one.
        The message keeps its version, so the user agent shows it once.
"""

import asyncio
import ssl
from collections import deque
from typing import Final

from waystation.base.ids import dashed
from waystation.net.http1.client import HttpClientConnection, MalformedAnswerError, StaleError
from waystation.net.loop import Port
from waystation.push.model import Notification, Uaid, Update
from waystation.push.settings import Endpoint
from waystation.push.wire.relay import Answer, answer_of_status, encode_push

CONNECTIONS_MAX: Final = 64
WAITING_MAX: Final = 1_024
LATE_S: Final = 0.25  # a timer that fires later means that the process was blocked


class HttpNode:
    """A connection node. `path` is the part of the node id after host and port."""

    def __init__(
        self,
        port: Port,
        address: tuple[str, int],
        path: str,
        settings: Endpoint,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._port = port
        self._address = address
        self._path = path.encode()
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._tls = tls
        self._end = b" HTTP/1.1\r\nHost: %b:%d\r\n" % (address[0].encode(), address[1])
        self._idle: deque[tuple[HttpClientConnection, float]] = deque()  # and idle since
        self._under_way = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._sweeper: asyncio.TimerHandle | None = None

    async def push(self, uaid: Uaid, notification: Notification | Update) -> Answer:
        body = encode_push(notification)
        return await self._ask(
            b"PUT %b/push/%b%bContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (self._path, dashed(uaid).encode(), self._end, len(body), body)
        )

    async def check_stored(self, uaid: Uaid) -> Answer:
        return await self._ask(
            b"PUT %b/notif/%b%bContent-Length: 0\r\n\r\n"
            % (self._path, dashed(uaid).encode(), self._end)
        )

    async def displace(self, uaid: Uaid, connected_at_ms: int) -> Answer:
        return await self._ask(
            b"DELETE %b/notif/%b/%d%bContent-Length: 0\r\n\r\n"
            % (self._path, dashed(uaid).encode(), connected_at_ms, self._end)
        )

    async def _ask(self, request: bytes) -> Answer:
        if self._under_way >= CONNECTIONS_MAX and len(self._waiting) >= WAITING_MAX:
            return Answer.BUSY
        # A task, because the timeout needs one.
        task = self._loop.create_task(self._asked(request), name="relay.http")
        return await task

    async def _asked(self, request: bytes) -> Answer:
        loop, timeout = self._loop, asyncio.timeout(None)
        due = loop.time() + self._settings.request_timeout_s

        def expire() -> None:
            nonlocal due, timer
            now = loop.time()
            if now <= due + LATE_S:
                timeout.reschedule(now)
                return
            # The process was blocked and the answer may be in the socket: read it first.
            due = now + LATE_S
            timer = loop.call_at(due, expire)

        timer = loop.call_at(due, expire)
        try:
            async with timeout:
                await self._enter()
                try:
                    return answer_of_status(await self._exchange(request))
                finally:
                    self._leave()
        except (OSError, TimeoutError, StaleError, MalformedAnswerError):
            return Answer.UNREACHABLE
        finally:
            timer.cancel()

    async def _enter(self) -> None:
        if self._under_way < CONNECTIONS_MAX:
            self._under_way += 1
            return
        turn: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(turn)
        try:
            await turn  # `_leave` passes its place on
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()
            raise

    def _leave(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._under_way -= 1

    async def _exchange(self, request: bytes) -> int:
        while self._idle:
            connection, _ = self._idle.pop()
            if connection.is_usable:
                try:
                    return await self._use(connection, request)
                except StaleError:
                    continue
        connection = HttpClientConnection(self._port)
        async with asyncio.timeout(self._settings.connection_timeout_s):
            await self._port.connect(
                connection, self._address, tls=self._tls, server_name=self._address[0]
            )
        return await self._use(connection, request)

    async def _use(self, connection: HttpClientConnection, request: bytes) -> int:
        try:
            status = (await connection.ask(request)).status
        except BaseException:
            connection.abort()
            raise
        if connection.is_usable and len(self._idle) < self._settings.pool_max_idle_per_host:
            self._idle.append((connection, self._loop.time()))
            self._arm()
        else:
            connection.abort()
        return status

    def _arm(self) -> None:
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(self._settings.pool_idle_timeout_s, self._sweep)

    def _sweep(self) -> None:
        self._sweeper = None
        too_old = self._loop.time() - self._settings.pool_idle_timeout_s
        while self._idle:
            connection, since = self._idle[0]
            if since > too_old and connection.is_usable:
                break
            connection.abort()
            self._idle.popleft()
        if self._idle:
            self._arm()

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        while self._idle:
            self._idle.pop()[0].abort()
