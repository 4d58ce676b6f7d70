"""Base class of all connections: one socket of the loop. Protocols subclass `Connection`.

The object is everything that the loop keeps per socket: six slots, no transport, no timer, no bound
methods. It determines the memory of an idle connection.
"""

from typing import TYPE_CHECKING, Final

from waystation.net.tls import Bytes, Carrier, SecureCarrier

if TYPE_CHECKING:
    from waystation.net.loop import Port

# State flags of a connection in one small integer; CPython shares the one of idle connections.
OPEN: Final = 1  # the socket is usable, and `closed` has not been called
SHAKING: Final = 2  # TLS is not established yet
ENDING: Final = 4  # nothing more is sent or delivered
LINGERING: Final = 8  # everything is sent; waits for the peer to close
DEAD: Final = 16  # the descriptor is closed, or handed over to another connection
DOOMED: Final = 32  # ends and drops unsent bytes
PAUSED: Final = 64  # the protocol has paused reading
READ_OFF: Final = 128  # epoll does not watch for input
BLOCKED: Final = 256  # epoll watches for room to write
TOUCHED: Final = 512  # is processed before the turn ends
TLS: Final = 1024  # the carrier is a `SecureCarrier`
HALF_CLOSED: Final = 2048  # the peer has closed its sending side
OVERFLOWED: Final = 4096  # was closed because the peer did not read
OWN_FLAGS: Final = 1 << 13  # bits from here on belong to the protocol

# With any of these flags an event needs more than a read.
NOT_PLAIN_INPUT: Final = (
    SHAKING | ENDING | LINGERING | DEAD | DOOMED | PAUSED | READ_OFF | BLOCKED | HALF_CLOSED
)


class Connection:
    """Protocols call the first group of methods and override the second.

    The loop never calls an overridden method from within a call of the first group. An exception of
    an overridden method ends this connection only.
    """

    __slots__ = ("carrier", "fd", "flags", "out", "out_bytes", "port")

    pulls = False  # whether the loop calls `fill`

    def __init__(self, port: "Port") -> None:
        self.port = port
        self.carrier: Carrier | None = None  # None before the loop has taken the socket
        self.fd = -1
        self.flags: int = 0
        self.out: list[Bytes] | None = None  # unsent, in order
        self.out_bytes = 0

    # --- for protocols to call -----------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Queue data; all data of a turn leaves in one write. Ignored after `end`."""
        if self.flags & ENDING:
            return
        out = self.out
        if out is None:
            self.out = [data]
            self.out_bytes = len(data)
            if not self.flags & TOUCHED:
                self.touch()
        else:
            out.append(data)
            self.out_bytes += len(data)
        if self.out_bytes >= self.port.send_high_bytes:
            self.port.pressed(self)

    def touch(self) -> None:
        """Have the loop process this connection before the turn ends."""
        if not self.flags & (TOUCHED | DEAD):
            self.flags |= TOUCHED
            self.port.net.touched(self)

    @property
    def is_open(self) -> bool:
        """Whether `send` has an effect."""
        return self.flags & (OPEN | ENDING) == OPEN

    @property
    def is_blocked(self) -> bool:
        """Whether the kernel has not accepted everything; `drained` follows."""
        return bool(self.flags & BLOCKED)

    @property
    def congested(self) -> bool:
        """Whether so much is unsent that nothing new should be sent; see `drained`."""
        return self.out_bytes >= self.port.send_high_bytes

    def end(self) -> None:
        """Send queued data, then close. `closed` follows when the caller has returned."""
        if not self.flags & ENDING:
            self.flags |= ENDING
            self.port.net.ending(self)

    def abort(self) -> None:
        """Close and drop unsent data. `closed` follows when the caller has returned."""
        self.lost()

    def pause(self) -> None:
        """Stop reading until `resume`."""
        self.flags |= PAUSED

    def resume(self) -> None:
        """Read again. `received(b"")` is called first, for data that was read before the pause."""
        if self.flags & (PAUSED | ENDING) == PAUSED:  # an ending connection is not read
            self.flags &= ~PAUSED
            self.port.net.resumed(self)

    def become(self, other: "Connection", rest: bytes = b"") -> None:
        """Hand the socket over, with unsent data and the unprocessed `rest` of the input. `opened`
        of `other` is called at once, `closed` of this connection never."""
        self.port.net.replace(self, other, rest)

    @property
    def secure(self) -> SecureCarrier | None:
        """The TLS carrier; None without TLS."""
        return self.carrier if self.flags & TLS else None  # pyright: ignore[reportReturnType]

    def peer_address(self) -> str:
        """Asks the kernel each time: needed too seldom to be stored."""
        return "" if self.carrier is None else self.carrier.peer_address(self.fd)

    def has_left(self) -> bool:
        """Whether the peer has closed its side. Asks the kernel, because the loop notices the end
        only after reading the last data."""
        return self.carrier is None or self.carrier.has_left(self.fd)

    # --- for the loop ----------------------------------------------------------------------------

    def lost(self) -> None:
        """The connection broke, or must be closed."""
        self.out = None
        self.out_bytes = 0
        self.flags |= ENDING | DOOMED
        self.touch()

    # --- for protocols to override -------------------------------------------------------------

    def opened(self) -> None:
        """The connection is established, TLS included."""

    def received(self, data: bytes) -> None:
        """Data was read; `b""` after `resume`."""

    def half_closed(self) -> None:
        """The peer has closed its sending side. Overridden by protocols that may still answer."""
        self.lost()

    def fill(self) -> bool:
        """Called at the end of a turn if there is room to write: send data. Returns whether there
        is more for the next turn. See `pulls`."""
        return False

    def drained(self) -> None:
        """All queued data has left, after the kernel had not accepted it at once."""

    def failed(self, exc: Exception) -> None:
        """One of these methods raised; the loop has reported it."""
        self.lost()

    def closed(self) -> None:
        """The connection has ended. Called exactly once, as the last method."""
