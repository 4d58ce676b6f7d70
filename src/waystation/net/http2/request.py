"""What the headers of a call say, and whether they are a request at all (RFC 9113, section 8).

Headers that break HTTP/2 are `MalformedRequestError`: the stream is reset. A sound request that is
not gRPC is read all the same: the connection answers it as HTTP.
"""

import re

import msgspec

from .hpack import Field

_FORBIDDEN = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
_PSEUDO = frozenset((b":method", b":scheme", b":path", b":authority"))
_UPPER = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_GRPC = re.compile(rb"application/grpc([+;]|$)")
LENGTH_DIGITS_MAX = 15
_BAD_IN_VALUES = frozenset(b"\x00\r\n")


class MalformedRequestError(ValueError):
    """Section 8.1.1: a stream error of type PROTOCOL_ERROR."""


class Request(msgspec.Struct, frozen=True, gc=False):
    path: bytes
    authorization: str | None
    is_grpc: bool
    is_head: bool
    body_bytes: int | None  # as `content-length` announces


def read_request(fields: list[Field]) -> Request:
    method = path = scheme = None
    authorization: bytes | None = None
    content_type = b""
    body_bytes: int | None = None
    regular = False
    seen: set[bytes] = set()
    for name, value in fields:
        if name[:1] == b":":
            if regular or name in seen or name not in _PSEUDO:
                raise MalformedRequestError("a pseudo-header out of its place")
            seen.add(name)
            if name == b":method":
                method = value
            elif name == b":path":
                path = value
            elif name == b":scheme":
                scheme = value
            continue
        regular = True
        check_field(name, value)
        if name == b"content-type":
            content_type = value
        elif name == b"authorization":
            if authorization is not None:
                raise MalformedRequestError("authorization stands twice")
            authorization = value
        elif name == b"content-length":
            if body_bytes is not None or not value.isdigit() or len(value) > LENGTH_DIGITS_MAX:
                raise MalformedRequestError("content-length is not one number")
            body_bytes = int(value)
    if method is None or not path or scheme is None:
        raise MalformedRequestError("a pseudo-header is missing")
    return Request(
        path=path,
        authorization=None if authorization is None else authorization.decode("latin-1"),
        is_grpc=method == b"POST" and _GRPC.match(content_type) is not None,
        is_head=method == b"HEAD",
        body_bytes=body_bytes,
    )


def check_field(name: bytes, value: bytes) -> None:
    """Sections 8.2, 8.2.1 and 8.2.2."""
    if not name or not _UPPER.isdisjoint(name) or name in _FORBIDDEN:
        raise MalformedRequestError("a header that HTTP/2 does not have")
    if name == b"te" and value != b"trailers":
        raise MalformedRequestError("te other than trailers")
    if not _BAD_IN_VALUES.isdisjoint(value):
        raise MalformedRequestError("a control character in a header")


def check_trailers(fields: list[Field]) -> None:
    for name, value in fields:
        if name[:1] == b":":
            raise MalformedRequestError("a pseudo-header among the trailers")
        check_field(name, value)
