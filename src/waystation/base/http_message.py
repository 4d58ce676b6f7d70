"""An HTTP request as it was read, and a response as it will be written.

Both are structs without equality: one of each is made for every request.
"""

import asyncio
import http
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import msgspec


class Meaning:
    """A place for what a handler has understood of a head. Whatever is left here was read from the
    headers of a head alone, but for Authorization."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: object = None


class Rest(msgspec.Struct, eq=False, gc=False):
    """A head that came before, without its Authorization. Made by `http_usual`."""

    headers: dict[bytes, bytes]
    before: bytes  # all of it from the end of the first line to the value of Authorization
    after: bytes  # and from there to the body
    body_bytes: int
    meaning: Meaning


class SharedHeaders(dict[bytes, bytes]):
    """Headers of a head that came before, as all its requests have them. The place for their
    meaning is also that of heads that differ in Authorization only. Made by `http_usual`."""

    __slots__ = ("body_bytes", "meaning", "proof", "rest", "text")

    body_bytes: int  # as Content-Length says it; -1 if it says nothing, or says it oddly
    meaning: Meaning
    proof: object  # a place for what a handler has found of its Authorization; None at first
    rest: Rest | None  # without Authorization, if there is one and that came before
    text: bytes  # as it was sent, with the line ends around it; empty if it is not remembered


class Familiar(msgspec.Struct, eq=False, gc=False):
    """A first line that came before, and the head that came with it last: all of a request but its
    Authorization and its body. Requests that have both share it. Made by `http_usual`; what others
    leave here must not lead back to them, because it may stay for as long as the process runs."""

    path: bytes
    rest: Rest | None = None  # of that head; None if it has no Authorization
    headers: SharedHeaders | None = None  # the last that is remembered as it is
    fits: object = None  # the mark of the last server that found it within its bounds
    found: object = None  # a place for what a handler has found of such a request


class Request(msgspec.Struct, eq=False, gc=False):
    """Names of headers are lower case; a header that came twice has its values joined by a comma
    (RFC 9110, section 5.3), so a doubled singleton fails to parse instead of being picked.
    Requests may share their headers."""

    method: bytes
    path: bytes  # without the query, still percent-encoded
    headers: Mapping[bytes, bytes]
    query: bytes = b""
    body: bytes = b""
    familiar: Familiar | None = None  # if all but Authorization and body came before
    oversize: bool = False  # the body was longer than its limit and was not kept
    keep_alive: bool = True
    upgrade: bytes | None = None  # what the client wants to speak instead


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
    """The connection goes on as another protocol, which is given the transport and what came
    after the request."""

    protocol: asyncio.Protocol

    @classmethod
    def to(cls, protocol: asyncio.Protocol, token: bytes, headers: bytes = b"") -> "Upgrade":
        lines = b"Upgrade: " + token + b"\r\nConnection: Upgrade\r\n" + headers
        return cls(101, STATUS_LINES[101] + lines, protocol=protocol)


Handler = Callable[[Request], Response | Coroutine[Any, Any, Response]]

STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode()
    for status in http.HTTPStatus
}
