"""What one connection may ask of us, and how soon a flood of cheap frames is noticed.

Frames that cost the sender nothing and move nothing forward have budgets: resets of streams that
were never answered, changes of settings, pings, and frames without any effect. A reset counts
whether the peer sends it ("rapid reset") or provokes it by a fault ("MadeYouReset",
CVE-2025-8671). A budget that is spent ends the connection with ENHANCE_YOUR_CALM.
"""

import msgspec

from waystation.base.limits import TokenBucket
from waystation.net.http2.port import (
    MESSAGE_BYTES_MAX,
    METADATA_BYTES_MAX,
    SEND_HIGH_BYTES,
    SEND_LOW_BYTES,
    STREAMS_PER_CONNECTION_MAX,
)

from .frames import ConnectionFault, ErrorCode

SEND_HIGH_BYTES_OF_CONNECTION = 64 * 1024  # queued in a turn; then they are written at once
PING_STRIKES_MAX = 2  # as in gRPC's own servers


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    streams_max: int = STREAMS_PER_CONNECTION_MAX
    message_bytes_max: int = MESSAGE_BYTES_MAX
    header_list_bytes_max: int = METADATA_BYTES_MAX
    header_block_bytes_max: int = 2 * METADATA_BYTES_MAX  # compressed, over all its frames
    header_unpacked_bytes_max: int = 8 * METADATA_BYTES_MAX  # beyond it is a bomb
    continuations_max: int = 16  # frames of one block after its first
    receive_window_bytes: int = 1 << 20  # of a connection; what its streams hold counts
    send_high_bytes: int = SEND_HIGH_BYTES
    send_low_bytes: int = SEND_LOW_BYTES
    blocked_bytes_max: int = 256 * 1024  # answers to a peer that does not read; then it is cut off
    handshake_timeout_s: float = 10.0  # preface, settings and their acknowledgement
    keepalive_s: float = 30.0  # without any frame from the peer
    keepalive_timeout_s: float = 10.0
    idle_timeout_s: float = 300.0  # without any stream
    linger_s: float = 10.0  # for a finished stream whose peer does not read its last messages
    ping_interval_s: float = 10.0  # pings closer together count as strikes
    premature_resets_burst: int = 200
    premature_resets_per_s: float = 20.0
    settings_burst: int = 50
    settings_per_s: float = 1.0
    idle_frames_burst: int = 1000
    idle_frames_per_s: float = 100.0


class Guard:
    """The budgets of one connection; made when the first such frame arrives."""

    __slots__ = ("_idle_frames", "_resets", "_settings")

    def __init__(self, limits: Limits) -> None:
        self._resets = TokenBucket(limits.premature_resets_per_s, limits.premature_resets_burst)
        self._settings = TokenBucket(limits.settings_per_s, limits.settings_burst)
        self._idle_frames = TokenBucket(limits.idle_frames_per_s, limits.idle_frames_burst)

    def premature_reset(self, mono: float) -> None:
        _spend(self._resets, mono, "too many streams were reset before they were answered")

    def settings_changed(self, mono: float) -> None:
        _spend(self._settings, mono, "too many changes of settings")

    def idle_frame(self, mono: float) -> None:
        _spend(self._idle_frames, mono, "too many frames without effect")


def _spend(bucket: TokenBucket, mono: float, reason: str) -> None:
    if bucket.take(mono) > 0.0:
        raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, reason)
