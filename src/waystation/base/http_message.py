"""An HTTP request as it was read, and a response as it will be written.

Both are plain objects with slots: one of each is made for every request.
"""

import asyncio
import http
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final


class Request:
    """Names of headers are lower case; a header that came twice has its values joined by a comma
    (RFC 9110, section 5.3), so a doubled singleton fails to parse instead of being picked.
    Requests may share their headers."""

    __slots__ = ("body", "headers", "keep_alive", "method", "oversize", "path", "query", "upgrade")

    def __init__(
        self,
        method: bytes,
        path: bytes,
        headers: Mapping[bytes, bytes],
        query: bytes = b"",
        body: bytes = b"",
    ) -> None:
        self.method = method
        self.path = path  # without the query, still percent-encoded
        self.query = query
        self.headers = headers
        self.body = body
        self.oversize = False  # the body was longer than its limit and was not kept
        self.keep_alive = True
        self.upgrade: bytes | None = None  # what the client wants to speak instead


class Response:
    """`head` is the status line and header lines, each with its line end; the server adds Date,
    Content-Length, Connection and the empty line."""

    __slots__ = ("body", "close", "head", "status")

    def __init__(self, status: int, head: bytes, body: bytes = b"", *, close: bool = False) -> None:
        self.status = status
        self.head = head
        self.body = body
        self.close = close

    @classmethod
    def of(
        cls,
        status: int,
        body: bytes = b"",
        *,
        content_type: bytes = b"",
        headers: bytes = b"",
        close: bool = False,
    ) -> "Response":
        head = STATUS_LINES[status] + headers
        if content_type:
            head += b"Content-Type: " + content_type + b"\r\n"
        return cls(status, head, body, close=close)


class Upgrade(Response):
    """The connection goes on as another protocol, which is given the transport and what came
    after the request."""

    __slots__ = ("protocol",)

    def __init__(self, protocol: asyncio.Protocol, token: bytes, headers: bytes = b"") -> None:
        super().__init__(
            101,
            STATUS_LINES[101] + b"Upgrade: " + token + b"\r\nConnection: Upgrade\r\n" + headers,
        )
        self.protocol = protocol


Handler = Callable[[Request], Response | Coroutine[Any, Any, Response]]

STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode()
    for status in http.HTTPStatus
}
