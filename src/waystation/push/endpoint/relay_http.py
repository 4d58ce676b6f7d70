"""The relay as HTTP, for connection nodes that do not speak our link: Mozilla's, and older ones.

Rule 1: a request ends within `request_timeout_s`, connecting within `connection_timeout_s`; what
        does not is UNREACHABLE.
Rule 2: connections are kept open and used one request at a time; at most `CONNECTIONS_MAX` per
        node, and `WAITING_MAX` requests wait for one. Beyond that a push is BUSY: it is stored.
Rule 3: a kept connection that the node closed just now is no failure: such a request is sent once
        more on a new one. The message keeps its version, so the user agent sees it once.
"""

import asyncio
import ssl
from collections import deque
from typing import Final, cast

import httptools

from waystation.base.ids import dashed
from waystation.push.model import Notification, Uaid, Update
from waystation.push.settings import Endpoint
from waystation.push.wire.relay import Answer, answer_of_status, encode_push

CONNECTIONS_MAX: Final = 64
WAITING_MAX: Final = 1_024
ANSWER_BYTES_MAX: Final = 65_536  # nodes answer with a few words


class _StaleError(Exception):
    """Closed before a byte of the answer came."""


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[int] | None = None
        self._received = 0
        self.used = 0
        self.idle_since = 0.0
        self.open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        self._transport = None
        if self._answer is not None and not self._answer.done():
            stale = self.used > 1 and not self._received
            self._answer.set_exception(_StaleError() if stale else ConnectionResetError())

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        if self._answer is None or self._received > ANSWER_BYTES_MAX:
            self.close()  # nobody asked, or nobody wants that much
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.close()

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if not self._parser.should_keep_alive():
            self.open = False
        if status >= 200 and self._answer is not None and not self._answer.done():
            self._answer.set_result(status)

    async def ask(self, request: bytes) -> int:
        assert self._transport is not None
        self.used += 1
        self._received = 0
        self._answer = self._loop.create_future()
        self._transport.write(request)
        try:
            return await self._answer
        finally:
            self._answer = None

    def close(self) -> None:
        self.open = False
        if self._transport is not None:
            self._transport.abort()


class HttpNode:
    """A connection node by its node id; `path` is what the id has after host and port."""

    def __init__(
        self,
        host: str,
        port: int,
        path: str,
        settings: Endpoint,
        loop: asyncio.AbstractEventLoop,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._host = host
        self._port = port
        self._path = path.encode()
        self._settings = settings
        self._loop = loop
        self._tls = tls
        self._end = f" HTTP/1.1\r\nHost: {host}:{port}\r\n".encode()
        self._idle: deque[_Connection] = deque()
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
        # A task, because a timeout needs one; this is not the path that has to be quick.
        task = self._loop.create_task(self._asked(request), name="relay.http")
        return await task

    async def _asked(self, request: bytes) -> Answer:
        try:
            async with asyncio.timeout(self._settings.request_timeout_s):
                await self._enter()
                try:
                    return answer_of_status(await self._exchange(request))
                finally:
                    self._leave()
        except (OSError, TimeoutError, _StaleError):
            return Answer.UNREACHABLE

    async def _enter(self) -> None:
        if self._under_way < CONNECTIONS_MAX:
            self._under_way += 1
            return
        turn: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(turn)
        try:
            await turn  # whoever leaves hands over its place
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
            connection = self._idle.pop()
            if connection.open:
                try:
                    return await self._use(connection, request)
                except _StaleError:
                    continue
        async with asyncio.timeout(self._settings.connection_timeout_s):
            _, connection = await self._loop.create_connection(
                lambda: _Connection(self._loop), self._host, self._port, ssl=self._tls
            )
        return await self._use(connection, request)

    async def _use(self, connection: _Connection, request: bytes) -> int:
        try:
            status = await connection.ask(request)
        except BaseException:
            connection.close()
            raise
        if connection.open and len(self._idle) < self._settings.pool_max_idle_per_host:
            connection.idle_since = self._loop.time()
            self._idle.append(connection)
            self._arm()
        else:
            connection.close()
        return status

    def _arm(self) -> None:
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(self._settings.pool_idle_timeout_s, self._sweep)

    def _sweep(self) -> None:
        self._sweeper = None
        too_old = self._loop.time() - self._settings.pool_idle_timeout_s
        while self._idle and (self._idle[0].idle_since <= too_old or not self._idle[0].open):
            self._idle.popleft().close()
        if self._idle:
            self._arm()

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        while self._idle:
            self._idle.pop().close()
