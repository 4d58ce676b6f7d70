"""One link, at either end: blocks of 16,512 bytes over mutual TLS, and the frames in them.

Rule 1: both ends say their hello at once; frames follow when the other's has been taken.
Rule 2: frames of a loop turn leave in as few blocks as hold them.
Rule 3: whoever writes is told when the other end does not keep up (`PRESSED_BYTES`), and says less
        until it does. A link that is not understood, or whose other end does not read at all, is
        cut: both ends begin again from what they know (`BUFFER_BYTES_MAX`).
Rule 4: a machine that vanished is noticed by the kernel within `VANISHED_S`.
"""

import asyncio
import socket
import ssl
from typing import Final, Protocol, cast

from waystation.queue.errors import BadHelloError, RefusedError
from waystation.queue.model import SessionId
from waystation.queue.wire.block import ChainedBlocks
from waystation.queue.wire.fields import FieldError
from waystation.queue.wire.link import (
    LINK_BLOCK_BYTES,
    Body,
    Frame,
    decode_frames,
    encode_frame,
    join_frames,
)
from waystation.queue.wire.link_hello import LinkHandshake

from .membership import name_of_peer

BUFFER_BYTES_MAX: Final = 64 << 20
PRESSED_BYTES: Final = 4 << 20
HELLO_S: Final = 10.0
VANISHED_S: Final = 15
_PROBE_S: Final = 5


class LinkHandler(Protocol):
    """Told what happens on a link; never from within a call of `LinkLine`."""

    def ready(self, line: "LinkLine") -> None:
        """Both hellos are done: `line.peer_name` is who is there."""
        ...

    def arrived(self, line: "LinkLine", frame: Frame) -> None: ...

    def lost(self, line: "LinkLine") -> None:
        """Once, also for a link that never was ready."""
        ...

    def pressed(self, line: "LinkLine", *, is_pressed: bool) -> None:
        """The other end does not read as fast as we write, or reads again: say less."""
        ...


class LinkLine(asyncio.Protocol):
    def __init__(self, handler: LinkHandler, *, is_server: bool) -> None:
        self._handler = handler
        self._is_server = is_server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._handshake: LinkHandshake | None = None
        self._blocks: ChainedBlocks | None = None
        self._read = bytearray()
        self._unsent: list[bytes] = []
        self._deadline: asyncio.TimerHandle | None = None
        self.peer_name = ""

    # For whoever uses it

    def send(self, stream: int, epoch: int, body: Body) -> None:
        """Dropped without a word once the link is gone; `lost` has said so, or will."""
        if self._transport is None or self._transport.is_closing():
            return
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(encode_frame(Frame(stream, epoch, body)))

    def close(self) -> None:
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_ready(self) -> bool:
        return self._blocks is not None

    # For the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by inheritance
        tls = cast(ssl.SSLObject, transport.get_extra_info("ssl_object"))
        session_id = tls.get_channel_binding("tls-unique")
        if session_id is None or tls.selected_alpn_protocol() is None:
            self.abort()
            return
        self.peer_name = name_of_peer(tls)
        self._transport.set_write_buffer_limits(PRESSED_BYTES, PRESSED_BYTES // 4)
        _notice_silence(transport)
        self._handshake = LinkHandshake(SessionId(session_id), is_server=self._is_server)
        self._transport.write(self._handshake.hello())
        self._deadline = self._loop.call_later(HELLO_S, self.abort)

    def data_received(self, data: bytes) -> None:
        self._read += data
        while len(self._read) >= LINK_BLOCK_BYTES:
            block = bytes(self._read[:LINK_BLOCK_BYTES])
            del self._read[:LINK_BLOCK_BYTES]
            try:
                self._take(block)
            except (BadHelloError, RefusedError, FieldError):
                self.abort()
                return

    def pause_writing(self) -> None:
        self._handler.pressed(self, is_pressed=True)

    def resume_writing(self) -> None:
        self._handler.pressed(self, is_pressed=False)

    def pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._unsent.clear()
        if self._deadline is not None:
            self._deadline.cancel()
        self._handler.lost(self)

    def _take(self, block: bytes) -> None:
        if self._blocks is None:
            assert self._handshake is not None
            self._blocks = self._handshake.accept(block)
            self._handshake = None
            if self._deadline is not None:
                self._deadline.cancel()
            self._handler.ready(self)
            if self._unsent:
                self._flush()
            return
        for frame in decode_frames(self._blocks.open(block)):
            self._handler.arrived(self, frame)

    def _flush(self) -> None:
        transport, blocks = self._transport, self._blocks
        if transport is None or blocks is None or not self._unsent:
            return
        frames, self._unsent = self._unsent, []
        transport.writelines([blocks.seal(content) for content in join_frames(frames)])
        if transport.get_write_buffer_size() > BUFFER_BYTES_MAX:
            self.abort()


def _notice_silence(transport: asyncio.BaseTransport) -> None:
    sock = cast("socket.socket | None", transport.get_extra_info("socket"))
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", _PROBE_S),
        ("TCP_KEEPINTVL", _PROBE_S),
        ("TCP_KEEPCNT", VANISHED_S // _PROBE_S - 1),
        ("TCP_USER_TIMEOUT", VANISHED_S * 1000),
    ):
        number = getattr(socket, option, None)  # not every system has all of them
        if number is not None:
            sock.setsockopt(socket.IPPROTO_TCP, number, value)
