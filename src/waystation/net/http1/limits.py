"""Limits of an HTTP server."""

import msgspec


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """A head is refused somewhere between `head_bytes_max` and twice that; an exact limit would
    cost an addition per header."""

    head_bytes_max: int = 16_384
    headers_max: int = 100
    pipelined_max: int = 16  # at the limit, reading pauses
    discarded_bytes_max: int = 262_144  # a longer body is answered before its end
    connections_max: int = 512  # beyond that: 503; 0 is no limit
    idle_timeout_s: float = 75.0
    request_timeout_s: float = 20.0  # first byte to last
    stalled_timeout_s: float = 30.0  # of a client that does not read
