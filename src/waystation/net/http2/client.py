"""An HTTP/2 client for one origin: many requests at once over one connection that stays.

Rule 1: a request that the server cannot have seen goes out again on the next connection, within its
        own time: it was not sent, its stream is above the last one of a GOAWAY, or it was reset
        with REFUSED_STREAM (RFC 9113, section 8.7). Every other failure is told to the caller,
        because the server may have acted on it.
Rule 2: after a GOAWAY no stream is opened, and those that the server will finish are finished
        (section 6.8). `h2` closes a connection at a GOAWAY, so that frame is read here.
Rule 3: streams, waiting requests and the bytes of an answer have limits.
Rule 4: when a request has timed out and nothing at all has come since it was sent, the connection
        takes no new requests. Those that it has keep their time; if nothing comes for them either,
        it is dropped.
Rule 5: a connection counts as made when the server's SETTINGS have come. One that ends before it
        has answered anything counts as a send of each request that waited for it, so that a server
        that turns everybody away is not asked again and again.

`h2` is the protocol; this file moves its bytes.
"""

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, cast
from urllib.parse import urlsplit

import msgspec
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import NoAvailableStreamIDError, ProtocolError, StreamClosedError
from h2.settings import SettingCodes, Settings

from waystation.base.errors import BusyError
from waystation.base.tasks import in_task

_FRAME_HEAD_BYTES: Final = 9
_GOAWAY: Final = 7
_SENDS_MAX: Final = 3  # of one request, the first included
DEFAULT_PORTS: Final = {"http": 80, "https": 443}

Headers = Sequence[tuple[str, str]]


class Http2Limits(msgspec.Struct, frozen=True):
    streams_max: int = 500  # open at once; the server may allow fewer
    waiting_max: int = 2000  # requests that wait for a stream or for the connection
    answer_bytes_max: int = 65_536
    connect_timeout_s: float = 5.0
    idle_timeout_s: float = 600.0


class Http2Answer(msgspec.Struct, frozen=True):
    status: int
    headers: dict[str, str]
    body: bytes


class Http2FailedError(Exception):
    """The server was not reached, or the connection broke, or the answer is none."""


class _NotSeenError(Exception):
    """The server has not acted on the request (rule 1)."""


class _Exchange:
    """One request on one connection."""

    __slots__ = (
        "answer",
        "done",
        "head",
        "headers",
        "left",
        "sent_mono",
        "size",
        "status",
        "stream_id",
    )

    def __init__(self, head: Headers, body: bytes, done: "asyncio.Future[Http2Answer]") -> None:
        self.head = head
        self.left = body  # not sent yet
        self.done = done
        self.stream_id = 0  # none yet
        self.sent_mono = 0.0
        self.status = 0  # none yet
        self.headers: dict[str, str] = {}
        self.answer: list[bytes] = []
        self.size = 0

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def finish(self) -> None:
        if not self.done.done():
            self.done.set_result(Http2Answer(self.status, self.headers, b"".join(self.answer)))


class Http2Client:
    """For one origin; `request` connects when that is needed."""

    def __init__(
        self,
        origin: str,
        *,
        loop: asyncio.AbstractEventLoop,
        tls: ssl.SSLContext | None = None,
        limits: Http2Limits | None = None,
    ) -> None:
        """`tls` must offer `h2` by ALPN; an origin of plain `http` is spoken to with HTTP/2 from
        the first byte (RFC 9113, section 3.3)."""
        parts = urlsplit(origin)
        assert parts.scheme in DEFAULT_PORTS, f"{origin} is neither http nor https"
        assert parts.hostname, f"{origin} names no host"
        self.origin = origin
        self._host, self._port = parts.hostname, parts.port or DEFAULT_PORTS[parts.scheme]
        self._scheme, self._authority = parts.scheme, parts.netloc.rpartition("@")[2]
        self._tls = (tls or http2_tls()) if parts.scheme == "https" else None
        self._loop = loop
        self._limits = limits or Http2Limits()
        self._connection: _Connection | None = None
        self._old: set[_Connection] = set()  # that finish what they have
        self._connecting: asyncio.Task[_Connection] | None = None
        self._waiting = 0
        self._closed = False
        self.connections_made = 0

    @property
    def connections(self) -> int:
        """Open ones: the current one, and those that finish what they have."""
        return len(self._old) + (self._connection is not None)

    async def request(
        self, method: str, path: str, headers: Headers, body: bytes = b"", *, timeout_s: float
    ) -> Http2Answer:
        """Raises `Http2FailedError`, `TimeoutError`, or `BusyError` at the limit."""
        head = [
            (":method", method),
            (":scheme", self._scheme),
            (":authority", self._authority),
            (":path", path),
            *headers,
        ]
        await in_task()  # an endpoint takes the first step of a request outside of any
        try:
            async with asyncio.timeout(timeout_s) as limit:
                return await self._send(head, body, limit)
        except TimeoutError:
            raise TimeoutError(f"{self._authority}: no answer in {timeout_s:g} s") from None

    async def close(self) -> None:
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            with contextlib.suppress(asyncio.CancelledError, Http2FailedError):
                await self._connecting
        for connection in (*self._old, self._connection):
            if connection is not None:
                connection.abort("the client is closed")

    async def _send(self, head: Headers, body: bytes, limit: asyncio.Timeout) -> Http2Answer:
        sends = 0
        while sends < _SENDS_MAX:
            connection = self._connection or await self._connected()
            exchange = _Exchange(head, body, self._loop.create_future())
            connection.begin(exchange)
            try:
                return await exchange.done
            except _NotSeenError:
                # Else it waited in vain for a stream of a connection that worked.
                sends += exchange.stream_id != 0 or not connection.answered
            finally:
                connection.end(exchange, timed_out=limit.expired())
        raise Http2FailedError(f"{self._authority}: refused {_SENDS_MAX} times")

    async def _connected(self) -> "_Connection":
        if self._closed:
            raise Http2FailedError(f"{self._authority}: the client is closed")
        if self._waiting >= self._limits.waiting_max:
            raise BusyError(f"{self._waiting} requests wait for a connection", retry_after_s=1.0)
        if self._connecting is None:
            self._connecting = self._loop.create_task(self._connect())
            # All requests that wait for it may time out; its error must still be retrieved.
            self._connecting.add_done_callback(_look)
        connecting = self._connecting
        self._waiting += 1
        try:
            # A request that times out must not cancel the connection of the others.
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            if connecting.cancelled():
                raise Http2FailedError(f"{self._authority}: the client is closed") from None
            raise
        finally:
            self._waiting -= 1

    async def _connect(self) -> "_Connection":
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(self._limits.connect_timeout_s):
                _, connection = await self._loop.create_connection(
                    lambda: _Connection(self._loop, self._limits, self._on_left),
                    self._host,
                    self._port,
                    ssl=self._tls,
                    server_hostname=self._host if self._tls is not None else None,
                )
                if not connection.speaks_http2():
                    raise OSError("the server does not speak HTTP/2")
                if failure := await connection.settled:
                    raise OSError(failure)
        except BaseException as exc:
            if connection is not None:
                connection.abort("it was not made in time")
            if not isinstance(exc, (OSError, TimeoutError)):
                raise
            reason = "no connection in time" if isinstance(exc, TimeoutError) else str(exc)
            raise Http2FailedError(f"{self._authority}: {reason}") from exc
        finally:
            self._connecting = None
        self.connections_made += 1
        if not connection.leaving:
            self._connection = connection
        return connection

    def _on_left(self, connection: "_Connection", closed: bool) -> None:
        """It takes no new requests any more; `closed`: it is gone."""
        if self._connection is connection:
            self._connection = None
        if closed:
            self._old.discard(connection)
        else:
            self._old.add(connection)


class Http2Clients:
    """One client for each origin, so that apps of one vendor share its connection."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, limits: Http2Limits | None = None
    ) -> None:
        self._loop = loop
        self._limits = limits
        self._clients: dict[str, Http2Client] = {}

    def of(self, url: str) -> Http2Client:
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}"
        client = self._clients.get(origin)
        if client is None:
            client = Http2Client(origin, loop=self._loop, limits=self._limits)
            self._clients[origin] = client
        return client

    @property
    def connections(self) -> int:
        return sum(client.connections for client in self._clients.values())

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()


class _Connection(asyncio.Protocol):
    """From connect to close."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: Http2Limits,
        on_left: Callable[["_Connection", bool], None],
    ) -> None:
        self._loop = loop
        self._limits = limits
        self._on_left = on_left
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._transport: asyncio.Transport | None = None
        self._open: dict[int, _Exchange] = {}
        self._waiting: deque[_Exchange] = deque()  # for a stream
        self._blocked: deque[_Exchange] = deque()  # by the server's flow control
        self._unread = b""  # the beginning of a frame
        self._flushing = False
        self._unwritten: set[int] = set()  # streams of which nothing has left yet
        # Done when the server has said how many streams it allows, or else why it never will.
        self.settled: asyncio.Future[str] = loop.create_future()
        # A GOAWAY came, all stream ids are used, it was idle or silent, or it has ended.
        self.leaving = False
        self.answered = False  # at least one request
        self._received_mono = 0.0
        self._silent_mono = 0.0  # when a request last timed out in silence
        self._idle: asyncio.TimerHandle | None = None

    # The transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass of it
        # Not by an item, which would be a change that the server has to acknowledge.
        self._h2.local_settings = Settings(
            client=True, initial_values={SettingCodes.ENABLE_PUSH: 0}
        )
        self._h2.initiate_connection()
        self._flush()
        self._watch_idle()

    def speaks_http2(self) -> bool:
        assert self._transport is not None
        tls = self._transport.get_extra_info("ssl_object")
        return tls is None or tls.selected_alpn_protocol() == "h2"

    def data_received(self, data: bytes) -> None:
        self._received_mono = self._loop.time()
        try:
            for event in self._h2.receive_data(self._without_goaway(data)):
                self._take(event)
        except (ProtocolError, ValueError) as exc:  # `h2` lets some values through
            self.abort(f"the server broke the protocol: {exc}")
            return
        self._start_waiting()
        self._flush_soon()
        self._close_if_done()

    def eof_received(self) -> None:
        """No answer can come any more, while the transport may stay to write what it has."""
        self.abort("closed by the server")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_all(str(exc) if exc is not None else "closed by the server")

    def abort(self, reason: str) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._end_all(reason)

    # Requests

    def begin(self, exchange: _Exchange) -> None:
        if self.leaving:
            exchange.fail(_NotSeenError())
            return
        if len(self._waiting) >= self._limits.waiting_max:
            raise BusyError(f"{len(self._waiting)} requests wait for a stream", retry_after_s=1.0)
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        self._waiting.append(exchange)
        self._start_waiting()
        self._flush_soon()

    def end(self, exchange: _Exchange, *, timed_out: bool) -> None:
        """Its caller has the answer, or has given up."""
        if exchange.stream_id == 0:
            with contextlib.suppress(ValueError):
                self._waiting.remove(exchange)
        elif self._open.pop(exchange.stream_id, None) is not None:
            with contextlib.suppress(ProtocolError):
                self._h2.reset_stream(exchange.stream_id, ErrorCodes.CANCEL)
            if timed_out and self._received_mono < exchange.sent_mono:
                self._silent_mono = self._loop.time()
                self._leave()  # rule 4
        self._start_waiting()
        self._flush_soon()
        self._close_if_done()
        if not self._open and not self._waiting:
            self._watch_idle()

    def _start_waiting(self) -> None:
        limits, settings = self._limits, self._h2.remote_settings
        while self._waiting and not self.leaving:
            if len(self._open) >= min(limits.streams_max, settings.max_concurrent_streams):
                return
            exchange = self._waiting.popleft()
            if exchange.done.done():
                continue
            try:
                exchange.stream_id = self._h2.get_next_available_stream_id()
            except NoAvailableStreamIDError:
                exchange.fail(_NotSeenError())
                self._leave()
                return
            exchange.sent_mono = self._loop.time()
            self._open[exchange.stream_id] = exchange
            self._unwritten.add(exchange.stream_id)
            self._h2.send_headers(exchange.stream_id, exchange.head, end_stream=not exchange.left)
            if exchange.left:
                self._send_body(exchange)

    def _send_body(self, exchange: _Exchange) -> None:
        """As much as the server's flow control allows."""
        stream_id = exchange.stream_id
        while exchange.left:
            try:
                window = self._h2.local_flow_control_window(stream_id)
                room = min(window, self._h2.max_outbound_frame_size)
                if room <= 0:
                    self._blocked.append(exchange)
                    return
                part, left = exchange.left[:room], exchange.left[room:]
                self._h2.send_data(stream_id, part, end_stream=not left)
            except StreamClosedError:
                return  # it was reset by a frame that came with this one, and whose event follows
            exchange.left = left

    # Frames

    def _without_goaway(self, data: bytes) -> bytes:
        """Whole frames for `h2`, and none that would make it close (rule 2)."""
        data = self._unread + data
        kept: list[bytes] = []
        at = 0
        while len(data) - at >= _FRAME_HEAD_BYTES:
            length = int.from_bytes(data[at : at + 3], "big")
            if length > self._h2.max_inbound_frame_size:
                self._unread = b""
                return b"".join(kept) + data[at:]  # which `h2` refuses
            end = at + _FRAME_HEAD_BYTES + length
            if end > len(data):
                break
            if data[at + 3] == _GOAWAY and length >= 8:
                self._goaway(int.from_bytes(data[at + 9 : at + 13], "big") & 0x7FFF_FFFF)
            else:
                kept.append(data[at:end])
            at = end
        self._unread = data[at:]
        return b"".join(kept)

    def _goaway(self, last_stream_id: int) -> None:
        for stream_id in [one for one in self._open if one > last_stream_id]:
            self._open.pop(stream_id).fail(_NotSeenError())
        self._leave()

    def _take(self, event: Event) -> None:
        match event:
            case ResponseReceived(stream_id=int(stream_id), headers=headers):
                exchange = self._open.get(stream_id)
                if exchange is not None:
                    for name, value in headers or ():
                        exchange.headers[str(name)] = str(value)
                    exchange.status = int(exchange.headers.pop(":status", "0"))
            case DataReceived(stream_id=int(stream_id), data=data):
                size = event.flow_controlled_length or 0
                self._h2.acknowledge_received_data(size, stream_id)
                exchange = self._open.get(stream_id)
                if exchange is not None:
                    self._collect(exchange, data or b"")
            case StreamEnded(stream_id=int(stream_id)):
                exchange = self._open.pop(stream_id, None)
                if exchange is not None:
                    self.answered = True
                    exchange.finish()
                    if exchange.left:  # the stream would stay open without its end
                        with contextlib.suppress(ProtocolError):
                            self._h2.reset_stream(stream_id, ErrorCodes.CANCEL)
            case StreamReset(stream_id=int(stream_id), error_code=code):
                exchange = self._open.pop(stream_id, None)
                if exchange is not None:
                    refused = code == ErrorCodes.REFUSED_STREAM
                    exchange.fail(
                        _NotSeenError()
                        if refused
                        else Http2FailedError(f"the server reset the request (code {code})")
                    )
            case WindowUpdated() | RemoteSettingsChanged():
                if isinstance(event, RemoteSettingsChanged) and not self.settled.done():
                    self.settled.set_result("")
                blocked, self._blocked = self._blocked, deque()
                for exchange in blocked:
                    if exchange.stream_id in self._open:
                        self._send_body(exchange)
            case _:
                pass  # what asks nothing of us

    def _collect(self, exchange: _Exchange, data: bytes) -> None:
        exchange.size += len(data)
        if exchange.size > self._limits.answer_bytes_max:
            del self._open[exchange.stream_id]
            exchange.fail(
                Http2FailedError(f"the answer exceeds {self._limits.answer_bytes_max} bytes")
            )
            with contextlib.suppress(ProtocolError):  # that was its end
                self._h2.reset_stream(exchange.stream_id, ErrorCodes.CANCEL)
            return
        exchange.answer.append(data)

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        data = self._h2.data_to_send()
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
            self._unwritten.clear()

    # The end

    def _watch_idle(self) -> None:
        if self._idle is None and not self.leaving:
            self._idle = self._loop.call_later(self._limits.idle_timeout_s, self._leave)

    def _leave(self) -> None:
        """No new requests; those that are open are finished."""
        if not self.leaving:
            self.leaving = True
            self._on_left(self, False)
        for exchange in self._waiting:
            exchange.fail(_NotSeenError())
        self._waiting.clear()
        self._close_if_done()

    def _close_if_done(self) -> None:
        if not self.leaving or self._open or self._transport is None:
            return
        if self._received_mono < self._silent_mono:
            self.abort("nothing came for the time of a whole request")  # it may never close
            return
        self._flush()
        self._transport.close()

    def _end_all(self, reason: str) -> None:
        self.leaving = True
        if self._idle is not None:
            self._idle.cancel()
        self._on_left(self, True)
        if not self.settled.done():
            self.settled.set_result(reason)
        for stream_id, exchange in self._open.items():
            unseen = stream_id in self._unwritten
            exchange.fail(
                _NotSeenError() if unseen else Http2FailedError(f"connection lost: {reason}")
            )
        for exchange in self._waiting:
            exchange.fail(_NotSeenError())
        self._open.clear()
        self._waiting.clear()


def http2_tls(*, cert: str = "", key: str = "") -> ssl.SSLContext:
    """TLS of a client that speaks HTTP/2, with a certificate of its own where files are given."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    if cert:
        # With a passphrase, if the wrong one, OpenSSL asks for none on the terminal.
        context.load_cert_chain(cert, key or None, password="")
    return context


def _look(task: "asyncio.Task[_Connection]") -> None:
    if not task.cancelled():
        task.exception()
