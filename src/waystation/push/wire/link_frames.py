"""Frames of the link between our own workers and nodes.

A frame is four bytes of length and a MessagePack array: the kind, the number of the request, and
what belongs to it. Notifications inside are maps, so that nodes of two versions understand each
other: a field that one of them does not know is left out or passed over.

Both directions are here without I/O.
"""

from typing import Final

import msgspec

from waystation.base.unreadable import UNREADABLE
from waystation.push.errors import BadFrameError
from waystation.push.model import Notification, Uaid, Update

FRAME_BYTES_MAX: Final = 1_048_576
_LENGTH: Final = 4


class Push(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    number: int
    uaid: Uaid
    notification: Notification


class PushUpdate(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    number: int
    uaid: Uaid
    update: Update


class CheckStored(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    number: int
    uaid: Uaid


class Displace(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    number: int
    uaid: Uaid
    connected_at_ms: int


class Reply(msgspec.Struct, frozen=True, array_like=True, tag=5, gc=False):
    number: int
    answer: int


class Prove(msgspec.Struct, frozen=True, array_like=True, tag=6, gc=False):
    """The first frame of a link between machines: that the client knows the secret as well."""

    proof: bytes


Call = Push | PushUpdate | CheckStored | Displace
Frame = Call | Reply | Prove

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)


def encode_frame(frame: Frame) -> bytes:
    payload = _encoder.encode(frame)
    return len(payload).to_bytes(_LENGTH, "big") + payload


class FrameReader:
    """Puts frames together from whatever pieces arrive."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept = b""

    def feed(self, data: bytes) -> list[Frame]:
        """`BadFrameError` for what is not a frame; the link is of no use after that."""
        if self._kept:
            data = self._kept + data
        frames: list[Frame] = []
        start, end = 0, len(data)
        while end - start >= _LENGTH:
            body = start + _LENGTH
            length = int.from_bytes(data[start:body], "big")
            if length > FRAME_BYTES_MAX:
                raise BadFrameError(f"a frame of {length} bytes")
            if end - body < length:
                break
            start = body + length
            try:
                frames.append(_decoder.decode(data[body:start]))
            except UNREADABLE as error:
                raise BadFrameError(str(error)) from None
        self._kept = data[start:]
        return frames
