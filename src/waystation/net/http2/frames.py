"""Frames of HTTP/2 (RFC 9113, sections 4 and 6): their numbers, and the bytes of those we send."""

import enum
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES = 9
FRAME_BYTES_MAX = 16_384  # what everybody must take; we neither ask for more nor send more
WINDOW_DEFAULT_BYTES = 65_535
WINDOW_BYTES_MAX = 2**31 - 1

DATA = 0x0
HEADERS = 0x1
PRIORITY = 0x2
RST_STREAM = 0x3
SETTINGS = 0x4
PUSH_PROMISE = 0x5
PING = 0x6
GOAWAY = 0x7
WINDOW_UPDATE = 0x8
CONTINUATION = 0x9

END_STREAM = 0x1
ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20

SETTING_ENABLE_PUSH = 0x2
SETTING_MAX_CONCURRENT_STREAMS = 0x3
SETTING_INITIAL_WINDOW_SIZE = 0x4
SETTING_MAX_FRAME_SIZE = 0x5
SETTING_MAX_HEADER_LIST_SIZE = 0x6

# Length and type (24 and 8 bits), flags, stream.
HEAD = struct.Struct(">IBI")
# Of a gRPC message: whether it is compressed, and its length.
PREFIX = struct.Struct(">BI")
# Both, of a DATA frame that holds one message.
MESSAGE_HEAD = struct.Struct(">IBIBI")
SETTING = struct.Struct(">HI")
_NUMBER = struct.Struct(">I")
_GOAWAY = struct.Struct(">II")


class ErrorCode(enum.IntEnum):
    """Section 7."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class ConnectionFault(Exception):  # noqa: N818 it is the peer's, and ends the connection
    """The peer broke a rule that the whole connection rests on."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class StreamFault(Exception):  # noqa: N818 it is the peer's, and ends one stream
    """The peer broke a rule of one stream; the others go on."""

    def __init__(self, stream_id: int, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.stream_id = stream_id
        self.code = code


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    length = len(payload)
    return HEAD.pack(length << 8 | kind, flags, stream_id) + payload


def settings(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*pair) for pair in values.items()))


SETTINGS_ACK = frame(SETTINGS, ACK, 0)


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, _NUMBER.pack(increment))


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    return frame(RST_STREAM, 0, stream_id, _NUMBER.pack(code))


def goaway(last_id: int, code: ErrorCode, reason: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, _GOAWAY.pack(last_id, code) + reason.encode("ascii", "replace"))


def number(data: bytes, at: int) -> int:
    """Four bytes without the reserved bit."""
    return _NUMBER.unpack_from(data, at)[0] & 0x7FFF_FFFF
