"""Framing of links: four bytes of length, then the payload. Services define the payload."""

from typing import Final

from waystation.net.connection import ENDING, PAUSED, Connection
from waystation.net.loop import Port

FRAME_BYTES_MAX: Final = 1_048_576
_LENGTH: Final = 4


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(_LENGTH, "big") + payload


class FrameConnection(Connection):
    """A connection of frames; a frame that is too long ends it."""

    __slots__ = ("_kept",)

    def __init__(self, port: Port) -> None:
        super().__init__(port)
        self._kept = b""

    def send_frame(self, payload: bytes) -> None:
        self.send(framed(payload))

    def received(self, data: bytes) -> None:
        if self._kept:
            data = self._kept + data
        start, end = 0, len(data)
        while end - start >= _LENGTH and not self.flags & (ENDING | PAUSED):
            body = start + _LENGTH
            length = int.from_bytes(data[start:body], "big")
            if length > FRAME_BYTES_MAX:
                self.end()
                break
            if end - body < length:
                break
            start = body + length
            self.frame(data[body:start])
        self._kept = data[start:]

    def frame(self, payload: bytes) -> None:
        """A whole frame; not called between `pause` and `resume`."""
