"""One WebSocket as its driver sees it, and what is asked of a driver.

A connection node is made of idle connections, so this object is all that is kept for one: no
dictionary, no bound methods, no timer. A driver that wants to be as lean gives every WebSocket the
same `Handler` and keeps what differs in `handler_state`.

Rule 1: what a client has sent of a frame that is not complete is kept with its connection, and only
        then; one reader serves all connections of a server.
Rule 2: the server does not wait for a Close in return: Firefox never sends one.
"""

import enum
from typing import Protocol, assert_never

from waystation.net.connection import ENDING, OVERFLOWED, OWN_FLAGS, PAUSED, Connection
from waystation.net.loop import Port
from waystation.net.websocket.frames import (
    CLOSE_INTERNAL,
    Binary,
    Broken,
    Close,
    Event,
    FrameReader,
    Partial,
    Ping,
    Pong,
    Text,
    close_frame,
    pong_frame,
)
from waystation.net.websocket.upgrade import Upgrade

_ENDING_SHIFT = OWN_FLAGS.bit_length() - 1
_CODE_SHIFT = _ENDING_SHIFT + 4


class Handler(Protocol):
    """Never called from within a call of a `WebSocket` method.

    What it raises ends that connection with 1011 and nothing else.
    """

    def text(self, connection: "WebSocket", text: bytes) -> None:
        """A complete text message; valid UTF-8."""
        ...

    def binary(self, connection: "WebSocket") -> None: ...

    def pinged(self, connection: "WebSocket", payload: bytes) -> None:
        """A Ping arrived; its Pong is already on its way."""
        ...

    def ponged(self, connection: "WebSocket") -> None: ...

    def broken(self, connection: "WebSocket", code: int, reason: str) -> None:
        """The client broke the WebSocket protocol; it is closed with `code` after this."""
        ...

    def closed(self, connection: "WebSocket") -> None:
        """The conversation is over: exactly once, whatever the reason; nothing comes after it.

        `connection.ending` and `connection.close_code` say how it ended.
        """
        ...


class Host(Protocol):
    """What a WebSocket needs of its server."""

    port: Port
    reader: FrameReader

    def make_handler(self, connection: "WebSocket", upgrade: Upgrade, /) -> Handler: ...


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


class WebSocket(Connection):
    __slots__ = ("handler", "handler_state", "host", "partial")

    def __init__(self, host: Host, upgrade: Upgrade | None = None) -> None:
        super().__init__(host.port)
        self.host = host
        self.handler: Handler | None = None
        self.handler_state: object = upgrade  # then the driver's own
        self.partial: Partial | None = None  # incomplete input

    # --- for drivers ---

    def close(self, code: int, reason: str = "") -> None:
        """Send Close and end. `closed` follows soon, when the caller has returned."""
        self._end_with(Ending.CLOSED, code, close_frame(code, reason))

    @property
    def ending(self) -> Ending:
        if not self.flags & ENDING:
            return Ending.NONE
        ending = Ending(self.flags >> _ENDING_SHIFT & 0xF)
        if ending is not Ending.NONE:
            return ending
        return Ending.OVERFLOWED if self.flags & OVERFLOWED else Ending.VANISHED

    @property
    def close_code(self) -> int:
        """The code of the Close frame that was sent or came; 0 without one."""
        return self.flags >> _CODE_SHIFT

    def abort(self) -> None:
        """End without a Close; what is unsent is dropped. `closed` follows soon."""
        if not self.flags & ENDING:
            self.flags |= Ending.ABORTED << _ENDING_SHIFT
        super().abort()

    # --- the loop calls these ---

    def opened(self) -> None:
        upgrade, self.handler_state = self.handler_state, None
        assert isinstance(upgrade, Upgrade)
        self.handler = self.host.make_handler(self, upgrade)

    def received(self, data: bytes) -> None:
        handler, reader = self.handler, self.host.reader
        if handler is None:
            return
        reader.begin(data, self.partial)
        try:
            while not self.flags & (ENDING | PAUSED) and (event := reader.next()) is not None:
                if type(event) is Text:
                    handler.text(self, event.data)
                else:
                    self._take(handler, event)
        finally:
            partial = reader.end()
            self.partial = None if self.flags & ENDING else partial

    def _take(self, handler: Handler, event: Event) -> None:
        match event:
            case Ping(data):
                self.send(pong_frame(data))
                handler.pinged(self, data)
            case Pong():
                handler.ponged(self)
            case Binary():
                handler.binary(self)
            case Close(code, _):
                self._end_with(Ending.CLIENT_CLOSED, code, close_frame(code))
            case Broken(code, reason):
                handler.broken(self, code, reason)
                self._end_with(Ending.BROKEN, code, close_frame(code, reason))
            case Text(data):
                handler.text(self, data)
            case _:
                assert_never(event)

    def failed(self, exc: Exception) -> None:
        self._end_with(Ending.FAILED, CLOSE_INTERNAL, close_frame(CLOSE_INTERNAL, "error"))

    def closed(self) -> None:
        self.partial = None
        handler, self.handler = self.handler, None
        if handler is not None:
            handler.closed(self)
        self.handler_state = None

    def _end_with(self, ending: Ending, code: int, last: bytes) -> None:
        """`last` is the last thing to be sent."""
        if self.flags & ENDING:
            return
        self.send(last)
        if not self.flags & ENDING:  # `last` may have been one byte too many
            self.flags |= ending << _ENDING_SHIFT | code << _CODE_SHIFT
            self.end()
