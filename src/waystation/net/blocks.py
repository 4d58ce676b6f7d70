"""Framing in blocks of one fixed size (SMP), which hides message lengths from observers.

A read of exactly one block is passed on without a copy; with 16,384-byte blocks over TLS, where a
block is the largest record, that is the usual read. Other reads are collected. `PulledBlocks`
builds a block only when the socket accepts it, so queued data has no padding. At most `BLOCKS_MAX`
blocks leave per turn of the loop.
"""

from typing import Final

from waystation.net.connection import BLOCKED, ENDING, PAUSED, TOUCHED, Connection
from waystation.net.loop import NetLoop, Port
from waystation.net.tls import RECORD_BYTES

BLOCKS_MAX: Final = 8  # to one peer per turn


class Blocks(Connection):
    """A connection that receives and sends whole blocks."""

    __slots__ = ("_partial",)

    block_bytes = RECORD_BYTES

    def __init__(self, port: Port) -> None:
        super().__init__(port)
        self._partial: bytearray | None = None

    def block_received(self, block: bytes) -> None:
        """A whole block; for protocols to override."""

    def received(self, data: bytes) -> None:
        if len(data) == self.block_bytes and self._partial is None:
            self.block_received(data)
        elif data or self._partial is not None:
            self._gather(data)

    def _gather(self, data: bytes) -> None:
        partial = self._partial
        if partial is None:
            partial = self._partial = bytearray()
        partial += data
        size = self.block_bytes
        while len(partial) >= size and not self.flags & (PAUSED | ENDING):
            block = bytes(partial) if len(partial) == size else bytes(partial[:size])
            del partial[:size]
            self.block_received(block)
        if not partial:
            self._partial = None


class PulledBlocks(Blocks):
    """A connection that is asked for its blocks; it calls `touch` when it has data to send."""

    __slots__ = ()

    pulls = True

    def next_block(self) -> bytes | None:
        """The next block to send, or None; for protocols to override."""
        return None

    def filled(self) -> None:
        """The socket has accepted all blocks, or some of them; for protocols to override."""

    def fill(self) -> bool:
        write = self.port.net.write
        for _ in range(BLOCKS_MAX):
            block = self.next_block()
            if block is None:
                break
            self.out = [block]
            self.out_bytes = len(block)
            write(self)
            if self.flags & (BLOCKED | ENDING):
                break
        else:
            return True
        self.flags &= ~TOUCHED  # blocks from here on leave in the next turn
        self.filled()
        return False

    def finish(self) -> None:
        """Send the waiting blocks, then close."""
        while (block := self.next_block()) is not None:
            self.send(block)
        self.end()


def pulled_blocks(net: NetLoop, block_bytes: int = RECORD_BYTES) -> Port:
    """A port for `PulledBlocks`: each block is written on its own, because OpenSSL writes a record
    at a time, and joining blocks would copy them."""
    return Port(net, send_high_bytes=block_bytes, send_bytes_max=0)
