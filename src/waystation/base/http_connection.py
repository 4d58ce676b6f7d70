"""One HTTP/1.1 connection: bytes in, requests to a handler, answers out. httptools parses.

Rule 1: requests of one connection are answered one after another, in order; what was answered
        during one turn of the loop leaves in one write.
Rule 2: how long a body may be is decided before it is read. One that is longer is not kept; the
        handler still runs (`request.oversize`), because its own checks may come first.
Rule 3: a handler that does not wait costs no task. One that waits goes on even if its client
        leaves: what was accepted is finished.
Rule 4: everything has a limit (`HttpLimits`): head, headers, body, pipelined requests, time.

The hot path is `data_received` to `_respond`; what is rare has methods of its own.
"""

import asyncio
from collections import deque
from typing import Final, Protocol, cast

import httptools
import msgspec

from waystation.base.http_message import Handler, Request, Response, Upgrade
from waystation.base.tasks import Done, eager

_LARGE_BYTES: Final = 16_384  # such an answer is not held back for others of its turn
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """A head is refused somewhere between `head_bytes_max` and twice that: to be exact would cost
    a sum per header."""

    head_bytes_max: int = 16_384
    headers_max: int = 100
    pipelined_max: int = 16  # beyond that, reading pauses
    discarded_bytes_max: int = 262_144  # of a body too long, so that its sender sees our answer
    connections_max: int = 0  # 0 is no limit
    idle_timeout_s: float = 75.0
    request_timeout_s: float = 20.0  # first byte to last
    stalled_timeout_s: float = 30.0  # of a client that does not read


class HttpHost(Protocol):
    """What a connection needs of its server."""

    handler: Handler
    loop: asyncio.AbstractEventLoop
    limits: HttpLimits
    upgrades: frozenset[bytes]  # what `Upgrade:` may ask for; others are ignored
    connections: "set[HttpConnection]"
    tasks: set[asyncio.Task[Response]]
    draining: bool
    refused_connections: int
    tick: int  # seconds, as the sweep counts them
    date: bytes

    def body_limit(self, request: Request, /) -> int: ...

    def on_failure(self, request: Request, error: BaseException, /) -> Response:
        """The answer when a handler raised."""
        ...

    def left(self, connection: "HttpConnection") -> None: ...


class HttpConnection(asyncio.Protocol):
    """One client's connection."""

    __slots__ = (
        "_body_max",
        "_continue_due",
        "_discarded",
        "_discarding",
        "_ended",
        "_eof",
        "_head_bytes",
        "_headers",
        "_in_head",
        "_in_message",
        "_loop",
        "_out",
        "_oversize",
        "_parser",
        "_parts",
        "_queue",
        "_reading",
        "_repeated",
        "_replaying",
        "_request",
        "_running",
        "_server",
        "_since",
        "_transport",
        "_turn",
        "_unfed",
        "_url",
        "_write_paused",
    )

    def __init__(self, server: HttpHost) -> None:
        self._server = server
        self._loop = server.loop
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._since = server.tick
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._request: Request | None = None  # whose body is being read
        self._parts: list[bytes] = []
        self._body_max = 0
        self._oversize = 0  # bytes of the body so far; 0 while it keeps to its limit
        self._head_bytes = 0
        self._repeated = 0
        self._in_head = False
        self._in_message = False
        self._replaying = False
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
        self._ended = False  # no further request is begun

    # The transport calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server = self._server
        self._transport = cast(asyncio.Transport, transport)
        limit = server.limits.connections_max
        if server.draining or (limit and len(server.connections) >= limit):
            server.refused_connections += 1
            server.connections.add(self)
            self._refuse(503, b"Retry-After: 10\r\n")
            return
        server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._transport = None
        self._queue.clear()
        self._out.clear()
        self._unfed = b""
        self._server.left(self)

    def data_received(self, data: bytes) -> None:
        if self._ended:
            self._discard(len(data))
            return
        if self._unfed:
            self._unfed += data
            return
        self._turn = True
        self._feed(data)
        self._turn = False
        if self._out:
            self._flush()

    def eof_received(self) -> bool:
        # A half-closed client may still wait for its answer.
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

    # httptools calls these

    def on_message_begin(self) -> None:
        self._in_message = self._in_head = True
        self._since = self._server.tick
        if not self._replaying:
            self._url = b""
            self._headers = {}
            self._repeated = 0

    def on_url(self, url: bytes) -> None:
        if not self._replaying:
            self._url = self._url + url if self._url else url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._replaying or not self._in_head:
            return  # a head of our own, or trailers, which nobody needs
        headers = self._headers
        name = name.lower()
        value = value.rstrip(b" \t")
        if name not in headers:
            headers[name] = value
        else:
            self._repeated += 1
            if self._repeated <= self._server.limits.headers_max:
                headers[name] = headers[name] + b", " + value

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        if self._ended:
            return
        parser = self._parser
        url, headers = self._url, self._headers
        query = b""
        if b"?" in url or not url.startswith(b"/"):
            url, query = _split_target(url)
        if not self._replaying:
            self._request = request = Request(parser.get_method(), url, headers, query)
        else:
            request = self._request
            assert request is not None
        if len(headers) + self._repeated > self._server.limits.headers_max:
            self._refuse(431)
            return
        if parser.should_upgrade():
            return
        if b"content-length" in headers or b"transfer-encoding" in headers:
            self._expect_body(request, headers)

    def _expect_body(self, request: Request, headers: dict[bytes, bytes]) -> None:
        self._body_max = self._server.body_limit(request)
        length = int(headers.get(b"content-length", b"0"))  # the parser saw that it is a number
        if length > self._body_max:
            self._oversize = 1
            if length > self._server.limits.discarded_bytes_max or b"expect" in headers:
                self._cut_short()
        elif headers.get(b"expect", b"").lower() == b"100-continue":
            if self._running is None and not self._queue:
                self._out.append(_CONTINUE)
            else:
                self._continue_due = True

    def on_body(self, part: bytes) -> None:
        if self._request is None:
            return
        if self._oversize:
            self._oversize += len(part)
            if self._oversize > self._server.limits.discarded_bytes_max:
                self._cut_short()
            return
        parts = self._parts
        parts.append(part)
        self._body_max -= len(part)
        if self._body_max < 0:
            self._oversize = sum(map(len, parts))
            parts.clear()

    def on_message_complete(self) -> None:
        self._in_message = False
        request = self._request
        if request is None or self._ended:
            return
        if self._parser.should_upgrade():
            return  # `feed_data` raises HttpParserUpgrade next
        self._request = None
        self._replaying = False
        parts = self._parts
        if parts:
            request.body = parts[0] if len(parts) == 1 else b"".join(parts)
            self._parts = []
        if self._oversize:
            request.oversize = True
            self._oversize = 0
        parser = self._parser
        if not parser.should_keep_alive() or (
            # HTTP/1.0 wants its keep-alive confirmed in so many words: not worth it.
            b"connection" in request.headers and parser.get_http_version() == "1.0"
        ):
            request.keep_alive = False
        self._accept(request)

    # Requests begin, wait and end

    def _accept(self, request: Request) -> None:
        if self._running is not None or self._queue or self._write_paused:
            self._queue.append(request)
            self._update_reading()
        else:
            self._run(request)

    def _run(self, request: Request) -> None:
        server = self._server
        try:
            answer = server.handler(request)
            if not isinstance(answer, Response):
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
        if isinstance(answer, Upgrade):
            self._hand_over(answer)
            return
        body = answer.body
        if not request.keep_alive or answer.close or server.draining or self._last():
            end = b"Connection: close\r\n\r\n"
            self._ended = True
        else:
            end = b"\r\n"
        if answer.status == 204:  # RFC 9110, section 8.6: no Content-Length
            self._out.append(b"%b%b%b" % (answer.head, server.date, end))
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
            self._flush()

    def _last(self) -> bool:
        return self._ended or (self._eof and not self._queue)

    def _advance(self) -> None:
        """After an answer or a pause: the next request, and what was read but not parsed."""
        self._turn = True
        while not self._ended and self._running is None and not self._write_paused:
            if self._queue:
                self._run(self._queue.popleft())
            elif self._unfed:
                data, self._unfed = self._unfed, b""
                self._feed(data)
            else:
                break
        if self._continue_due and self._running is None and not self._queue and not self._ended:
            self._continue_due = False
            self._out.append(_CONTINUE)
        self._turn = False
        if self._out:
            self._flush()
        self._update_reading()

    def _flush(self) -> None:
        out = self._out
        if self._transport is not None:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))
        self._out = []
        if self._ended and self._running is None:
            if not self._discarding:
                self._close()
            elif self._transport is not None and self._transport.can_write_eof():
                self._transport.write_eof()  # the client sees the end; we read on for a moment

    # Reading

    def _feed(self, data: bytes) -> None:
        limit = self._server.limits.head_bytes_max
        if len(data) <= limit:
            self._feed_slice(data)
            return
        # In slices, so that no head can grow beyond its limit inside one large read.
        for start in range(0, len(data), limit):
            if self._ended:
                self._discard(len(data) - start)
                return
            if self._busy():
                self._unfed = data[start:]
                self._update_reading()
                return
            if self._feed_slice(data[start : start + limit], data[start + limit :]):
                return

    def _feed_slice(self, data: bytes, rest: bytes = b"") -> bool:
        """Whether `rest` was taken over."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._on_upgrade(data[upgrade.args[0] :] + rest)
            return True
        except httptools.HttpParserError:
            if not self._ended:  # else the parser only complains about our own end
                self._refuse(400)
            return True
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes >= self._server.limits.head_bytes_max * 2:
                self._refuse(431)
                return True
        return False

    def _busy(self) -> bool:
        return self._write_paused or len(self._queue) >= self._server.limits.pipelined_max

    def _update_reading(self) -> None:
        transport = self._transport
        if transport is None or self._ended:
            return
        want = not self._busy() and not self._unfed
        if want != self._reading:
            self._reading = want
            if want:
                transport.resume_reading()
            else:
                transport.pause_reading()

    def _on_upgrade(self, rest: bytes) -> None:
        request = self._request
        if request is None or self._ended:
            return
        token = request.headers.get(b"upgrade", b"").lower()
        if request.method == b"CONNECT":
            self._refuse(405)
        elif token in self._server.upgrades and (self._running is not None or self._queue):
            self._refuse(400)
        elif token in self._server.upgrades and b"transfer-encoding" not in request.headers:
            self._request = None
            self._in_message = False
            request.upgrade = token
            request.keep_alive = False  # if it is refused, nobody knows what the client sends next
            self._unfed = rest
            self._reading = False
            if self._transport is not None:
                self._transport.pause_reading()
            self._accept(request)
        else:
            # RFC 9110, section 7.8: an upgrade may be ignored, and some clients offer h2c with
            # every request. The parser took the body for another protocol's bytes, so it is
            # parsed again behind a head that says how long it is.
            head = b"POST / HTTP/1.1\r\n"
            for name in (b"content-length", b"transfer-encoding"):
                if name in request.headers:
                    head += name + b": " + request.headers[name] + b"\r\n"
            if b"close" in request.headers.get(b"connection", b"").lower():
                head += b"Connection: close\r\n"
            self._parser = httptools.HttpRequestParser(self)
            self._replaying = True
            self._feed(head + b"\r\n" + rest)

    def _hand_over(self, answer: Upgrade) -> None:
        transport = self._transport
        assert transport is not None
        self._out.append(answer.head + b"\r\n")
        transport.write(b"".join(self._out))
        self._out = []
        rest, self._unfed = self._unfed, b""
        self._ended = True
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

    def _cut_short(self) -> None:
        """A body much too long: answer now, and read on only so that the answer is seen."""
        request, self._request = self._request, None
        assert request is not None
        request.oversize = True
        request.keep_alive = False
        self._oversize = 0
        self._discarding = True
        self._accept(request)
        self._ended = True

    def _discard(self, count: int) -> None:
        self._discarded += count
        if self._discarded > self._server.limits.discarded_bytes_max:
            self._discarding = False
            if self._running is None:
                self._close()
            elif self._transport is not None:
                self._transport.pause_reading()

    def _refuse(self, status: int, headers: bytes = b"") -> None:
        """What is not HTTP, or more than we take: say so and leave, after what came before it."""
        if self._ended:
            return
        request = Request(b"GET", b"", {})
        self._request = None
        answer = Response.of(status, headers=headers, close=True)
        if self._running is not None or self._queue:
            self._ended = True  # answers of a half-understood connection stop at the last good one
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
        elif self._ended:
            if age > limits.request_timeout_s:
                self.abort()
            elif age > 1:
                self._close()
        elif self._in_message:
            if age > limits.request_timeout_s:
                self._refuse(408)
        elif age > limits.idle_timeout_s:
            self._close()

    def drain(self) -> None:
        """Close when nothing is under way; else the answer says that it is the last."""
        if self._running is None and not self._queue and not self._in_message:
            self._ended = True
            self._close()

    def _close(self) -> None:
        self._ended = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        self._ended = True
        if self._transport is not None:
            self._transport.abort()


def _split_target(target: bytes) -> tuple[bytes, bytes]:
    """Path and query of origin-form, absolute-form and `*` (RFC 9112, section 3.2)."""
    if not target.startswith(b"/") and b"://" in target:
        _, _, rest = target.partition(b"://")
        slash = rest.find(b"/")
        target = rest[slash:] if slash >= 0 else b"/"
    path, _, query = target.partition(b"?")
    return path, query
