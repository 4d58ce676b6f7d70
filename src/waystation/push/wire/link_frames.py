"""Frames of the link between Waystation workers and nodes.

A frame (`net.link`) is a MessagePack array: kind, request number, fields. Notifications are maps,
so that nodes of two versions understand each other: an unknown field is ignored, a missing one has
its default. The same holds for the last elements of an array.
"""

import msgspec

from waystation.base.decode_errors import DECODE_ERRORS
from waystation.push.errors import BadFrameError
from waystation.push.model import Notification, Uaid, Update


class Push(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    number: int
    uaid: Uaid
    notification: Notification
    until: float = 0.0  # deadline on the node's monotonic clock; 0 is none


class PushUpdate(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    number: int
    uaid: Uaid
    update: Update
    until: float = 0.0  # as of `Push`


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
    clock: float = 0.0  # the node's monotonic clock; sent between machines only


class Prove(msgspec.Struct, frozen=True, array_like=True, tag=6, gc=False):
    """First frame of a link between machines: proves that the client knows the secret."""

    proof: bytes


Call = Push | PushUpdate | CheckStored | Displace
Frame = Call | Reply | Prove

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)


def encode_frame(frame: Frame) -> bytes:
    return _encoder.encode(frame)


def decode_frame(payload: bytes) -> Frame:
    """Raises `BadFrameError` for invalid data; the link must then be closed."""
    try:
        return _decoder.decode(payload)
    except DECODE_ERRORS as error:
        raise BadFrameError(str(error)) from None
