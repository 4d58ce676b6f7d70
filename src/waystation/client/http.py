"""A small HTTP/1.1 client: enough to talk to a push service, on the event loop and nothing else.

One request at a time per connection; a few idle connections are kept for each origin. It is our
own because what an app server needs is one POST with a short answer, and the default install
should not carry a general HTTP client for it; the parser is httptools.

Rule 1: a request is written once. When a connection breaks before its answer, nobody knows whether
        the other side took it, so the error goes to the caller, who alone knows if again is fine.
Rule 2: an answer's body has a limit, and the whole exchange has a timeout.
"""

import asyncio
import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import httptools
import msgspec

from waystation.base.errors import UnavailableError

from .vapid import origin_of

_READ_BYTES = 65_536


class HttpError(UnavailableError):
    """No usable answer: refused, broken off, too slow, too long or not HTTP."""

    label = "http"


class Response(msgspec.Struct, frozen=True):
    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes


class HttpClient:
    def __init__(
        self,
        *,
        timeout_s: float = 30.0,
        body_bytes_max: int = 1_048_576,
        idle_max: int = 16,  # over all origins
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._body_bytes_max = body_bytes_max
        self._idle_max = idle_max
        self._tls = tls
        self._idle: list[tuple[str, _Connection]] = []  # longest idle first
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        self._closed = True
        idle, self._idle = self._idle, []
        for _, connection in idle:
            await connection.close()

    async def request(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Response:
        assert not self._closed
        origin = origin_of(url)
        request = _request_bytes(method, url, headers or {}, body)
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = self._take_idle(origin) or await self._connect(url)
                try:
                    response = await connection.exchange(request, self._body_bytes_max)
                except BaseException:
                    connection.abort()
                    raise
        except TimeoutError as exc:
            raise HttpError(f"no answer from {origin} within {self._timeout_s:g} s") from exc
        except (OSError, ssl.SSLError, EOFError, httptools.HttpParserError) as exc:
            raise HttpError(f"{origin}: {exc or type(exc).__name__}") from exc
        if connection.reusable and not self._closed:
            self._keep(origin, connection)
        else:
            connection.abort()
        return response

    def _take_idle(self, origin: str) -> "_Connection | None":
        for index in range(len(self._idle) - 1, -1, -1):
            if self._idle[index][0] == origin:
                _, connection = self._idle.pop(index)
                if connection.alive:
                    return connection
                connection.abort()
        return None

    def _keep(self, origin: str, connection: "_Connection") -> None:
        if self._idle_max == 0:
            connection.abort()
            return
        if len(self._idle) >= self._idle_max:
            self._idle.pop(0)[1].abort()
        self._idle.append((origin, connection))

    async def _connect(self, url: str) -> "_Connection":
        parts = urlsplit(url)
        assert parts.hostname is not None  # origin_of has looked
        tls: ssl.SSLContext | None = None
        if parts.scheme == "https":
            self._tls = tls = self._tls or ssl.create_default_context()
        reader, writer = await asyncio.open_connection(
            parts.hostname, parts.port or (443 if tls else 80), ssl=tls
        )
        return _Connection(reader, writer)


class _Connection:
    """One socket; also what httptools calls while it parses an answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._complete = False
        self._parser: httptools.HttpResponseParser | None = None
        self.reusable = False

    @property
    def alive(self) -> bool:
        """Whether the other side has kept an idle connection open and silent, as it should."""
        return not self._reader.at_eof() and not self._writer.is_closing()

    async def exchange(self, request: bytes, body_bytes_max: int) -> Response:
        self._complete = self.reusable = False
        self._parser = parser = httptools.HttpResponseParser(self)
        self._writer.write(request)
        await self._writer.drain()
        while not self._complete:
            data = await self._reader.read(_READ_BYTES)
            if not data:
                return self._ended_by_close(parser)
            parser.feed_data(data)
            if len(self._body) > body_bytes_max:
                raise EOFError(f"an answer of more than {body_bytes_max} bytes")
        return Response(parser.get_status_code(), self._headers, bytes(self._body))

    def _ended_by_close(self, parser: httptools.HttpResponseParser) -> Response:
        lengths = {"content-length", "transfer-encoding"}
        if not self._headers or lengths & self._headers.keys():
            raise EOFError("the connection closed before the answer was complete")
        return Response(parser.get_status_code(), self._headers, bytes(self._body))

    def on_message_begin(self) -> None:
        self._headers = {}
        self._body.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        assert self._parser is not None
        if self._parser.get_status_code() >= 200:  # 1xx is not the answer yet
            self._complete = True
            self.reusable = self._parser.should_keep_alive()

    def abort(self) -> None:
        self._writer.transport.abort()

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except (OSError, ssl.SSLError):
            self.abort()


def _request_bytes(method: str, url: str, headers: Mapping[str, str], body: bytes) -> bytes:
    parts = urlsplit(url)
    target = parts.path or "/"
    if parts.query:
        target += f"?{parts.query}"
    host = origin_of(url).partition("://")[2]
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    for line in lines:
        if not line.isprintable() or not line.isascii():
            raise ValueError("a request line or header with a character that HTTP does not have")
    return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + body
