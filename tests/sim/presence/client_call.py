"""A client's call of `beginStream`: HTTP/2 and gRPC written by hand, on a simulated socket.

Rule 1: the window of the stream is small, so that a client that does not read soon blocks it.
Rule 2: messages of the client wait until the connection is open and the node's windows have room.
Rule 3: the caller is told of the end once: with the status of the trailers, or with None when the
        connection or the stream is lost. A client that closes the call is told nothing more.
"""

import asyncio
from typing import Final, Protocol

from tests.sim.sockets import Address, SimHost, SimSocket
from waystation.net.http2 import frames
from waystation.net.http2.frames import ErrorCode
from waystation.net.http2.hpack import Decoder, literal
from waystation.net.http2.port import GrpcStatus
from waystation.presence.transport.rpc import RPC_PATH

WINDOW_BYTES: Final = 200
_SETTING_WINDOW: Final = frames.settings({frames.SETTING_INITIAL_WINDOW_SIZE: WINDOW_BYTES})
_HEADERS: Final = b"".join(
    literal(name, value)
    for name, value in (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", RPC_PATH.encode()),
        (b":authority", b"node"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )
)
_HELLO: Final = (
    frames.PREFACE + _SETTING_WINDOW + frames.frame(frames.HEADERS, frames.END_HEADERS, 1, _HEADERS)
)


class Caller(Protocol):
    """A client's end of a call."""

    def heard(self, call: "ClientCall", data: bytes) -> None: ...

    def ended(self, call: "ClientCall", status: GrpcStatus | None) -> None:
        """None: the call is broken."""
        ...


class ClientCall:
    def __init__(self, host: SimHost, address: Address, caller: Caller) -> None:
        self._host = host
        self._caller = caller
        self._loop = asyncio.get_running_loop()
        self._sock: SimSocket | None = None
        self._out = bytearray(_HELLO)
        self._unsent = bytearray()  # of the stream, until windows have room
        self._windows = [frames.WINDOW_DEFAULT_BYTES] * 2  # of the connection and the stream
        self._in = bytearray()
        self._messages = bytearray()
        self._decoder = Decoder()
        self._stalled = False
        self._over = False
        self._dialling = self._loop.create_task(self._dial(address))

    async def _dial(self, address: Address) -> None:
        try:
            self._sock = sock = await self._host.dial(address)
        except OSError:
            self._end(None)
            return
        sock.on_ready = self._go_on
        self._go_on()

    # --- what the client does ---------------------------------------------------------------------

    def say(self, message: bytes) -> None:
        self._unsent += b"\x00" + len(message).to_bytes(4, "big") + message
        self._send()

    def half_close(self) -> None:
        self._out += frames.frame(frames.DATA, frames.END_STREAM, 1)
        self._send()

    def close(self) -> None:
        """The client cancels the call, or closes its connection without a word."""
        if self._over:
            return
        if self._host.luck.rng.random() < 0.5:
            self._out += frames.rst_stream(1, ErrorCode.CANCEL)
            self._send()
        self._close()

    def stall(self, *, stalled: bool) -> None:
        """Whether the client reads."""
        self._stalled = stalled
        self._go_on()

    def break_off(self, *, node_learns_s: float | None, guest_learns_s: float | None) -> None:
        """The line carries nothing any more; each end learns of it in its time, or never."""
        sock = self._sock
        if sock is None:
            self._dialling.cancel()
        elif not sock.cut_off:
            sock.cut_off = sock.peer.cut_off = True
            if node_learns_s is not None:
                self._loop.call_later(node_learns_s, sock.peer.fail)
        if guest_learns_s is not None:
            self._loop.call_later(guest_learns_s, self._end, None)

    # --- the socket ------------------------------------------------------------------------------

    def _go_on(self) -> None:
        self._send()
        sock = self._sock
        while sock is not None and not (self._over or self._stalled):
            try:
                data = sock.read()
            except OSError:
                data = b""
            if data is None:
                return
            if not data:
                self._end(None)
                return
            self._in += data
            self._read()
            self._send()

    def _send(self) -> None:
        sock = self._sock
        if sock is None or self._over:
            return
        while self._unsent and (size := min(*self._windows, len(self._unsent), 100)) > 0:
            self._windows = [window - size for window in self._windows]
            self._out += frames.frame(frames.DATA, 0, 1, bytes(self._unsent[:size]))
            del self._unsent[:size]
        try:
            while self._out and (taken := sock.write(bytes(self._out))):
                del self._out[:taken]
        except OSError:
            self._end(None)

    def _read(self) -> None:
        while len(self._in) >= frames.HEADER_BYTES and not self._over:
            head, flags, stream_id = frames.HEAD.unpack_from(self._in)
            stop = frames.HEADER_BYTES + (head >> 8)
            if len(self._in) < stop:
                return
            payload = bytes(self._in[frames.HEADER_BYTES : stop])
            del self._in[:stop]
            self._take(head & 0xFF, flags, stream_id, payload)

    def _take(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == frames.DATA:
            for one in (0, 1):
                self._out += frames.window_update(one, len(payload))
            self._messages += payload
            self._hear()
        elif kind == frames.HEADERS:
            fields = dict(self._decoder.decode(payload))
            if flags & frames.END_STREAM:
                self._end(GrpcStatus(int(fields[b"grpc-status"])))
        elif kind == frames.WINDOW_UPDATE:
            self._windows[1 if stream_id else 0] += frames.number(payload, 0)
        elif kind == frames.RST_STREAM:
            self._end(None)
        elif kind in (frames.SETTINGS, frames.PING) and not flags & frames.ACK:
            answer = payload if kind == frames.PING else b""
            self._out += frames.frame(kind, frames.ACK, 0, answer)

    def _hear(self) -> None:
        messages = self._messages
        while len(messages) >= frames.PREFIX.size and not self._over:
            _, length = frames.PREFIX.unpack_from(messages)
            stop = frames.PREFIX.size + length
            if len(messages) < stop:
                return
            data = bytes(messages[frames.PREFIX.size : stop])
            del messages[:stop]
            self._caller.heard(self, data)

    def _end(self, status: GrpcStatus | None) -> None:
        if not self._over:
            self._close()
            self._caller.ended(self, status)

    def _close(self) -> None:
        self._over = True
        if self._sock is None:
            self._dialling.cancel()
        else:
            self._sock.close()
