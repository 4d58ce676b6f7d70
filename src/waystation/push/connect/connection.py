"""One client's socket as its driver sees it, and what the shell asks of a driver.

A connection node is made of idle connections, so this object is all that the shell keeps for one:
nine slots, 0.14 KiB with its descriptor number. No dictionary, no bound methods, no timer. A driver
that wants to be as lean gives every connection the same `Handler` and keeps what differs in
`handler_state`.
"""

import enum
import socket
from typing import Protocol, cast

from waystation.push.connect.carriers import Carrier
from waystation.push.wire.websocket import Partial, close_frame


class Handler(Protocol):
    """Called by the shell, never from within a call of a `Connection` method.

    What it raises ends that connection with 1011 and nothing else.
    """

    def text(self, connection: "Connection", text: bytes) -> None:
        """A complete text message; valid UTF-8."""
        ...

    def binary(self, connection: "Connection") -> None: ...

    def pinged(self, connection: "Connection", payload: bytes) -> None:
        """A Ping arrived; its Pong is already on its way."""
        ...

    def ponged(self, connection: "Connection") -> None: ...

    def broken(self, connection: "Connection", code: int, reason: str) -> None:
        """The client broke the WebSocket protocol; the shell closes with `code` after this."""
        ...

    def closed(self, connection: "Connection") -> None:
        """The conversation is over: exactly once, whatever the reason; nothing comes after it.

        `connection.ending` and `connection.close_code` say how it ended.
        """
        ...


class Ending(enum.IntEnum):
    """How a conversation ended; the names are log fields."""

    NONE = 0
    CLOSED = 1  # by us, with a Close frame
    ABORTED = 2  # by us, without
    CLIENT_CLOSED = 3  # the client sent Close
    VANISHED = 4  # end of stream, reset, timed out in the kernel
    BROKEN = 5  # the client broke the protocol
    OVERFLOWED = 6  # the client did not read, and the send buffer reached its limit
    FAILED = 7  # the driver raised


# What is true of a connection, in one small integer: an idle one's is shared by all of them.
OPEN = 1  # upgraded, and its handler has not been told otherwise
UPGRADING = 2  # the request has not come or has not been answered yet
SHAKING = 4  # TLS is not established yet
LINGERING = 8  # all is sent; waits for the peer to close
DEAD = 16  # the descriptor is closed
ENDING = 32  # nothing more is sent or delivered
PAUSED = 64  # the driver takes nothing now
READ_OFF = 128  # epoll does not watch for input
BLOCKED = 256  # epoll watches for room to write
DOOMED = 512  # goes without lingering
_ENDING_SHIFT = 12
_CODE_SHIFT = 16


class Shell(Protocol):
    """What a connection asks of the server that holds it."""

    send_high_bytes: int

    def touched(self, connection: "Connection") -> None:
        """There is something to write, or the connection is to end: look at it this turn."""
        ...

    def pressed(self, connection: "Connection") -> None:
        """Unsent bytes have reached the high-water mark."""
        ...

    def ending(self, connection: "Connection") -> None:
        """The last frame is queued: from now on there is a deadline."""
        ...

    def resumed(self, connection: "Connection") -> None: ...


class Connection:
    __slots__ = (
        "carrier",
        "fd",
        "flags",
        "handler",
        "handler_state",
        "out",
        "out_bytes",
        "partial",
        "shell",
    )

    def __init__(self, shell: Shell, carrier: Carrier, fd: int, flags: int) -> None:
        self.shell = shell
        self.carrier = carrier
        self.fd = fd
        self.flags = flags
        self.handler: Handler | None = None
        self.handler_state: object = None  # the driver's; the shell only clears it
        self.partial: Partial | bytearray | None = None  # incomplete input; bytes of a head
        self.out: list[bytes] | None = None  # unsent, in order
        self.out_bytes = 0

    # --- for drivers ---

    def send(self, frame: bytes) -> None:
        """Queue one framed message; all of a loop turn leave in one write. Ignored at the end."""
        if self.flags & ENDING:
            return
        out = self.out
        if out is None:
            self.out = [frame]
            self.out_bytes = len(frame)
            self.shell.touched(self)
        else:
            out.append(frame)
            self.out_bytes += len(frame)
        if self.out_bytes >= self.shell.send_high_bytes:
            self.shell.pressed(self)

    @property
    def congested(self) -> bool:
        """Whether the client reads so slowly that it should get nothing new."""
        return self.out_bytes >= self.shell.send_high_bytes

    def close(self, code: int, reason: str = "") -> None:
        """Send Close and end. `closed` follows soon, when the caller has returned."""
        self.end(Ending.CLOSED, code, close_frame(code, reason))

    def abort(self) -> None:
        """End; what is unsent is dropped. `closed` follows soon, when the caller has returned."""
        if not self.flags & ENDING:
            self.doom(Ending.ABORTED)

    def pause(self) -> None:
        """No more messages until `resume`, not even those that have been read already."""
        self.flags |= PAUSED

    def resume(self) -> None:
        if self.flags & (PAUSED | ENDING) == PAUSED:  # the end of a connection needs no reader
            self.flags &= ~PAUSED
            self.shell.resumed(self)

    @property
    def ending(self) -> Ending:
        return Ending(self.flags >> _ENDING_SHIFT & 0xF)

    @property
    def close_code(self) -> int:
        """The code of the Close frame that was sent or came; 0 without one."""
        return self.flags >> _CODE_SHIFT

    def peer_address(self) -> str:
        """Asked of the kernel each time: nobody needs it often enough to keep it."""
        if self.flags & DEAD:
            return ""
        # The family given here does not matter: an address says its own.
        handle = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=self.fd)
        try:
            name = cast("tuple[str, int] | str", handle.getpeername())
        except OSError:
            return ""
        finally:
            handle.detach()
        return name[0] if isinstance(name, tuple) else ""  # a unix socket has none

    # --- for the shell ---

    def end(self, ending: Ending, code: int, last: bytes) -> None:
        """`last` is the last thing to be sent."""
        if self.flags & ENDING:
            return
        self.send(last)
        if not self.flags & ENDING:  # `last` may have been one byte too many
            self.flags |= ENDING | ending << _ENDING_SHIFT | code << _CODE_SHIFT
            self.shell.ending(self)

    def doom(self, ending: Ending) -> None:
        """To be dropped without a word at the end of this turn."""
        self.out = None
        self.out_bytes = 0
        if not self.flags & ENDING:
            self.flags |= ending << _ENDING_SHIFT
        self.flags |= ENDING | DOOMED
        self.shell.touched(self)
