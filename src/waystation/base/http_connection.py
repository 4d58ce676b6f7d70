"""One HTTP/1.1 connection: requests to a handler, answers out, ends of all kinds.

Rule 1: requests of one connection are answered one after another, in order; what was answered
        during one turn of the loop leaves in one write, at its end. To write at once would wake
        each client among the requests of the others, and it takes the processor from us.
Rule 2: a handler that does not wait costs no task. One that waits goes on even if its client
        leaves: what was accepted is finished.
Rule 3: everything has a limit (`HttpLimits`): head, headers, body, pipelined requests, time.

Bytes become requests in `http_reader`. The hot path is `data_received` to `_respond`; what is rare
has methods of its own.
"""

import asyncio
from collections import deque
from typing import Final, Protocol, cast

from waystation.base.http_limits import HttpLimits
from waystation.base.http_message import Handler, Request, Response, Upgrade
from waystation.base.http_reader import Asked, RequestReader
from waystation.base.http_usual import Bounds, usual_post
from waystation.base.tasks import Done, eager

_LARGE_BYTES: Final = 16_384  # such an answer is not held back for others of its turn
_WITHOUT_LENGTH: Final = frozenset({101, 204})
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class HttpHost(Protocol):
    """What a connection needs of its server."""

    handler: Handler
    loop: asyncio.AbstractEventLoop
    limits: HttpLimits
    bounds: Bounds
    upgrades: frozenset[bytes]  # what `Upgrade:` may ask for; others are ignored
    connections: "set[HttpConnection]"
    tasks: set[asyncio.Task[Response]]
    draining: bool
    refused_connections: int
    tick: int  # seconds, as the sweep counts them
    date: bytes
    empty: bytes  # the end of a head, from `date` on, where no body follows

    def on_failure(self, request: Request, error: BaseException, /) -> Response:
        """The answer when a handler raised."""
        ...

    def answered(self, connection: "HttpConnection") -> None:
        """There is something to write: call `flush` at the end of this turn."""
        ...

    def left(self, connection: "HttpConnection") -> None: ...


class HttpConnection(asyncio.Protocol):
    """One client's connection."""

    __slots__ = (
        "_bounds",
        "_continue_due",
        "_discarded",
        "_discarding",
        "_eof",
        "_head_bytes_max",
        "_loop",
        "_out",
        "_queue",
        "_reader",
        "_reading",
        "_running",
        "_server",
        "_since",
        "_transport",
        "_turn",
        "_unfed",
        "_write_paused",
        "ended",
    )

    def __init__(self, server: HttpHost) -> None:
        self._server = server
        self._loop = server.loop
        self._bounds = server.bounds
        self._reader = RequestReader(self, server.limits, server.bounds)
        self._head_bytes_max = server.limits.head_bytes_max
        self._transport: asyncio.Transport | None = None
        self._since = server.tick
        self._continue_due = False
        self._queue: deque[Request] = deque()  # read, but not begun
        self._running: Request | None = None  # the one that waits
        self._out: list[bytes] = []
        self._turn = False  # inside data_received: answers are collected
        self._unfed = b""
        self._reading = True
        self._write_paused = False
        self._discarding = False
        self._discarded = 0
        self._eof = False  # the client has said all it had to say
        self.ended = False  # no further request is begun

    # The transport calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server = self._server
        self._transport = cast(asyncio.Transport, transport)
        limit = server.limits.connections_max
        if server.draining or (limit and len(server.connections) >= limit):
            server.refused_connections += 1
            server.connections.add(self)
            self.refuse(503, b"Retry-After: 10\r\n")
            return
        server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        self._transport = None
        self._queue.clear()
        self._out.clear()
        self._unfed = b""
        self._server.left(self)

    def data_received(self, data: bytes) -> None:
        if self.ended:
            self._discard(len(data))
            return
        if self._unfed:
            self._unfed += data
            return
        self._turn = True
        if len(data) > self._head_bytes_max:
            self._feed(data)
        elif self._reader.between and (usual := usual_post(data, self._bounds)) is not None:
            self.accept(usual)  # as the reader's `feed`: nearly all that is read
        else:
            more = self._reader.parse(data)
            if more is not None:
                self._feed_on(more, data, len(data))
        self._turn = False
        if self._out:
            self._server.answered(self)

    def eof_received(self) -> bool:
        # A half-closed client may still wait for its answer.
        self.flush()
        transport = self._transport
        if (
            (self._running is None and not self._queue)
            or transport is None
            or transport.get_extra_info("sslcontext") is not None  # TLS has no half-closed state
        ):
            return False
        self._eof = True
        return True

    def pause_writing(self) -> None:
        self._write_paused = True
        self._since = self._server.tick
        self._update_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._since = self._server.tick
        self._advance()

    # The reader calls these

    @property
    def upgrades(self) -> frozenset[bytes]:
        return self._server.upgrades

    def began(self) -> None:
        self._since = self._server.tick

    def expects(self) -> None:
        """The client waits for a word before it sends its body."""
        if self._running is None and not self._queue:
            self._out.append(_CONTINUE)
        else:
            self._continue_due = True

    def cut_short(self, request: Request) -> None:
        """A body much too long: answer now, and read on only so that the answer is seen."""
        request.keep_alive = False
        self._discarding = True
        self.accept(request)
        self.ended = True

    # Requests begin, wait and end

    def accept(self, request: Request, its_turn: bool = False) -> None:
        if (self._running is not None or self._queue or self._write_paused) and not its_turn:
            self._queue.append(request)
            self._continue_due = False  # it did not wait for the word
            self._update_reading()
            return
        server = self._server
        try:
            answer = server.handler(request)
            if type(answer) is not Response and not isinstance(answer, Response):
                step = eager(answer, self._loop)
                if not isinstance(step, Done):
                    self._running = request
                    server.tasks.add(step)
                    step.add_done_callback(self._finished)
                    return
                answer = step.value
        except Exception as error:
            answer = server.on_failure(request, error)
        self._respond(request, answer)

    def _finished(self, task: asyncio.Task[Response]) -> None:
        self._server.tasks.discard(task)
        request, self._running = self._running, None
        assert request is not None
        if task.cancelled():
            self.abort()
            return
        error = task.exception()
        answer = task.result() if error is None else self._server.on_failure(request, error)
        self._turn = True
        self._respond(request, answer)
        self._turn = False
        self._advance()

    def _respond(self, request: Request, answer: Response) -> None:
        if self._transport is None:
            return
        server = self._server
        self._since = server.tick
        if not request.keep_alive or answer.close or server.draining or self.ended or self._eof:
            self.ended |= self._last(request, answer)
        elif not answer.body and answer.status not in _WITHOUT_LENGTH:  # as below: a 201 is so
            self._out.append(answer.head + server.empty)
            if not self._turn:
                self.flush()
            return
        if answer.status == 101 and isinstance(answer, Upgrade):
            self._hand_over(answer)
            return
        end = b"Connection: close\r\n\r\n" if self.ended else b"\r\n"
        body = answer.body
        if answer.status == 204:  # RFC 9110, section 8.6: no Content-Length
            self._out.append(b"%b%b%b" % (answer.head, server.date, end))
        elif not body:
            self._out.append(b"%b%bContent-Length: 0\r\n%b" % (answer.head, server.date, end))
        else:
            self._out.append(
                b"%b%bContent-Length: %d\r\n%b%b"
                % (
                    answer.head,
                    server.date,
                    len(body),
                    end,
                    b"" if request.method == b"HEAD" else body,
                )
            )
        if not self._turn or len(body) > _LARGE_BYTES:
            self.flush()

    def _last(self, request: Request, answer: Response) -> bool:
        if self._eof and not self._queue:
            return True  # it said all it had to say, and this answers the last of it
        return not request.keep_alive or answer.close or self._server.draining

    def _advance(self) -> None:
        """After an answer or a pause: the next request, and what was read but not parsed."""
        self._turn = True
        while not self.ended and self._running is None and not self._write_paused:
            if self._queue:
                self.accept(self._queue.popleft(), its_turn=True)
            elif self._unfed:
                data, self._unfed = self._unfed, b""
                self._feed(data)
            else:
                break
        if self._continue_due and self._running is None and not self._queue and not self.ended:
            self._continue_due = False
            self._out.append(_CONTINUE)
        self._turn = False
        if self._out:
            self._server.answered(self)
        self._update_reading()

    def flush(self) -> None:
        """Write what was answered; nothing if that has happened meanwhile."""
        out = self._out
        if not out:
            return
        self._out = []
        if self._transport is not None:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))
        if self.ended and self._running is None:
            if not self._discarding:
                self._close()
            elif self._transport is not None and self._transport.can_write_eof():
                self._transport.write_eof()  # the client sees the end; we read on for a moment

    # Reading

    def _feed(self, data: bytes) -> None:
        # In pieces, so that no head can grow beyond its limit inside one large read.
        limit = self._head_bytes_max
        more = self._reader.feed(data if len(data) <= limit else data[:limit])
        if more is not None or len(data) > limit:
            self._feed_on(more, data, limit)

    def _feed_on(self, more: bytes | Asked | None, data: bytes, position: int) -> None:
        """`more` is what the reader said of all before `position`."""
        while True:
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
            if self.ended:
                self._discard(len(piece) + max(0, len(data) - position))
                return
            if self._busy():
                self._unfed = piece + data[position:]
                self._update_reading()
                return
            more = self._reader.feed(piece)

    def _busy(self) -> bool:
        return self._write_paused or len(self._queue) >= self._server.limits.pipelined_max

    def _update_reading(self) -> None:
        transport = self._transport
        if transport is None or self.ended:
            return
        want = not self._busy() and not self._unfed
        if want != self._reading:
            self._reading = want
            if want:
                transport.resume_reading()
            else:
                transport.pause_reading()

    def _upgrade(self, request: Request, rest: bytes) -> None:
        if self._running is not None or self._queue:
            self.refuse(400)
            return
        request.keep_alive = False  # if it is refused, nobody knows what the client sends next
        self._unfed = rest
        self._reading = False
        if self._transport is not None:
            self._transport.pause_reading()
        self.accept(request)

    def _hand_over(self, answer: Upgrade) -> None:
        transport = self._transport
        assert transport is not None
        self._out.append(answer.head + b"\r\n")
        transport.write(b"".join(self._out))
        self._out = []
        rest, self._unfed = self._unfed, b""
        self.ended = True
        self._transport = None
        self._server.left(self)
        protocol = answer.protocol
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if not self._reading:
            transport.resume_reading()
        if rest:
            protocol.data_received(rest)

    # Ends

    def _discard(self, count: int) -> None:
        self._discarded += count
        if self._discarded > self._server.limits.discarded_bytes_max:
            self._discarding = False
            if self._running is None:
                self._close()
            elif self._transport is not None:
                self._transport.pause_reading()

    def refuse(self, status: int, headers: bytes = b"") -> None:
        """What is not HTTP, or more than we take: say so and leave, after what came before it."""
        if self.ended:
            return
        request = Request(b"GET", b"", {})
        answer = Response.of(status, headers=headers, close=True)
        if self._running is not None or self._queue:
            self.ended = True  # answers of a half-understood connection stop at the last good one
            self._queue.clear()
            return
        self._discarding = True
        self._respond(request, answer)

    def check_age(self) -> None:
        """Called by the sweep."""
        if self._running is not None and not self._write_paused:
            return
        limits = self._server.limits
        age = self._server.tick - self._since
        if self._write_paused:
            if age > limits.stalled_timeout_s:
                self.abort()
        elif self.ended:
            if age > limits.request_timeout_s:
                self.abort()
            elif age > 1:
                self._close()
        elif self._reader.in_message:
            if age > limits.request_timeout_s:
                self.refuse(408)
        elif age > limits.idle_timeout_s:
            self._close()

    def drain(self) -> None:
        """Close when nothing is under way; else the answer says that it is the last."""
        if self._running is None and not self._queue and not self._reader.in_message:
            self.ended = True
            self._close()

    def _close(self) -> None:
        self.ended = True
        if self._transport is not None:
            if self._out:
                self._transport.write(b"".join(self._out))
                self._out = []
            self._transport.close()

    def abort(self) -> None:
        self.ended = True
        if self._transport is not None:
            self._transport.abort()
