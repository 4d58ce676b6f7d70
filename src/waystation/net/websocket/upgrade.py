"""The request that opens a WebSocket, and the answers to those that do not (RFC 6455, section 4.2).

Rule 1: a request that asks for `Upgrade: websocket` is an upgrade on any path and query, because
        user agents keep those of their configured URL. A mistake in it is answered 400, another
        protocol version 426.
Rule 2: the sub-protocol `push-notification` is echoed if it was offered and never required; no
        extension is ever accepted.
"""

import binascii
import hashlib
from typing import Final

import msgspec

from waystation.net.http1.message import Request, Response

TOKEN: Final = b"websocket"
SUBPROTOCOL: Final = b"push-notification"
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3


class Upgrade(msgspec.Struct, frozen=True, kw_only=True):
    """A request that may become a WebSocket."""

    path: str
    query: str
    key: bytes
    subprotocol: bool  # `push-notification` was offered
    user_agent: str
    origin: str


def read_upgrade(request: Request) -> Upgrade | Response | None:
    """None for a plain request; a response refuses."""
    headers = request.headers
    if not _has_token(headers.get(b"upgrade", b""), TOKEN):
        return None
    # The demands of section 4.2.1, in its order. The reader ignores the `Upgrade` of HTTP/1.0.
    if request.method != b"GET":
        return refusal(400, b"an upgrade is a GET over HTTP/1.1")
    if not request.path.startswith(b"/"):
        return refusal(400, b"the target is no path")
    if not headers.get(b"host") or b" " in headers[b"host"]:
        return refusal(400, b"one Host header is needed")
    if headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers:
        return refusal(400, b"an upgrade has no body")
    if not _has_token(headers.get(b"connection", b""), b"upgrade"):
        return refusal(400, b"Connection does not name Upgrade")
    if request.upgrade is None:
        return refusal(400, b"an upgrade is a GET over HTTP/1.1")
    try:
        nonce = binascii.a2b_base64(headers.get(b"sec-websocket-key", b""), strict_mode=True)
    except binascii.Error:
        nonce = b""
    if len(nonce) != 16:
        return refusal(400, b"Sec-WebSocket-Key is not 16 bytes in base64")
    version = headers.get(b"sec-websocket-version", b"")
    if version != b"13":
        if not version.isdigit():
            return refusal(400, b"Sec-WebSocket-Version is missing or odd")
        return refusal(426, b"use version 13", b"Sec-WebSocket-Version: 13\r\n")
    return Upgrade(
        path=request.path.decode("latin-1"),
        query=request.query.decode("latin-1"),
        key=headers[b"sec-websocket-key"],
        subprotocol=_has_token(headers.get(b"sec-websocket-protocol", b""), SUBPROTOCOL),
        user_agent=headers.get(b"user-agent", b"").decode("latin-1"),
        origin=headers.get(b"origin", b"").decode("latin-1"),
    )


def accept_headers(upgrade: Upgrade) -> bytes:
    """What the 101 says beside `Upgrade` and `Connection`."""
    digest = hashlib.sha1(upgrade.key + _GUID, usedforsecurity=False).digest()
    return b"Sec-WebSocket-Accept: %b\r\n%b" % (
        binascii.b2a_base64(digest, newline=False),
        b"Sec-WebSocket-Protocol: push-notification\r\n" if upgrade.subprotocol else b"",
    )


def refusal(status: int, sentence: bytes, headers: bytes = b"") -> Response:
    """An answer after which the connection ends."""
    return Response.of(
        status, sentence + b"\n", content_type=b"text/plain", headers=headers, close=True
    )


def _has_token(value: bytes, token: bytes) -> bool:
    """Whether a comma-separated header names `token`, in any case."""
    value = value.lower()
    return value == token or (
        token in value and token in [part.strip(b" \t") for part in value.split(b",")]
    )
