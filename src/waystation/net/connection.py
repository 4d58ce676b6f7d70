"""Base class of all connections: one socket of the loop. Protocols subclass `Connection`.

The object is everything that the loop keeps per socket: six slots, no transport, no timer, no bound
methods. It determines the memory of an idle connection.
"""

from typing import TYPE_CHECKING, Final

from waystation.net.tls import Bytes, Carrier, SecureCarrier

if TYPE_CHECKING:
    from waystation.net.loop import Port

# State flags of a connection in one small integer; CPython shares the one of idle connections.
OPEN: Final = 1  # the socket is usable, and the protocol has not been told otherwise
SHAKING: Final = 2  # TLS is not established yet
ENDING: Final = 4  # nothing more is sent or delivered
LINGERING: Final = 8  # all is sent; waits for the peer to close
DEAD: Final = 16  # the descriptor is closed, or another connection has it
DOOMED: Final = 32  # ends without sending what is unsent
PAUSED: Final = 64  # the protocol takes nothing now
READ_OFF: Final = 128  # epoll does not watch for input
BLOCKED: Final = 256  # epoll watches for room to write
TOUCHED: Final = 512  # will be looked at before the turn ends
TLS: Final = 1024  # the carrier has a handshake behind it or before it
HALF_CLOSED: Final = 2048  # the peer sends nothing more
OVERFLOWED: Final = 4096  # was cut because the peer did not read
OWN_FLAGS: Final = 1 << 13  # bits from here on belong to the protocol

# With any of these an event is more than input to read.
NOT_PLAIN_INPUT: Final = (
    SHAKING | ENDING | LINGERING | DEAD | DOOMED | PAUSED | READ_OFF | BLOCKED | HALF_CLOSED
)


class Connection:
    """The first group of methods is for protocols to call, the second for them to override.

    The loop never calls an overridden method from within a call of the first group. What such a
    method raises costs this connection and no other.
    """

    __slots__ = ("carrier", "fd", "flags", "out", "out_bytes", "port")

    pulls = False  # whether `fill` is wanted

    def __init__(self, port: "Port") -> None:
        self.port = port
        self.carrier: Carrier | None = None  # none before the loop has taken it in
        self.fd = -1
        self.flags: int = 0
        self.out: list[Bytes] | None = None  # unsent, in order
        self.out_bytes = 0

    # --- for protocols to call -----------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Queue it; what is queued in a turn of the loop leaves in one write. Ignored at the
        end."""
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
        """Have the loop look at this connection before the turn ends."""
        if not self.flags & (TOUCHED | DEAD):
            self.flags |= TOUCHED
            self.port.net.touched(self)

    @property
    def is_open(self) -> bool:
        """Whether what is sent will be sent."""
        return self.flags & (OPEN | ENDING) == OPEN

    @property
    def is_blocked(self) -> bool:
        """Whether the kernel has not taken everything; `drained` follows."""
        return bool(self.flags & BLOCKED)

    @property
    def congested(self) -> bool:
        """Whether the peer reads so slowly that it should get nothing new; see `drained`."""
        return self.out_bytes >= self.port.send_high_bytes

    def end(self) -> None:
        """Send what is queued, then close. `closed` follows when the caller has returned."""
        if not self.flags & ENDING:
            self.flags |= ENDING
            self.port.net.ending(self)

    def abort(self) -> None:
        """Close; what is unsent is dropped. `closed` follows when the caller has returned."""
        self.lost()

    def pause(self) -> None:
        """Read nothing more until `resume`."""
        self.flags |= PAUSED

    def resume(self) -> None:
        """Read again. `received(b"")` comes first, for what was read and not taken."""
        if self.flags & (PAUSED | ENDING) == PAUSED:  # the end of a connection needs no reader
            self.flags &= ~PAUSED
            self.port.net.resumed(self)

    def become(self, other: "Connection", rest: bytes = b"") -> None:
        """Hand the socket over, with what is unsent and the `rest` of what was read. `opened` of
        the other one comes at once, `closed` of this one never."""
        self.port.net.replace(self, other, rest)

    @property
    def secure(self) -> SecureCarrier | None:
        """What the TLS handshake has shown; None without TLS."""
        return self.carrier if self.flags & TLS else None  # pyright: ignore[reportReturnType]

    def peer_address(self) -> str:
        """Asks the kernel each time: it is needed too seldom to be stored."""
        return "" if self.carrier is None else self.carrier.peer_address(self.fd)

    def has_left(self) -> bool:
        """Whether the peer has closed its side. Asks the kernel: what the peer sent last is read
        before its end is noticed."""
        return self.carrier is None or self.carrier.has_left(self.fd)

    # --- for the loop ----------------------------------------------------------------------------

    def lost(self) -> None:
        """The peer is gone, or has to go."""
        self.out = None
        self.out_bytes = 0
        self.flags |= ENDING | DOOMED
        self.touch()

    # --- for protocols to override -------------------------------------------------------------

    def opened(self) -> None:
        """The connection is established, TLS included."""

    def received(self, data: bytes) -> None:
        """What was read; `b""` after `resume`."""

    def half_closed(self) -> None:
        """The peer sends nothing more. A protocol that may still answer overrides this."""
        self.lost()

    def fill(self) -> bool:
        """There is room to write, and the turn ends: send what is to be sent now. Returns whether
        there is more, for the next turn. See `pulls`."""
        return False

    def drained(self) -> None:
        """Everything that was queued has left, after the kernel had not taken it at once."""

    def failed(self, exc: Exception) -> None:
        """One of these methods raised; the loop has reported it."""
        self.lost()

    def closed(self) -> None:
        """The connection has ended. Called exactly once, as the last method."""
