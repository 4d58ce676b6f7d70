"""Bytes become requests: the reading half of an HTTP/1.1 connection. httptools parses.

Rule 1: how long a body may be is decided before it is read. One that is longer is not kept; the
        request still goes on (`request.oversize`), because a handler's own checks may come first.
Rule 2: an upgrade that nobody here speaks is ignored, and the request is read as any other.

No I/O: what was read goes to a sink.
"""

from typing import Protocol

import httptools

from waystation.base.http_limits import HttpLimits
from waystation.base.http_message import Request
from waystation.base.http_usual import Bounds, usual_post


class Sink(Protocol):
    """The other half of the connection."""

    ended: bool  # nothing is taken any more

    @property
    def upgrades(self) -> frozenset[bytes]: ...

    def began(self) -> None:
        """The first byte of a request is here."""
        ...

    def expects(self) -> None: ...

    def accept(self, request: Request) -> None: ...

    def cut_short(self, request: Request) -> None:
        """Its body is so long that we do not wait for its end."""
        ...

    def refuse(self, status: int) -> None: ...


class Asked:
    """A request for another protocol that is spoken here, and the first bytes of that."""

    __slots__ = ("request", "rest")

    def __init__(self, request: Request, rest: bytes) -> None:
        self.request = request
        self.rest = rest


class RequestReader:
    """`feed` it; the other public methods are httptools'."""

    __slots__ = (
        "_body_max",
        "_bounds",
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
        "between",
        "in_message",
    )

    def __init__(self, sink: Sink, limits: HttpLimits, bounds: Bounds) -> None:
        self._sink = sink
        self._limits = limits
        self._headers_max = limits.headers_max
        self._bounds = bounds
        self._parser = httptools.HttpRequestParser(self)
        self.between = True  # two messages; not after the last one of a connection
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._request: Request | None = None  # whose body is being read
        self._parts: list[bytes] = []
        self._body_max = 0
        self._oversize = 0  # bytes of the body so far; 0 while it keeps to its limit
        self._head_bytes = 0
        self._repeated = 0
        self._in_head = False
        self._taking = False  # a head that somebody will look at
        self._replaying = False
        self.in_message = False

    def feed(self, data: bytes) -> "bytes | Asked | None":
        """None when all was read. Bytes are to be fed next, before anything else. `Asked` means
        that what follows is not for us to read."""
        if self.between and (usual := usual_post(data, self._bounds)) is not None:
            # The parser has nothing to remember between two messages, so it need not see this one;
            # nor has anybody to wait for it, so that it is as good as over when it begins.
            self._sink.accept(usual)
            return None
        return self.parse(data)

    def parse(self, data: bytes) -> "bytes | Asked | None":
        """As `feed`, for what is not a usual POST."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return self._on_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            if not self._sink.ended:  # else the parser only complains about our own end
                self._sink.refuse(400)
            return None
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes >= self._limits.head_bytes_max * 2:
                self._sink.refuse(431)
        return None

    def on_message_begin(self) -> None:
        self.in_message = self._in_head = True
        self.between = False
        self._sink.began()
        if not self._replaying:
            self._taking = True
            self._url = b""
            self._headers = {}
            self._repeated = 0

    def on_url(self, url: bytes) -> None:
        if self._taking:
            self._url = self._url + url if self._url else url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._taking:
            return  # a head of our own, or trailers, which nobody needs
        name, value, headers = name.lower(), value.rstrip(b" \t"), self._headers
        if name in headers:
            self._repeat(name, headers[name], value)
        else:
            headers[name] = value

    def _repeat(self, name: bytes, known: bytes, value: bytes) -> None:
        self._repeated += 1
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
            self._request = request = Request(parser.get_method(), url, headers, query)
        if len(headers) + self._repeated > self._headers_max:
            self._sink.refuse(431)
            return
        if parser.should_upgrade():
            return
        length = headers.get(b"content-length")
        if length is not None or b"transfer-encoding" in headers:
            self._body_max = self._bounds.body_limit(request)
            # The parser saw that it is a number.
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
            # HTTP/1.0 wants its keep-alive confirmed in so many words: not worth it.
            b"connection" in request.headers and parser.get_http_version() == "1.0"
        ):
            request.keep_alive = False
        self.between = request.keep_alive
        self._sink.accept(request)

    def _cut_short(self) -> None:
        request, self._request = self._request, None
        assert request is not None
        request.oversize = True
        self._oversize = 0
        self._sink.cut_short(request)

    def _on_upgrade(self, rest: bytes) -> "bytes | Asked | None":
        request = self._request
        if request is None or self._sink.ended:
            return None
        token = request.headers.get(b"upgrade", b"").lower()
        if request.method == b"CONNECT":
            self._sink.refuse(405)
            return None
        if token in self._sink.upgrades and b"transfer-encoding" not in request.headers:
            self._request = None
            self.in_message = False
            request.upgrade = token
            return Asked(request, rest)
        # RFC 9110, section 7.8: an upgrade may be ignored, and some clients offer h2c with every
        # request. The parser took the body for another protocol's bytes, so it is parsed again
        # behind a head that says how long it is.
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
    """Path and query of origin-form, absolute-form and `*` (RFC 9112, section 3.2)."""
    if not target.startswith(b"/") and b"://" in target:
        _, _, rest = target.partition(b"://")
        slash = rest.find(b"/")
        target = rest[slash:] if slash >= 0 else b"/"
    path, _, query = target.partition(b"?")
    return path, query
