"""The limits of the WebSocket shell, each with the answer that reaching it gets."""

import msgspec


class ShellLimits(msgspec.Struct, frozen=True, kw_only=True):
    connections_max: int = 0  # upgrades beyond it: 503; 0 is what the system allows
    upgrading_max: int = 4096  # connections without an upgrade yet; beyond: 503 at once
    lingering_max: int = 4096  # connections that wait for the peer to close; beyond: closed at once
    head_bytes_max: int = 8192  # a longer request head: 431
    message_bytes_max: int = 65_536  # a longer message: close 1002
    send_high_bytes: int = 65_536  # unsent bytes that make a client congested
    send_bytes_max: int = 1_048_576  # unsent bytes at which it is cut
    read_bytes_max: int = 16_384  # taken from one client in a turn; the rest waits in the kernel
    events_max: int = 128  # taken from epoll in a turn; the rest comes with the next
    writes_max: int = 1024  # clients written to in a turn; the rest follows in the next
    accepts_max: int = 64  # new connections in a turn
    handshakes_max: int = 8  # steps of TLS handshakes in a turn: each may cost a millisecond
    upgrade_timeout_s: float = 5.0  # connect to upgrade: 408
    linger_s: float = 1.0  # Close to closed
