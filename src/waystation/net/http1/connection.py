"""One HTTP/1.1 server connection: passes requests to a handler and writes its answers.

Rule 1: requests of one connection are answered one after another, in order.
Rule 2: a handler that does not wait needs no task. One that waits continues even if its client
        disconnects, so that accepted requests are finished.
Rule 3: everything has a limit (`HttpLimits`): head, headers, body, pipelined requests, time.

`reader` parses requests; the loop joins the answers of a turn into one write.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from waystation.base.tasks import Done, eager
from waystation.net.connection import HALF_CLOSED, SHAKING, Connection
from waystation.net.http1.limits import HttpLimits
from waystation.net.http1.message import Handler, Request, Response, Upgrade
from waystation.net.http1.reader import Asked, RequestReader
from waystation.net.loop import Port

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class HttpHost(Protocol):
    """The server as its connections use it."""

    handler: Handler
    loop: asyncio.AbstractEventLoop
    limits: HttpLimits
    body_limit: Callable[[Request], int]
    upgrades: frozenset[bytes]  # supported values of `Upgrade:`; others are ignored
    connections: "dict[HttpConnection, None]"
    tasks: dict[asyncio.Task[Response], None]
    draining: bool
    port: Port
    refused_connections: int
    tick: int  # seconds, as the sweep counts them
    date: bytes

    def on_failure(self, request: Request, error: BaseException, /) -> Response:
        """The answer when a handler raised."""
        ...

    def left(self, connection: "HttpConnection") -> None: ...


class HttpConnection(Connection):
    """One client's connection."""

    __slots__ = (
        "_continue_due",
        "_head_bytes_max",
        "_queue",
        "_reader",
        "_running",
        "_server",
        "_since",
        "_unfed",
        "ended",
    )

    def __init__(self, server: HttpHost) -> None:
        super().__init__(server.port)
        self._server = server
        self._reader = RequestReader(self, server.limits, server.body_limit)
        self._head_bytes_max = server.limits.head_bytes_max
        self._since = server.tick
        self._continue_due = False
        self._queue: deque[Request] = deque()  # read, but not begun
        self._running: Request | None = None  # the one that waits
        self._unfed = b""
        self.ended = False  # no further request is begun

    # The loop calls these

    def opened(self) -> None:
        server = self._server
        limit = server.limits.connections_max
        if server.draining or (limit and len(server.connections) > limit):
            server.refused_connections += 1
            self.refuse(503, b"Retry-After: 10\r\n")

    def received(self, data: bytes) -> None:
        if self.ended or not data:
            return
        if self._unfed:
            self._unfed += data
            return
        self._feed(data)

    def half_closed(self) -> None:
        # A half-closed client may still wait for its answer; TLS has no half-closed state.
        if self.secure is not None or (self._running is None and not self._queue):
            self.end()

    def drained(self) -> None:
        self._since = self._server.tick
        self._advance()

    def closed(self) -> None:
        self.ended = True
        self._queue.clear()
        self._unfed = b""
        self._reader.release()
        self._server.left(self)

    # The reader calls these

    @property
    def upgrades(self) -> frozenset[bytes]:
        return self._server.upgrades

    def began(self) -> None:
        self._since = self._server.tick

    def expects(self) -> None:
        """The client waits for `100 Continue` before it sends the body."""
        if self._running is None and not self._queue:
            self.send(_CONTINUE)
        else:
            self._continue_due = True

    def cut_short(self, request: Request) -> None:
        """The body is far too long: answer now. The loop reads on for a moment, so that the client
        gets the answer."""
        request.keep_alive = False
        self.accept(request)
        self.ended = True

    # Requests begin, wait and end

    def accept(self, request: Request, its_turn: bool = False) -> None:
        if not its_turn and (self._running is not None or self._queue or self.congested):
            self._queue.append(request)
            self._continue_due = False  # the client did not wait for `100 Continue`
            self._update_reading()
            return
        server = self._server
        request.client = self
        try:
            answer = server.handler(request)
            if not isinstance(answer, Response):
                step = eager(answer, server.loop)
                if not isinstance(step, Done):
                    self._running = request
                    server.tasks[step] = None
                    step.add_done_callback(self._finished)
                    return
                answer = step.value
        except Exception as error:
            answer = server.on_failure(request, error)
        self._respond(request, answer)

    def _finished(self, task: asyncio.Task[Response]) -> None:
        self._server.tasks.pop(task, None)
        request, self._running = self._running, None
        assert request is not None
        if task.cancelled():
            self.abort()
            return
        error = task.exception()
        answer = task.result() if error is None else self._server.on_failure(request, error)
        self._respond(request, answer)
        self._advance()

    def _respond(self, request: Request, answer: Response) -> None:
        server = self._server
        self._since = server.tick
        self.ended = self.ended or self._last(request, answer)
        if isinstance(answer, Upgrade):
            self._hand_over(answer)
            return
        body = answer.body
        self.send(
            b"%b%b%b%b\r\n"
            % (
                answer.head,
                server.date,
                # RFC 9110, section 8.6: a 204 has no Content-Length.
                b"" if answer.status == 204 else b"Content-Length: %d\r\n" % len(body),
                b"Connection: close\r\n" if self.ended else b"",
            )
        )
        if body and request.method != b"HEAD":
            self.send(body)
        if self.ended:
            self.end()

    def _last(self, request: Request, answer: Response) -> bool:
        """Whether this is the last answer of the connection."""
        if self.flags & HALF_CLOSED and not self._queue:
            return True  # the client has closed its sending side, and this was its last request
        return not request.keep_alive or answer.close or self._server.draining

    def _advance(self) -> None:
        """After an answer or a pause: start the next request, and parse buffered bytes."""
        while not self.ended and self._running is None and not self.congested:
            if self._queue:
                self.accept(self._queue.popleft(), its_turn=True)
            elif self._unfed:
                data, self._unfed = self._unfed, b""
                self._feed(data)
            else:
                break
        if self._continue_due and self._running is None and not self._queue and not self.ended:
            self._continue_due = False
            self.send(_CONTINUE)
        self._update_reading()

    # Reading

    def _feed(self, data: bytes) -> None:
        # In pieces, so that a head cannot exceed its limit within one large read.
        limit = self._head_bytes_max
        more = self._reader.feed(data if len(data) <= limit else data[:limit])
        if more is not None or len(data) > limit:
            self._feed_on(more, data, limit)

    def _feed_on(self, more: bytes | Asked | None, data: bytes, position: int) -> None:
        """`more` is the reader's result for the bytes before `position`."""
        while not self.ended:
            if more is None:
                if position >= len(data):
                    return
                piece = data[position : position + self._head_bytes_max]
                position += self._head_bytes_max
            elif isinstance(more, bytes):
                piece = more
            else:
                self._upgrade(more.request, more.rest + data[position:])
                return
            if self._busy():
                self._unfed = piece + data[position:]
                self._update_reading()
                return
            more = self._reader.feed(piece)

    def _busy(self) -> bool:
        return self.congested or len(self._queue) >= self._server.limits.pipelined_max

    def _update_reading(self) -> None:
        if self.ended:
            return
        if self._busy() or self._unfed:
            self.pause()
        else:
            self.resume()

    def _upgrade(self, request: Request, rest: bytes) -> None:
        if self._running is not None or self._queue:
            self.refuse(400)
            return
        request.keep_alive = False  # if it is refused, the next bytes may be of either protocol
        self._unfed = rest
        self.pause()
        self.accept(request)

    def _hand_over(self, answer: Upgrade) -> None:
        self.ended = True
        if not self.is_open:
            return  # the client has disconnected meanwhile
        self.send(answer.head + b"\r\n")
        rest, self._unfed = self._unfed, b""
        self._server.left(self)
        self._reader.release()
        self.become(answer.connection, rest)

    # Ends

    def refuse(self, status: int, headers: bytes = b"") -> None:
        """Answer invalid or too large input with an error and close, after earlier answers."""
        if self.ended:
            return
        if self._running is not None or self._queue:
            self.ended = True  # no request after invalid input is answered
            self._queue.clear()
            self.pause()
            return
        answer = Response.of(status, headers=headers, close=True)
        self._respond(Request(b"GET", b"", {}), answer)

    def check_age(self) -> None:
        """Called by the sweep."""
        limits = self._server.limits
        age = self._server.tick - self._since
        if self.flags & SHAKING:
            if age > limits.request_timeout_s:
                self.abort()
        elif self.congested:
            if age > limits.stalled_timeout_s:
                self.abort()
        elif self._running is not None or self.ended:
            pass
        elif self._reader.in_message:
            if age > limits.request_timeout_s:
                self.refuse(408)
        elif age > limits.idle_timeout_s:
            self.end()

    def drain(self) -> None:
        """Close an idle connection; else announce with the next answer that it is the last."""
        if self._running is None and not self._queue and not self._reader.in_message:
            self.ended = True
            self.end()
