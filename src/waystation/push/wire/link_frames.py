"""Frames of the link between our own workers and nodes.

A frame (`net.link`) is a MessagePack array: the kind, the number of the request, and what belongs
to it. Notifications inside are maps, so that nodes of two versions understand each
other: a field that one of them does not know is left out or passed over. The same holds for what is
last in an array.

Both directions are here without I/O.
"""

import msgspec

from waystation.base.decode_errors import DECODE_ERRORS
from waystation.push.errors import BadFrameError
from waystation.push.model import Notification, Uaid, Update


class Push(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    number: int
    uaid: Uaid
    notification: Notification
    until: float = 0.0  # on the node's monotonic clock: later it must be refused; 0 is no limit


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
    clock: float = 0.0  # the node's monotonic clock, told between machines only


class Prove(msgspec.Struct, frozen=True, array_like=True, tag=6, gc=False):
    """The first frame of a link between machines: that the client knows the secret as well."""

    proof: bytes


Call = Push | PushUpdate | CheckStored | Displace
Frame = Call | Reply | Prove

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)


def encode_frame(frame: Frame) -> bytes:
    return _encoder.encode(frame)


def decode_frame(payload: bytes) -> Frame:
    """`BadFrameError` for what is not a frame; the link is of no use after that."""
    try:
        return _decoder.decode(payload)
    except DECODE_ERRORS as error:
        raise BadFrameError(str(error)) from None
