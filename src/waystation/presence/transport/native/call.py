"""One call on one HTTP/2 stream, the port's `Stream`: DATA to messages and messages to DATA.

It is on the path of every message, so it calls the broker and fills the connection's output
directly instead of returning effects.

Rule 1: a message leaves in one DATA frame while both windows have room; what has none waits in
        `unsent`, a plain queue of bytes, and leaves in pieces as windows open.
Rule 2: bytes that cannot be handed over (an unfinished message, or reading is paused) wait in
        `unread`; they count against the connection's receive window until they are taken.
Rule 3: a stream's own receive window is opened again when half of it is used and nobody has paused
        reading, so a paused stream holds at most one window.
Rule 4: after `finish` or `closed` the broker hears nothing more of the call. It stays on its
        connection until what is unsent is out and the peer has ended its side too, or until it
        has lingered too long.
Rule 5: a peer that may be about to say something is given a moment before its call ends: gRPC's own
        client takes trailers that overtake its message for a failure, and loses their status.
"""

from typing import Any, Protocol

from waystation.presence.transport.port import Gone, GrpcStatus, StreamHandler

from . import frames
from .limits import Limits
from .response import RESPONSE_HEADERS, trailers

PREFIX_BYTES = 5  # gRPC's: a flag and the length
HALF_WINDOW_BYTES = frames.WINDOW_DEFAULT_BYTES // 2

# What stands before and after the stream's number in front of a message, by the message's length:
# nearly all are short, and pieces that are there already are joined faster than bytes are packed.
_SHORT_BYTES = 256
_BEFORE_ID = tuple(
    (length + PREFIX_BYTES).to_bytes(3, "big") + bytes((frames.DATA, 0))
    for length in range(_SHORT_BYTES)
)
_AFTER_ID = tuple(b"\x00" + length.to_bytes(4, "big") for length in range(_SHORT_BYTES))
_message_head = frames.MESSAGE_HEAD.pack

# Bits of `state`.
ANSWERED = 1  # response headers are out
REMOTE_CLOSED = 2  # END_STREAM has come
ENDED = 4  # neither side of the port says anything more
PAUSED = 8
BUSY = 16  # messages are being handed over right now
HALF_CLOSE_TOLD = 32
HOLDING = 64  # there is something in `unread`
NOT_NOW = REMOTE_CLOSED | ENDED | PAUSED | BUSY | HOLDING  # nothing is handed over as it comes


class Carrier(Protocol):
    """What a call needs of its connection."""

    handler: StreamHandler
    limits: Limits
    send_window: int
    blocked: bool
    strikes: int
    held_bytes: int
    peer: str
    out: list[bytes]

    def has_output(self) -> None:
        """Before something is appended to an empty `out`."""
        ...

    def write(self, data: bytes) -> None: ...

    def wait_for_window(self, call: "Call") -> None: ...

    def linger(self, call: "Call") -> None: ...

    def hold(self, call: "Call") -> bool: ...

    def forget(self, call: "Call") -> None: ...

    def failed(self, call: "Call", exc: Exception) -> None: ...


class Call:
    __slots__ = (
        "_end_block",
        "_link",
        "_wire_id",
        "authorization",
        "holder",
        "receive_window",
        "send_window",
        "state",
        "stream_id",
        "unread",
        "unsent",
        "writable",
    )

    def __init__(
        self, link: Carrier, stream_id: int, send_window: int, authorization: str | None
    ) -> None:
        self.holder: Any = None
        self.stream_id = stream_id
        self.authorization = authorization
        self.send_window = send_window
        self.receive_window = frames.WINDOW_DEFAULT_BYTES
        self.state = 0
        self.writable = True  # the broker was told, or will find, that it is not
        self.unread: bytearray | None = None
        self.unsent: bytearray | None = None
        self._end_block: bytes | None = None  # trailers that follow what is unsent
        self._link = link
        self._wire_id = stream_id.to_bytes(4, "big")

    # --- the port --------------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        return self._link.peer

    def send(self, message: bytes) -> None:
        link, length = self._link, len(message)
        size = length + PREFIX_BYTES
        if (
            length >= _SHORT_BYTES
            or self.state & (ANSWERED | ENDED) != ANSWERED
            or size > self.send_window
            or size > link.send_window
            or self.unsent is not None
            or link.blocked
        ):
            self._send_any(message)
            return
        self.send_window -= size
        link.send_window -= size
        link.strikes = 0
        out = link.out  # `link.write` without the call
        if not out:
            link.has_output()
        out += (_BEFORE_ID[length], self._wire_id, _AFTER_ID[length], message)

    def finish(self, status: GrpcStatus, detail: str = "", *, discard_unsent: bool = False) -> None:
        if self.state & ENDED:
            return
        self.state |= ENDED
        self._drop_unread()
        self._end_block = trailers(status, detail, alone=not self.state & ANSWERED)
        if discard_unsent:
            self.unsent = None
            self.release()
        elif self.unsent is not None:
            self._link.linger(self)
        else:
            self._end()

    def pause_reading(self) -> None:
        self.state |= PAUSED

    def resume_reading(self) -> None:
        if self.state & PAUSED:
            self.state &= ~PAUSED
            if not self.state & (BUSY | ENDED):
                self._hand_over(b"", 0, 0)
                self.open_window()

    # --- from the connection ---------------------------------------------------------------------

    def receive(self, data: bytes, at: int, stop: int) -> None:
        """DATA has come: its payload is `data[at:stop]`, and not empty."""
        state = self.state
        if state & (ENDED | PAUSED | BUSY):
            if not state & ENDED:
                self._hold(data, at, stop)
            return
        self._hand_over(data, at, stop)

    def remote_closed(self) -> None:
        self.state |= REMOTE_CLOSED
        if self.state & ENDED:
            if self._end_block is None:
                self._link.forget(self)
            elif self.unsent is None:
                self.release()
        if not self.state & (PAUSED | BUSY | ENDED):
            self._hand_over(b"", 0, 0)

    def lost(self, why: Gone) -> None:
        """The stream is gone by no doing of the broker's."""
        self._drop_unread()
        self.unsent = self._end_block = None
        if not self.state & ENDED:
            self.state |= ENDED
            self._link.handler.closed(self, why)

    def refuse(self, status: GrpcStatus, detail: str) -> None:
        """Ends a call that the broker was never told of, or whose end we tell it ourselves."""
        self.state |= ENDED
        self._drop_unread()
        self.unsent = None
        self._end_block = trailers(status, detail, alone=not self.state & ANSWERED)
        self._end()

    def release(self) -> None:
        """The trailers leave now, if they have not yet."""
        block, self._end_block = self._end_block, None
        if block is None:
            return
        link = self._link
        flags = frames.END_HEADERS | frames.END_STREAM
        link.write(frames.frame(frames.HEADERS, flags, self.stream_id, block))
        if self.state & REMOTE_CLOSED:
            link.forget(self)
        else:
            # RFC 9113, section 8.1: RST_STREAM may ask the peer to stop. It does so by itself.
            link.linger(self)

    def open_window(self) -> None:
        """Rule 3."""
        window = self.receive_window
        if window <= HALF_WINDOW_BYTES and not self.state & (PAUSED | REMOTE_CLOSED):
            increment = frames.WINDOW_DEFAULT_BYTES - window
            self.receive_window = frames.WINDOW_DEFAULT_BYTES
            self._link.write(frames.window_update(self.stream_id, increment))

    def pump(self) -> bool:
        """Sends what windows allow; whether nothing is left to send."""
        link = self._link
        unsent = self.unsent
        if unsent is None:
            return True
        while unsent and not link.blocked:
            size = min(len(unsent), self.send_window, link.send_window, frames.FRAME_BYTES_MAX)
            if size <= 0:
                break
            self.send_window -= size
            link.send_window -= size
            link.write(frames.frame(frames.DATA, 0, self.stream_id, bytes(unsent[:size])))
            del unsent[:size]
        if not unsent:
            self.unsent = None
            if self._end_block is not None:
                self._end()
                return True
        if not self.writable and len(unsent) < link.limits.send_low_bytes:
            self.writable = True
            if not self.state & ENDED:
                link.handler.unblocked(self)
        return self.unsent is None

    # --- inside ----------------------------------------------------------------------------------

    def _send_any(self, message: bytes) -> None:
        """`send` for what is long, or the first, or has no room, or comes too late."""
        state = self.state
        if state & ENDED:
            return
        link = self._link
        if not state & ANSWERED:
            self.state = state | ANSWERED
            link.write(
                frames.frame(frames.HEADERS, frames.END_HEADERS, self.stream_id, RESPONSE_HEADERS)
            )
        length = len(message)
        size = length + PREFIX_BYTES
        if (
            size > self.send_window
            or size > link.send_window
            or size > frames.FRAME_BYTES_MAX
            or self.unsent is not None
            or link.blocked
        ):
            self._keep(b"\x00" + length.to_bytes(4, "big") + message)
            return
        self.send_window -= size
        link.send_window -= size
        link.strikes = 0
        link.write(_message_head(size << 8 | frames.DATA, 0, self.stream_id, 0, length) + message)

    def _hand_over(self, data: bytes, at: int, stop: int) -> None:
        """Every complete message of `unread` and `data`, in order, until somebody pauses."""
        link = self._link
        if self.unread is not None:
            unread = self._take_unread()
            unread += memoryview(data)[at:stop]
            data, at, stop = bytes(unread), 0, len(unread)
        limit = link.limits.message_bytes_max
        self.state |= BUSY
        try:
            while stop - at >= PREFIX_BYTES:
                length = int.from_bytes(data[at + 1 : at + 5], "big")
                if data[at]:
                    self._give_up(GrpcStatus.UNIMPLEMENTED, "compressed messages", Gone.RESET)
                    return
                if length > limit:
                    self._give_up(
                        GrpcStatus.RESOURCE_EXHAUSTED, "message too large", Gone.TOO_LARGE
                    )
                    return
                end = at + PREFIX_BYTES + length
                if end > stop:
                    break
                link.handler.message(self, data[at + PREFIX_BYTES : end])
                at = end
                if self.state & (ENDED | PAUSED):
                    break
        except Exception as exc:  # the broker's own mistake must not end the other streams
            link.failed(self, exc)
        finally:
            self.state &= ~BUSY
        if self.state & ENDED:
            return
        if at < stop:
            self._hold(data, at, stop)
        if self.state & (REMOTE_CLOSED | PAUSED | HALF_CLOSE_TOLD) == REMOTE_CLOSED:
            self.state |= HALF_CLOSE_TOLD
            self._drop_unread()  # the start of a message that will never be whole
            try:
                link.handler.half_closed(self)
            except Exception as exc:  # as above
                link.failed(self, exc)

    def _give_up(self, status: GrpcStatus, detail: str, why: Gone) -> None:
        self.refuse(status, detail)
        self._link.handler.closed(self, why)

    def _hold(self, data: bytes, at: int, stop: int) -> None:
        if at < stop:
            unread = self.unread
            if unread is None:
                self.unread = unread = bytearray()
                self.state |= HOLDING
            unread += memoryview(data)[at:stop]
            self._link.held_bytes += stop - at

    def _take_unread(self) -> bytearray:
        unread = self.unread
        assert unread is not None
        self.unread = None
        self.state &= ~HOLDING
        self._link.held_bytes -= len(unread)
        return unread

    def _drop_unread(self) -> None:
        if self.unread is not None:
            self._take_unread()

    def _keep(self, framed: bytes) -> None:
        if self.unsent is None:
            self.unsent = bytearray()
            self._link.wait_for_window(self)
        self.unsent += framed
        if len(self.unsent) >= self._link.limits.send_high_bytes:
            self.writable = False
        self.pump()

    def _end(self) -> None:
        """Rule 5."""
        if self.state & REMOTE_CLOSED or not self._link.hold(self):
            self.release()
