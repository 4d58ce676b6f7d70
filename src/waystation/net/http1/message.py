"""HTTP requests and responses.

Structs without equality, because one of each is made for every request.
"""

import http
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Protocol

import msgspec

from waystation.net.connection import Connection


class Client(Protocol):
    """The connection of a request."""

    def has_left(self) -> bool: ...

    def peer_address(self) -> str: ...


class Request(msgspec.Struct, eq=False, gc=False):
    """Names of headers are lower case; a header that came twice has its values joined by a comma
    (RFC 9110, section 5.3), so a doubled singleton fails to parse instead of being picked."""

    method: bytes
    path: bytes  # without the query, still percent-encoded
    headers: Mapping[bytes, bytes]
    query: bytes = b""
    body: bytes = b""
    oversize: bool = False  # the body was longer than its limit and was not kept
    keep_alive: bool = True
    upgrade: bytes | None = None  # the protocol that the client requests
    client: Client | None = None  # set before a handler is called

    @property
    def abandoned(self) -> bool:
        """Whether the client has closed its side, even if the loop has not noticed yet."""
        return self.client is not None and self.client.has_left()

    @property
    def peer_address(self) -> str:
        return "" if self.client is None else self.client.peer_address()


class Response(msgspec.Struct, eq=False):
    """`head` is the status line and header lines, each with its line end; the server adds Date,
    Content-Length, Connection and the empty line."""

    status: int
    head: bytes
    body: bytes = b""
    close: bool = False

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
        return Response(status, head, body, close)


class Upgrade(Response, kw_only=True):
    """Switches the socket to another protocol, which gets the bytes after the request."""

    connection: Connection

    @classmethod
    def to(cls, connection: Connection, token: bytes, headers: bytes = b"") -> "Upgrade":
        lines = b"Upgrade: " + token + b"\r\nConnection: Upgrade\r\n" + headers
        return cls(101, STATUS_LINES[101] + lines, connection=connection)


Handler = Callable[[Request], Response | Coroutine[Any, Any, Response]]

STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode()
    for status in http.HTTPStatus
}
