"""The bytes that begin and end an answer: made once, the same on every connection.

`grpc-message` is percent-encoded as gRPC's own description of the protocol asks.
"""

from functools import lru_cache

from waystation.presence.transport.port import GrpcStatus

from .hpack import literal

_HEAD = literal(b":status", b"200") + literal(b"content-type", b"application/grpc")

RESPONSE_HEADERS = _HEAD


@lru_cache(maxsize=256)
def trailers(status: GrpcStatus, detail: str, *, alone: bool) -> bytes:
    """The block that ends a call; `alone` when nothing was sent before it (trailers only)."""
    block = literal(b"grpc-status", b"%d" % status)
    if detail:
        block += literal(b"grpc-message", percent_encoded(detail))
    return _HEAD + block if alone else block


def percent_encoded(text: str) -> bytes:
    out = bytearray()
    for byte in text.encode():
        if 0x20 <= byte <= 0x7E and byte != 0x25:
            out.append(byte)
        else:
            out += b"%%%02X" % byte
    return bytes(out)
