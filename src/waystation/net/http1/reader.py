"""Parses requests of an HTTP/1.1 connection, with httptools.

Rule 1: the limit of a body is known before it is read. A longer body is not kept; the request is
        still passed on (`request.oversize`), because a handler's own checks may come first.
Rule 2: an unsupported upgrade is ignored, and the request is read as any other.
Rule 3: a request with two Host or two Authorization lines is refused (RFC 9112, section 3.2; RFC
        9110, section 5.3): a proxy may have checked one line while the handler reads the other.
Rule 4: a request without a version, and a Transfer-Encoding that is not exactly `chunked`, is
        refused (RFC 9112, sections 2.3 and 6.1): servers disagree where such a body ends. So is a
        URL without a host (RFC 9110, section 4.2.1).

No I/O: results go to a sink.
"""

from collections.abc import Callable
from typing import Final, Protocol

import httptools

from waystation.net.http1.limits import HttpLimits
from waystation.net.http1.message import Request

SINGLE: Final = frozenset({b"authorization", b"host"})
_VERSIONS: Final = frozenset({"1.0", "1.1"})
_CHUNKED: Final = b"chunked"


class Sink(Protocol):
    """The connection, as the reader uses it."""

    ended: bool  # no further request is accepted

    @property
    def upgrades(self) -> frozenset[bytes]: ...

    def began(self) -> None:
        """The first byte of a request has arrived."""
        ...

    def expects(self) -> None: ...

    def accept(self, request: Request) -> None: ...

    def cut_short(self, request: Request) -> None:
        """The body is so long that its end is not awaited."""
        ...

    def refuse(self, status: int) -> None: ...


class Asked:
    """A request for a supported upgrade, and the first bytes of the new protocol."""

    __slots__ = ("request", "rest")

    def __init__(self, request: Request, rest: bytes) -> None:
        self.request = request
        self.rest = rest


class RequestReader:
    """Call `feed`; httptools calls the other public methods."""

    __slots__ = (
        "_bad_head",
        "_body_limit",
        "_body_max",
        "_head_bytes",
        "_headers",
        "_headers_max",
        "_in_head",
        "_limits",
        "_oversize",
        "_parser",
        "_parts",
        "_repeated",
        "_replaying",
        "_request",
        "_sink",
        "_taking",
        "_url",
        "in_message",
    )

    def __init__(
        self, sink: Sink, limits: HttpLimits, body_limit: Callable[[Request], int]
    ) -> None:
        self._sink = sink
        self._limits = limits
        self._headers_max = limits.headers_max
        self._body_limit = body_limit
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._request: Request | None = None  # whose body is being read
        self._parts: list[bytes] = []
        self._body_max = 0
        self._oversize = 0  # bytes of an oversize body so far; 0 within the limit
        self._head_bytes = 0
        self._repeated = 0
        self._bad_head = False
        self._in_head = False
        self._taking = False  # the current head is used
        self._replaying = False
        self.in_message = False

    def feed(self, data: bytes) -> "bytes | Asked | None":
        """None: all was read. Bytes: feed these next, before other input. `Asked`: an upgrade; the
        following bytes are not HTTP."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return self._on_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            if not self._sink.ended:  # else the error follows from our own end
                self._sink.refuse(400)
            return None
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes >= self._limits.head_bytes_max * 2:
                self._sink.refuse(431)
        return None

    def release(self) -> None:
        """Break the reference cycle of parser, reader and connection, which would otherwise wait
        for the garbage collector."""
        del self._parser
        del self._sink

    def on_message_begin(self) -> None:
        self.in_message = self._in_head = True
        self._sink.began()
        if not self._replaying:
            self._taking = True
            self._url = b""
            self._headers = {}
            self._repeated = 0
            self._bad_head = False

    def on_url(self, url: bytes) -> None:
        if self._taking:
            self._url = self._url + url if self._url else url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._taking:
            return  # the head made in `_on_upgrade`, or unused trailers
        name, value, headers = name.lower(), value.rstrip(b" \t"), self._headers
        if name in headers:
            self._repeat(name, headers[name], value)
        else:
            headers[name] = value

    def _repeat(self, name: bytes, known: bytes, value: bytes) -> None:
        self._repeated += 1
        if name in SINGLE:
            self._bad_head = True
        if self._repeated <= self._headers_max:
            self._headers[name] = known + b", " + value

    def on_headers_complete(self) -> None:
        self._in_head = self._taking = False
        self._head_bytes = 0
        if self._sink.ended:
            return
        parser, headers = self._parser, self._headers
        if self._replaying:
            request = self._request
            assert request is not None
        else:
            url, query = self._url, b""
            if b"?" in url or not url.startswith(b"/"):
                url, query = _split_target(url)
                self._bad_head = self._bad_head or not url
            self._request = request = Request(parser.get_method(), url, headers, query)
        if len(headers) + self._repeated > self._headers_max:
            self._sink.refuse(431)
            return
        coding = headers.get(b"transfer-encoding", _CHUNKED)
        if (
            self._bad_head
            or parser.get_http_version() not in _VERSIONS
            or coding.lower() != _CHUNKED
        ):
            self._sink.refuse(400)
            return
        if parser.should_upgrade():
            return
        length = headers.get(b"content-length")
        if length is not None or b"transfer-encoding" in headers:
            self._body_max = self._body_limit(request)
            # The parser has checked that it is a number.
            if length is not None and int(length) > self._body_max:
                self._oversize = 1
                if int(length) > self._limits.discarded_bytes_max or b"expect" in headers:
                    self._cut_short()
            elif b"expect" in headers and headers[b"expect"].lower() == b"100-continue":
                self._sink.expects()

    def on_body(self, part: bytes) -> None:
        if self._request is None:
            return
        if self._oversize:
            self._oversize += len(part)
            if self._oversize > self._limits.discarded_bytes_max:
                self._cut_short()
            return
        parts = self._parts
        parts.append(part)
        self._body_max -= len(part)
        if self._body_max < 0:
            self._oversize = sum(map(len, parts))
            parts.clear()

    def on_message_complete(self) -> None:
        self.in_message = False
        request = self._request
        if request is None or self._sink.ended:
            return
        parser = self._parser
        if parser.should_upgrade():
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
        if not parser.should_keep_alive() or (
            # HTTP/1.0 requires an explicit keep-alive header in the answer; it is not sent.
            b"connection" in request.headers and parser.get_http_version() == "1.0"
        ):
            request.keep_alive = False
        self._sink.accept(request)

    def _cut_short(self) -> None:
        request, self._request = self._request, None
        assert request is not None
        request.oversize = True
        self._oversize = 0
        self._sink.cut_short(request)

    def _on_upgrade(self, rest: bytes) -> "bytes | Asked | None":
        request, known = self._request, self._sink.upgrades
        if request is None or self._sink.ended:
            return None
        wanted = request.headers.get(b"upgrade", b"").lower()
        token = next((one for one in map(bytes.strip, wanted.split(b",")) if one in known), b"")
        if request.method == b"CONNECT":
            self._sink.refuse(405)
            return None
        # RFC 9110, section 7.8: the upgrade of an HTTP/1.0 request is ignored.
        if self._parser.get_http_version() == "1.0" or b"transfer-encoding" in request.headers:
            token = b""
        if token:
            self._request = None
            self.in_message = False
            request.upgrade = token
            return Asked(request, rest)
        # RFC 9110, section 7.8: an upgrade may be ignored, and some clients offer h2c with every
        # request. The parser took the body for another protocol's bytes, so it is parsed again
        # behind a head with its length.
        head = b"POST / HTTP/1.1\r\n"
        for name in (b"content-length", b"transfer-encoding"):
            if name in request.headers:
                head += name + b": " + request.headers[name] + b"\r\n"
        if b"close" in request.headers.get(b"connection", b"").lower():
            head += b"Connection: close\r\n"
        self._parser = httptools.HttpRequestParser(self)
        self._replaying = True
        return head + b"\r\n" + rest


def _split_target(target: bytes) -> tuple[bytes, bytes]:
    """Path and query of origin-form, absolute-form and `*` (RFC 9112, section 3.2); both empty for
    a URL without a host."""
    if not target.startswith(b"/") and b"://" in target:
        _, _, rest = target.partition(b"://")
        slash = rest.find(b"/")
        target = rest[slash:] if slash > 0 else b"/" if rest and slash < 0 else b""
    path, _, query = target.partition(b"?")
    return path, query
