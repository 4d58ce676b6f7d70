"""From the bytes of one client to calls of its handler.

Rule 1: a handler's mistake costs one connection, not all.
Rule 2: what a client has sent of a frame that is not complete is kept with its connection, and only
        then; one reader serves all connections of a worker.
"""

from collections.abc import Callable
from typing import assert_never

from waystation.push.connect.connection import ENDING, PAUSED, Connection, Ending, Handler
from waystation.push.wire.websocket import (
    Binary,
    Broken,
    Close,
    Event,
    FrameReader,
    Ping,
    Pong,
    Text,
    close_frame,
    pong_frame,
)


class Hearing:
    """`failed` is told of a handler that raised."""

    __slots__ = ("_failed", "_reader", "one_text")

    def __init__(
        self, *, message_bytes_max: int, failed: Callable[[Connection, Exception], None]
    ) -> None:
        self._reader = FrameReader(message_bytes_max=message_bytes_max)
        self._failed = failed
        self.one_text = self._reader.one_text  # of what was read from nobody in mid-frame

    def deliver(self, connection: Connection, data: bytes) -> None:
        handler, partial, reader = connection.handler, connection.partial, self._reader
        if handler is None or isinstance(partial, bytearray):
            return
        try:
            reader.begin(data, partial)
            while not connection.flags & (ENDING | PAUSED) and (event := reader.next()) is not None:
                if type(event) is Text:
                    handler.text(connection, event.data)
                else:
                    self._deliver_other(connection, handler, event)
        except Exception as exc:
            self._failed(connection, exc)
        partial = reader.end()
        connection.partial = None if connection.flags & ENDING else partial

    def _deliver_other(self, connection: Connection, handler: Handler, event: Event) -> None:
        match event:
            case Ping(data):
                connection.send(pong_frame(data))
                handler.pinged(connection, data)
            case Pong():
                handler.ponged(connection)
            case Binary():
                handler.binary(connection)
            case Close(code, _):
                connection.end(Ending.CLIENT_CLOSED, code, close_frame(code))
            case Broken(code, reason):
                handler.broken(connection, code, reason)
                connection.end(Ending.BROKEN, code, close_frame(code, reason))
            case Text(data):
                handler.text(connection, data)
            case _:
                assert_never(event)
