"""The HTTP request that opens a connection: a WebSocket upgrade, or a plain question.

Rule 1: a request that asks for `Upgrade: websocket` is an upgrade on any path and query (real user
        agents keep those of their configured URL); a mistake in it is answered 400, another
        protocol version 426 (RFC 6455 section 4.2).
Rule 2: anything else is a plain request, for whoever answers health routes on this port. What
        nobody answers is 400 on `/` and 404 elsewhere, whatever the method: the node API does
        not exist on the public port.
Rule 3: the sub-protocol `push-notification` is echoed if it was offered and never required; no
        extension is ever accepted.

A head is parsed once, when it is complete; the caller bounds its length. The syntax is httptools'
part: measured, it costs what splitting by hand costs (4 µs) and knows all the traps.
"""

import binascii
import hashlib
from urllib.parse import urlsplit

import httptools
import msgspec

SUBPROTOCOL = b"push-notification"

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455 section 1.3
_HEAD_END = b"\r\n\r\n"
_WANTED = frozenset(
    (
        b"connection",
        b"content-length",
        b"host",
        b"origin",
        b"sec-websocket-key",
        b"sec-websocket-protocol",
        b"sec-websocket-version",
        b"transfer-encoding",
        b"upgrade",
        b"user-agent",
    )
)


class Upgrade(msgspec.Struct, frozen=True, kw_only=True):
    """A request that may become a WebSocket."""

    path: str
    query: str
    key: bytes
    subprotocol: bool  # `push-notification` was offered
    user_agent: str
    origin: str


class HttpHead(msgspec.Struct, frozen=True, kw_only=True):
    """A plain request."""

    method: str
    path: str
    query: str


class Refusal(msgspec.Struct, frozen=True):
    """A request that gets `answer`, a complete response, and nothing else."""

    status: int
    answer: bytes


def head_length(data: bytes | bytearray) -> int:
    """Bytes up to and with the blank line; 0 while the head is incomplete."""
    at = data.find(_HEAD_END)
    return at + len(_HEAD_END) if at >= 0 else 0


def parse_head(head: bytes | bytearray) -> Upgrade | HttpHead | Refusal:
    """`head` is exactly one head, with its blank line."""
    fields = _Fields()
    parser = httptools.HttpRequestParser(fields)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        pass  # says that an upgrade was asked for; which one is ours to judge
    except httptools.HttpParserError:
        return refusal(400, "not an HTTP request")
    if not fields.complete:
        return refusal(400, "not an HTTP request")
    headers = fields.headers
    if fields.target.startswith(b"/"):
        target, _, query = fields.target.decode("latin-1").partition("?")
    else:  # the absolute form of RFC 9112 section 3.2.2, or something worse
        try:
            parts = urlsplit(fields.target.decode("latin-1"))
        except ValueError:
            return refusal(400, "bad request target")
        if not parts.netloc:
            return refusal(400, "bad request target")
        target, query = parts.path or "/", parts.query
    method = parser.get_method().decode("latin-1")
    if not _has_token(headers.get(b"upgrade", b""), b"websocket"):
        return HttpHead(method=method, path=target, query=query)
    trouble = _upgrade_trouble(method, parser.get_http_version(), headers)
    if trouble is not None:
        return trouble
    return Upgrade(
        path=target,
        query=query,
        key=headers[b"sec-websocket-key"],
        subprotocol=_has_token(headers.get(b"sec-websocket-protocol", b""), SUBPROTOCOL),
        user_agent=headers.get(b"user-agent", b"").decode("latin-1"),
        origin=headers.get(b"origin", b"").decode("latin-1"),
    )


def _upgrade_trouble(method: str, version: str, headers: dict[bytes, bytes]) -> Refusal | None:
    """The demands of RFC 6455 section 4.2.1, in its order."""
    if method != "GET" or version != "1.1":
        return refusal(400, "an upgrade is a GET over HTTP/1.1")
    if not headers.get(b"host") or b", " in headers[b"host"]:
        return refusal(400, "one Host header is needed")
    if headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers:
        return refusal(400, "an upgrade has no body")
    if not _has_token(headers.get(b"connection", b""), b"upgrade"):
        return refusal(400, "Connection does not name Upgrade")
    try:
        nonce = binascii.a2b_base64(headers.get(b"sec-websocket-key", b""), strict_mode=True)
    except binascii.Error:
        nonce = b""
    if len(nonce) != 16:
        return refusal(400, "Sec-WebSocket-Key is not 16 bytes in base64")
    wanted = headers.get(b"sec-websocket-version", b"")
    if wanted == b"13":
        return None
    if not wanted.isdigit():
        return refusal(400, "Sec-WebSocket-Version is missing or odd")
    return Refusal(426, http_answer(426, b"use version 13\n", b"Sec-WebSocket-Version: 13\r\n"))


def accept_answer(upgrade: Upgrade) -> bytes:
    """The 101 that turns the connection into a WebSocket."""
    digest = hashlib.sha1(upgrade.key + _GUID, usedforsecurity=False).digest()
    return b"%b%b\r\n%b\r\n" % (
        b"HTTP/1.1 101 Switching Protocols\r\n"
        b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ",
        binascii.b2a_base64(digest, newline=False),
        b"Sec-WebSocket-Protocol: push-notification\r\n" if upgrade.subprotocol else b"",
    )


_PHRASES = {
    200: b"OK",
    400: b"Bad Request",
    404: b"Not Found",
    408: b"Request Timeout",
    418: b"I'm a teapot",
    426: b"Upgrade Required",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    503: b"Service Unavailable",
}


def http_answer(
    status: int, body: bytes = b"", headers: bytes = b"", *, content_type: bytes = b"text/plain"
) -> bytes:
    """A complete response after which the connection ends. `headers` are whole lines."""
    return (
        b"HTTP/1.1 %d %b\r\n%bContent-Type: %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
        % (
            status,
            _PHRASES.get(status, b"Status"),
            headers,
            content_type,
            len(body),
            body,
        )
    )


def refusal(status: int, sentence: str) -> Refusal:
    return Refusal(status, http_answer(status, sentence.encode() + b"\n"))


def unanswered(head: HttpHead) -> Refusal:
    """For a plain request that nobody here answers (rule 2)."""
    if head.path == "/":
        return refusal(400, "this is a WebSocket server")
    return refusal(404, "not found")


def _has_token(value: bytes, token: bytes) -> bool:
    """Whether a comma-separated header names `token`, in any case."""
    value = value.lower()
    return value == token or (
        token in value and token in [part.strip(b" \t") for part in value.split(b",")]
    )


class _Fields:
    """What httptools calls back; keeps the few headers that matter."""

    __slots__ = ("complete", "headers", "target")

    def __init__(self) -> None:
        self.target = b""
        self.headers: dict[bytes, bytes] = {}
        self.complete = False

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in _WANTED:
            earlier = self.headers.get(name)
            # RFC 9110 section 5.3: repeated fields read as one list.
            self.headers[name] = value if earlier is None else earlier + b", " + value

    def on_headers_complete(self) -> None:
        self.complete = True
