"""What the headers of a call say, and whether they are a request at all (RFC 9113, section 8).

Headers that break HTTP/2 are `MalformedRequestError`: the stream is reset. Headers of a sound
request that is no call of ours are `NotServedError`: the peer is told UNIMPLEMENTED.
"""

from collections.abc import Collection

import msgspec

from .hpack import Field

_FORBIDDEN = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
_PSEUDO = frozenset((b":method", b":scheme", b":path", b":authority"))
_UPPER = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_BAD_IN_VALUES = frozenset(b"\x00\r\n")


class MalformedRequestError(ValueError):
    """Section 8.1.1: a stream error of type PROTOCOL_ERROR."""


class NotServedError(Exception):
    """A fine request to somebody else."""


class Request(msgspec.Struct, frozen=True, gc=False):
    authorization: str | None


_NO_TOKEN = Request(None)


class RequestReader:
    """What the calls of one connection say; `Decoder` gives the same list for the same headers.
    Most connections have one call, so the second is the first to be remembered; tokens never are.
    """

    __slots__ = ("_again", "_fields", "_paths")

    def __init__(self, paths: Collection[bytes]) -> None:
        self._paths = paths
        self._again = False
        self._fields: list[Field] | None = None  # of a request without a token

    def read(self, fields: list[Field]) -> Request:
        if fields is self._fields:
            return _NO_TOKEN
        request = read_request(fields, self._paths)
        if self._again and request.authorization is None:
            self._fields = fields
        self._again = True
        return request


def read_request(fields: list[Field], paths: Collection[bytes]) -> Request:
    method = path = scheme = None
    authorization: bytes | None = None
    content_type = b""
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
            authorization = value
    if method is None or not path or scheme is None:
        raise MalformedRequestError("a pseudo-header is missing")
    if method != b"POST" or path not in paths:
        raise NotServedError("unknown method")
    if not content_type.startswith(b"application/grpc") or content_type[16:17] not in b"+;":
        raise NotServedError("the content type is not application/grpc")
    if authorization is None:
        return _NO_TOKEN
    return Request(authorization.decode("latin-1"))


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
