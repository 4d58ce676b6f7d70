"""One end of a link: blocks of 16,512 bytes over mutual TLS, and the frames in them.

Rule 1: both ends send their hello at once; frames follow after the other's hello.
Rule 2: the frames of one loop turn are sent in as few blocks as possible.
Rule 3: above `CONGESTED_BYTES` unsent, the handler must send less. A link with invalid frames, or
        with `BUFFER_BYTES_MAX` unsent, is closed: both ends begin again from their own state.
Rule 4: the kernel closes a link to an unreachable machine within `VANISHED_S`.
"""

import asyncio
import socket
from typing import Final, Protocol

from waystation.net.blocks import Blocks
from waystation.net.loop import NetLoop, Port
from waystation.net.tls import Tls
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
from .slot_map import Node

BUFFER_BYTES_MAX: Final = 64 << 20
CONGESTED_BYTES: Final = 4 << 20
HELLO_S: Final = 10.0  # from the beginning of a connection, TLS included
VANISHED_S: Final = 15


class LinkHandler(Protocol):
    """Callbacks of a link; never called from within a call of `LinkConnection`."""

    def ready(self, line: "LinkConnection") -> None:
        """Both hellos are done; `line.peer_name` is the name in the peer's certificate."""
        ...

    def arrived(self, line: "LinkConnection", frame: Frame) -> None: ...

    def lost(self, line: "LinkConnection") -> None:
        """Called once, also if the link was never ready."""
        ...

    def congested(self, line: "LinkConnection", *, is_congested: bool) -> None:
        """The other end reads too slowly, or fast enough again."""
        ...


class LinkConnection(Blocks):
    """`send_frame` drops frames after the link is lost; `lost` reports that once."""

    block_bytes = LINK_BLOCK_BYTES
    pulls = True

    def __init__(self, port: Port, handler: LinkHandler, *, is_server: bool) -> None:
        super().__init__(port)
        self._handler = handler
        self._is_server = is_server
        self._loop = asyncio.get_running_loop()
        self._handshake: LinkHandshake | None = None
        self._blocks: ChainedBlocks | None = None
        self._unsent: list[bytes] = []
        self._is_congested = False
        self._deadline = self._loop.call_later(HELLO_S, self.abort) if is_server else None
        self.peer_name = ""

    # Called by users

    def send_frame(self, stream: int, epoch: int, body: Body) -> None:
        if not self.is_open:
            return
        if not self._unsent:
            if self.is_blocked:
                self._loop.call_soon(self.fill)  # the loop calls `fill` only while data is unsent
            else:
                self.touch()
        self._unsent.append(encode_frame(Frame(stream, epoch, body)))

    def close(self) -> None:
        self.fill()
        self.end()

    @property
    def is_ready(self) -> bool:
        return self._blocks is not None

    # Called by the loop

    def opened(self) -> None:
        secure = self.secure
        assert secure is not None, "a link needs the session id of TLS"
        if secure.protocol is None:
            self.abort()
            return
        self.peer_name = name_of_peer(secure.peer_chain)
        if self._deadline is None:  # until here the caller of `connect` limits the time
            self._deadline = self._loop.call_later(HELLO_S, self.abort)
        self._handshake = LinkHandshake(SessionId(secure.binding), is_server=self._is_server)
        self.send(self._handshake.hello())

    def block_received(self, block: bytes) -> None:
        try:
            self._take(block)
        except (BadHelloError, RefusedError, FieldError):
            self.abort()

    def drained(self) -> None:
        if self._is_congested:
            self._is_congested = False
            self._handler.congested(self, is_congested=False)

    def closed(self) -> None:
        self._unsent.clear()
        self._in_time()
        self._handler.lost(self)

    def fill(self) -> bool:
        blocks = self._blocks
        if blocks is None or not self._unsent:
            return False
        frames, self._unsent = self._unsent, []
        for content in join_frames(frames):
            self.send(blocks.seal(content))
        if self.congested and self.is_blocked and not self._is_congested:
            self._is_congested = True
            self._handler.congested(self, is_congested=True)
        return False

    def _take(self, block: bytes) -> None:
        if self._blocks is None:
            assert self._handshake is not None
            self._blocks = self._handshake.accept(block)
            self._handshake = None
            self._in_time()
            self._handler.ready(self)
            self.touch()
            return
        for frame in decode_frames(self._blocks.open(block)):
            self._handler.arrived(self, frame)

    def _in_time(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()


class Links:
    """The links of a process, in both directions."""

    def __init__(self, net: NetLoop) -> None:
        self._port = Port(
            net,
            send_high_bytes=CONGESTED_BYTES,
            send_bytes_max=BUFFER_BYTES_MAX,
            vanished_s=VANISHED_S,
        )

    async def connect(self, handler: LinkHandler, node: Node, tls: Tls) -> LinkConnection:
        """Returns when TLS is established; raises OSError if that fails. The caller limits the
        time. Everything later is reported to `handler`."""
        line = LinkConnection(self._port, handler, is_server=False)
        await self._port.connect(line, (node.host, node.port), tls=tls)
        return line

    def listen(self, sock: socket.socket, handler: LinkHandler, tls: Tls) -> None:
        """Takes over a bound socket; `handler` serves all accepted links."""
        self._port.listen(sock, lambda _: LinkConnection(self._port, handler, is_server=True), tls)

    def stop_accepting(self) -> None:
        self._port.stop_accepting()
