"""The bytes that begin and end an answer: made once, the same on every connection.

`grpc-message` is percent-encoded as gRPC's own description of the protocol asks.
"""

from functools import lru_cache

from waystation.net.http2.port import GrpcStatus

from .hpack import literal

RESPONSE_HEADERS = literal(b":status", b"200") + literal(b"content-type", b"application/grpc")
# gRPC over HTTP/2: a content type that is not gRPC SHOULD be answered with 415.
NOT_GRPC_HEADERS = literal(b":status", b"415") + literal(b"content-type", b"text/plain")
NOT_GRPC_BODY = b"this port speaks gRPC\n"


@lru_cache(maxsize=256)
def trailers(status: GrpcStatus, detail: str, *, alone: bool) -> bytes:
    """The block that ends a call; `alone` when nothing was sent before it (trailers only)."""
    block = literal(b"grpc-status", b"%d" % status)
    if detail:
        block += literal(b"grpc-message", percent_encoded(detail))
    return RESPONSE_HEADERS + block if alone else block


def percent_encoded(text: str) -> bytes:
    out = bytearray()
    for byte in text.encode():
        if 0x20 <= byte <= 0x7E and byte != 0x25:
            out.append(byte)
        else:
            out += b"%%%02X" % byte
    return bytes(out)
