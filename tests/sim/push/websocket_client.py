"""A user agent's end of a WebSocket: masked frames over a simulated socket.

Rule 1: frames sent before the server has answered the opening request wait for that answer.
Rule 2: a user agent that stalls does not read: the connection's window fills, and the node keeps
        the rest up to its own limits.
"""

from typing import Protocol

from tests.sim.sockets import Address, SimHost, SimSocket
from waystation.net.websocket.frames import (
    OPCODE_CLOSE,
    OPCODE_PONG,
    OPCODE_TEXT,
    apply_mask,
)

_OPENING = (
    b"GET / HTTP/1.1\r\nHost: push\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"
    b"User-Agent: sim\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: push-notification\r\n\r\n"
)
_ACCEPT = b"\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"


class Peer(Protocol):
    """A user agent, as a wire sees it."""

    def heard(self, wire: "Wire", opcode: int, payload: bytes) -> None: ...

    def lost(self, wire: "Wire", code: int) -> None:
        """The connection is over, and the user agent knows; `code` of a Close, else 0."""
        ...


class Wire:
    """One connection of a user agent."""

    def __init__(self, sock: SimSocket, peer: Peer) -> None:
        self.peer = peer
        self._sock = sock
        self._out = bytearray(_OPENING)
        self._later: bytearray | None = bytearray()  # until the opening request is answered
        self._in = bytearray()
        self._stalled = False  # the user agent does not read
        self._deaf = False  # it reads and does not listen
        self._over = False
        sock.on_ready = self._move
        self._move()

    @classmethod
    async def dial(cls, peer: Peer, host: SimHost, address: Address) -> "Wire":
        """Raises OSError if the node cannot be reached."""
        return cls(await host.dial(address), peer)

    def say(self, text: bytes) -> None:
        self._send(OPCODE_TEXT, text)

    def pong(self) -> None:
        self._send(OPCODE_PONG, b"")

    def hang_up(self) -> None:
        """A Close, after everything that was said before."""
        self._send(OPCODE_CLOSE, (1000).to_bytes(2, "big"))
        self._deaf = True

    def vanish(self) -> None:
        """Without a word: the node finds out by its pings."""
        if not self._over:
            self._over = True
            self._sock.vanish()

    def cut(self) -> None:
        """The network loses the connection: what is on the way is lost, and both sides notice."""
        if not self._over:
            self._sock.cut()

    def stall(self) -> None:
        self._stalled = True

    def read_again(self) -> None:
        self._stalled = False
        self._move()

    def _send(self, opcode: int, payload: bytes) -> None:
        if not self._over and not self._deaf:
            frame = client_frame(opcode, payload, self._sock.host.luck.rng.randbytes(4))
            if self._later is None:
                self._out += frame
            else:
                self._later += frame
            self._move()

    def _move(self) -> None:
        """Write what fits, and read what is there."""
        try:
            while self._out and not self._over and (sent := self._sock.write(bytes(self._out))):
                del self._out[:sent]
            while not self._over and not self._stalled and (data := self._sock.read()) is not None:
                if not data:
                    self._lost(0)
                elif not self._deaf:
                    self._in += data
                    self._take()
        except OSError:
            self._lost(0)

    def _take(self) -> None:
        if self._later is not None:
            head, end, rest = self._in.partition(b"\r\n\r\n")
            if not end:
                return
            if not head.startswith(b"HTTP/1.1 101 ") or _ACCEPT not in head + b"\r\n":
                self._lost(0)
                return
            self._in, self._out, self._later = rest, self._out + self._later, None
        while not self._over and not self._deaf and (frame := take_frame(self._in)) is not None:
            opcode, payload = frame
            if opcode == OPCODE_CLOSE:
                self._lost(int.from_bytes(payload[:2], "big"))
            else:
                self.peer.heard(self, opcode, payload)
        if not self._over and self._out:
            self._move()

    def _lost(self, code: int) -> None:
        if not self._over:
            self._over = True
            self._sock.close()
            if not self._deaf:
                self.peer.lost(self, code)


def client_frame(opcode: int, payload: bytes, mask: bytes) -> bytes:
    """RFC 6455, section 5.2: one frame a message, masked."""
    size = len(payload)
    if size < 126:
        head = bytes((0x80 | opcode, 0x80 | size))
    elif size < 65_536:
        head = bytes((0x80 | opcode, 0xFE)) + size.to_bytes(2, "big")
    else:
        head = bytes((0x80 | opcode, 0xFF)) + size.to_bytes(8, "big")
    return head + mask + apply_mask(payload, mask)


def take_frame(data: bytearray) -> tuple[int, bytes] | None:
    """The first frame of a server, unmasked and one a message; None until it is complete."""
    if len(data) < 2:
        return None
    opcode, length, start = data[0] & 0x0F, data[1], 2
    assert data[0] & 0x80
    assert length < 0x80
    if length >= 126:
        start = 4 if length == 126 else 10
        if len(data) < start:
            return None
        length = int.from_bytes(data[2:start], "big")
    if len(data) < start + length:
        return None
    payload = bytes(data[start : start + length])
    del data[: start + length]
    return opcode, payload
