"""The limits of a WebSocket port, each with the answer that reaching it gets."""

import msgspec


class WebSocketLimits(msgspec.Struct, frozen=True, kw_only=True):
    connections_max: int = 0  # upgrades beyond it: 503; 0 is what the system allows
    upgrading_max: int = 4096  # connections without an upgrade yet; beyond: 503
    head_bytes_max: int = 8192  # a longer request head (at most twice that): 431
    message_bytes_max: int = 65_536  # a longer message: close 1002
    send_high_bytes: int = 65_536  # unsent bytes that make a client congested
    send_bytes_max: int = 1_048_576  # unsent bytes at which it is cut
    upgrade_timeout_s: float = 5.0  # connect to upgrade: 408
