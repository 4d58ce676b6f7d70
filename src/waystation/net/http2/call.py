"""One call on one HTTP/2 stream, the port's `Stream`: DATA to messages and messages to DATA.

It is on the path of every message, so it calls the handler and fills the connection's output
directly instead of returning effects.

Rule 1: a message leaves in one DATA frame while both windows have room; what has none waits in
        `unsent`, a plain queue of bytes, and leaves in pieces as windows open.
Rule 2: bytes that cannot be handed over (an unfinished message, or reading is paused) wait in
        `unread`; they count against the connection's receive window until they are taken.
Rule 3: a stream's own receive window is opened again when half of it is used and nobody has paused
        reading, so a paused stream holds at most one window.
Rule 4: after `finish` or `closed` the handler hears nothing more of the call. It stays on its
        connection until what is unsent is out and the peer has ended its side too, or until it
        has lingered too long.
Rule 5: a peer that may be about to say something is given a moment before its call ends: gRPC's own
        client takes trailers that overtake its message for a failure, and loses their status.
"""

from typing import TYPE_CHECKING, Any, Protocol

from waystation.net.connection import BLOCKED
from waystation.net.http2.port import Gone, GrpcStatus, StreamHandler
from waystation.net.tls import SecureCarrier

from . import frames
from .frames import DATA, FRAME_BYTES_MAX
from .limits import Limits
from .response import NOT_GRPC_BODY, NOT_GRPC_HEADERS, RESPONSE_HEADERS, trailers

if TYPE_CHECKING:
    from .connection import Host

PREFIX_BYTES = 5  # gRPC's: a flag and the length
HALF_WINDOW_BYTES = frames.WINDOW_DEFAULT_BYTES // 2

_message_head = frames.MESSAGE_HEAD.pack
_unpack_prefix = frames.PREFIX.unpack_from

# Bits of `state`.
ANSWERED = 1  # response headers are out
REMOTE_CLOSED = 2  # END_STREAM has come
ENDED = 4  # neither side of the port says anything more
PAUSED = 8
BUSY = 16  # messages are being handed over right now
HALF_CLOSE_TOLD = 32


class Link(Protocol):
    """What a call needs of its connection."""

    host: "Host"
    flags: int
    limits: Limits
    send_window: int
    strikes: int
    held_bytes: int

    def send(self, data: bytes, /) -> None: ...

    def peer_address(self) -> str: ...

    @property
    def secure(self) -> SecureCarrier | None: ...

    def wait_for_window(self, call: "Call", /) -> None: ...

    def linger(self, call: "Call", /) -> None: ...

    def forget(self, call: "Call", /) -> None: ...

    def call_failed(self, call: "Call", exc: Exception, /) -> None: ...


class Call:
    __slots__ = (
        "_end_block",
        "_link",
        "authorization",
        "body_left",
        "handler",
        "holder",
        "receive_window",
        "send_window",
        "state",
        "stream_id",
        "unread",
        "unsent",
        "writable",
    )

    def __init__(self, link: Link, stream_id: int, send_window: int) -> None:
        self.handler: StreamHandler  # not set for a call that is refused
        self.holder: Any = None
        self.stream_id = stream_id
        self.authorization: str | None = None
        self.body_left: int | None = None  # of what `content-length` has announced
        self.send_window = send_window
        self.receive_window = frames.WINDOW_DEFAULT_BYTES
        self.state = 0
        self.writable = True  # the handler was told, or will find, that it is not
        self.unread: bytearray | None = None
        self.unsent: bytearray | None = None
        self._end_block: bytes | None = None  # trailers that follow what is unsent
        self._link = link

    # --- the port --------------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        return self._link.peer_address()

    @property
    def certified(self) -> bool:
        """Whether TLS has verified a certificate of the peer's."""
        secure = self._link.secure
        return secure is not None and bool(secure.peer_chain)

    def send(self, message: bytes) -> None:
        state, link = self.state, self._link
        if state & (ANSWERED | ENDED) != ANSWERED:
            if state & ENDED:
                return
            self._answer(RESPONSE_HEADERS)
        length = len(message)
        size = length + PREFIX_BYTES
        if (
            size > self.send_window
            or size > link.send_window
            or size > FRAME_BYTES_MAX
            or self.unsent is not None
            or link.flags & BLOCKED
        ):
            self._keep(b"\x00" + length.to_bytes(4, "big") + message)
            return
        self.send_window -= size
        link.send_window -= size
        link.strikes = 0
        link.send(_message_head(size << 8 | DATA, 0, self.stream_id, 0, length) + message)

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
                self.receive(b"", 0, 0)
                self.open_window()

    # --- from the connection ---------------------------------------------------------------------

    def receive(self, data: bytes, at: int, stop: int) -> None:
        """Payload of DATA, `data[at:stop]`, has come, or there is another reason to look. Hands
        over every complete message of `unread` and of it, in order, until the handler pauses."""
        state = self.state
        if state & (ENDED | PAUSED | BUSY):
            if not state & ENDED:
                self._hold(data, at, stop)
            return
        if self.unread is not None:
            self._hold(data, at, stop)
            data = self._whole()
            at, stop = 0, len(data)
        link = self._link
        limit, handler = link.limits.message_bytes_max, self.handler
        self.state = state | BUSY
        try:
            while stop - at >= PREFIX_BYTES:
                compressed, length = _unpack_prefix(data, at)
                if compressed or length > limit:
                    self._give_up(compressed=bool(compressed))
                    return
                begin = at + PREFIX_BYTES
                if begin + length > stop:
                    break
                at = begin + length
                handler.message(self, data[begin:at])
                if self.state & (ENDED | PAUSED):
                    break
        except Exception as exc:  # the handler's own mistake must not end the other streams
            link.call_failed(self, exc)
        finally:
            self.state = state = self.state & ~BUSY
        if state & ENDED:
            return
        if at < stop:
            self._hold(data, at, stop)
        if state & (REMOTE_CLOSED | PAUSED | HALF_CLOSE_TOLD) == REMOTE_CLOSED:
            self.state = state | HALF_CLOSE_TOLD
            self._drop_unread()  # the start of a message that will never be whole
            try:
                handler.half_closed(self)
            except Exception as exc:  # as above
                link.call_failed(self, exc)

    def remote_closed(self) -> None:
        self.state |= REMOTE_CLOSED
        if self.state & ENDED:
            if self._end_block is None:
                self._link.forget(self)
            elif self.unsent is None:
                self.release()
        self.receive(b"", 0, 0)

    def lost(self, why: Gone) -> None:
        """The stream is gone by no doing of the handler's."""
        self._drop_unread()
        self.unsent = self._end_block = None
        if not self.state & ENDED:
            self.state |= ENDED
            self.handler.closed(self, why)

    def refuse(self, status: GrpcStatus, detail: str) -> None:
        """Ends a call that the handler was never told of, or whose end we tell it ourselves."""
        self.state |= ENDED
        self._drop_unread()
        self.unsent = None
        self._end_block = trailers(status, detail, alone=not self.state & ANSWERED)
        self._end()

    def refuse_http(self, *, with_body: bool) -> None:
        """The request is not gRPC: the answer has a status and a text of HTTP."""
        self._answer(NOT_GRPC_HEADERS)
        if with_body:
            self._keep(NOT_GRPC_BODY)
        self.finish(GrpcStatus.UNIMPLEMENTED, "not gRPC")

    def release(self) -> None:
        """The trailers leave now, if they have not yet."""
        block, self._end_block = self._end_block, None
        if block is None:
            return
        link = self._link
        flags = frames.END_HEADERS | frames.END_STREAM
        link.send(frames.frame(frames.HEADERS, flags, self.stream_id, block))
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
            self._link.send(frames.window_update(self.stream_id, increment))

    def pump(self) -> bool:
        """Sends what windows allow; whether nothing is left to send."""
        link = self._link
        unsent = self.unsent
        if unsent is None:
            return True
        while unsent and not link.flags & BLOCKED:
            size = min(len(unsent), self.send_window, link.send_window, frames.FRAME_BYTES_MAX)
            if size <= 0:
                break
            self.send_window -= size
            link.send_window -= size
            link.send(frames.frame(frames.DATA, 0, self.stream_id, bytes(unsent[:size])))
            del unsent[:size]
        if not unsent:
            self.unsent = None
            if self._end_block is not None:
                self._end()
                return True
        if not self.writable and len(unsent) < link.limits.send_low_bytes:
            self.writable = True
            if not self.state & ENDED:
                self.handler.unblocked(self)
        return self.unsent is None

    # --- inside ----------------------------------------------------------------------------------

    def _answer(self, block: bytes) -> None:
        self.state |= ANSWERED
        self._link.send(frames.frame(frames.HEADERS, frames.END_HEADERS, self.stream_id, block))

    def _give_up(self, *, compressed: bool) -> None:
        """The next message is not taken."""
        if compressed:
            self.refuse(GrpcStatus.UNIMPLEMENTED, "compressed messages")
            self.handler.closed(self, Gone.RESET)
        else:
            self.refuse(GrpcStatus.RESOURCE_EXHAUSTED, "message too large")
            self.handler.closed(self, Gone.TOO_LARGE)

    def _hold(self, data: bytes, at: int, stop: int) -> None:
        if at < stop:
            unread = self.unread
            if unread is None:
                self.unread = unread = bytearray()
            unread += memoryview(data)[at:stop]
            self._link.held_bytes += stop - at

    def _whole(self) -> bytes:
        """What is unread once its first message is complete, or is to be refused; until then it is
        not copied."""
        unread = self.unread
        assert unread is not None
        if len(unread) < PREFIX_BYTES:
            return b""
        compressed, length = _unpack_prefix(unread, 0)
        taken = not compressed and length <= self._link.limits.message_bytes_max
        if taken and len(unread) < PREFIX_BYTES + length:
            return b""
        return bytes(self._take_unread())

    def _take_unread(self) -> bytearray:
        unread = self.unread
        assert unread is not None
        self.unread = None
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
        if self.state & REMOTE_CLOSED:
            self.release()
        else:
            self._link.host.end_soon(self)
