"""The load's end of presence: HTTP/2 and gRPC by hand, so that a thousand clients cost little.

It keeps to what servers need: preface, settings, pings answered, huge windows given once. Any
server of the protocol understands it.
"""

import asyncio
import ssl
import struct
from collections.abc import Callable
from typing import cast

from waystation.net.http2 import frames
from waystation.net.http2.hpack import literal

_PATH = b"/ClientMessagingEndpoint/beginStream"
_HEADERS = b"".join(
    literal(name, value)
    for name, value in (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", _PATH),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )
)
_WINDOW = 2**31 - 1
_HELLO = (
    frames.PREFACE
    + frames.settings({frames.SETTING_INITIAL_WINDOW_SIZE: _WINDOW})
    + frames.window_update(0, _WINDOW - frames.WINDOW_DEFAULT_BYTES)
)
_HEAD = struct.Struct(">HBBBI")

OnMessage = Callable[["Call", bytes], None]


class Call:
    """One stream: `on_message(call, bytes)` for each message, b"" when it is over."""

    __slots__ = ("connection", "on_message", "partial", "stream_id", "tag")

    def __init__(self, connection: "Connection", stream_id: int, on_message: OnMessage) -> None:
        self.connection = connection
        self.stream_id = stream_id
        self.on_message = on_message
        self.partial = b""
        self.tag: object = None

    def send(self, message: bytes) -> None:
        size = len(message) + 5
        self.connection.write(
            frames.MESSAGE_HEAD.pack(size << 8 | frames.DATA, 0, self.stream_id, 0, size - 5)
            + message
        )

    def cancel(self) -> None:
        self.connection.calls.pop(self.stream_id, None)
        self.connection.write(frames.rst_stream(self.stream_id, frames.ErrorCode.CANCEL))


class Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self.calls: dict[int, Call] = {}
        self._next_id = 1
        self._rest = b""
        self._out: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(_HELLO)

    def open(self, on_message: OnMessage) -> Call:
        call = Call(self, self._next_id, on_message)
        self.calls[self._next_id] = call
        self.write(frames.frame(frames.HEADERS, frames.END_HEADERS, self._next_id, _HEADERS))
        self._next_id += 2
        return call

    def write(self, data: bytes) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)

    def _flush(self) -> None:
        data = b"".join(self._out)
        self._out.clear()
        if self._transport is not None:
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        at, end = 0, len(data)
        while end - at >= 9:
            high, low, kind, flags, stream_id = _HEAD.unpack_from(data, at)
            stop = at + 9 + (high << 8 | low)
            if stop > end:
                break
            self._frame(kind, flags, stream_id, data[at + 9 : stop])
            at = stop
        self._rest = data[at:]

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == frames.DATA:
            call = self.calls.get(stream_id)
            if call is None:
                return
            payload = call.partial + payload
            while len(payload) >= 5:
                size = 5 + int.from_bytes(payload[1:5], "big")
                if len(payload) < size:
                    break
                call.on_message(call, payload[5:size])
                payload = payload[size:]
            call.partial = payload
        elif kind == frames.SETTINGS and not flags & frames.ACK:
            self.write(frames.SETTINGS_ACK)
        elif kind == frames.PING and not flags & frames.ACK:
            self.write(frames.frame(frames.PING, frames.ACK, 0, payload))
        if (kind in {frames.DATA, frames.HEADERS} and flags & frames.END_STREAM) or (
            kind == frames.RST_STREAM
        ):
            call = self.calls.pop(stream_id, None)
            if call is not None:
                if kind != frames.RST_STREAM:
                    self.write(frames.frame(frames.DATA, frames.END_STREAM, stream_id))
                call.on_message(call, b"")

    def connection_lost(self, exc: Exception | None) -> None:
        calls, self.calls = self.calls, {}
        for call in calls.values():
            call.on_message(call, b"")

    def close(self) -> None:
        self.calls.clear()
        if self._transport is not None:
            self._transport.abort()


async def connect(port: int, tls: ssl.SSLContext | None = None) -> Connection:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(
        Connection, "127.0.0.1", port, ssl=tls, server_hostname="127.0.0.1" if tls else None
    )
    return connection
