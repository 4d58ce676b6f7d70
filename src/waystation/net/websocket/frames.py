"""WebSocket frames, the server's side of RFC 6455: bytes in, events out; values in, frames out.

Rule 1: nothing is kept for a client that is not in the middle of a frame or a message. One
        `FrameReader` serves all connections of a worker; what must wait for more bytes leaves it
        as a `Partial`, and only then.
Rule 2: what is kept is bounded: `message_bytes_max` bytes of payload and one header or control
        frame. A longer message is refused when its header arrives, before its payload does.
Rule 3: events come one at a time, so that a reader may stop between two messages and go on later.
        After `Close` or `Broken` none follow.
Rule 4: a text message is valid UTF-8 and stays bytes: whoever decodes JSON wants bytes.

We are tolerant in one place: a length that is not written in its shortest form is taken, as the
other servers of this protocol do.
"""

import struct
from collections.abc import Callable

import msgspec

Mask = Callable[[bytes | bytearray, bytes | bytearray], bytes]


def _mask_slowly(data: bytes | bytearray, mask: bytes | bytearray) -> bytes:
    """Section 5.3 as one big integer, which is as quick as it gets without C."""
    repeated = (bytes(mask) * (len(data) // 4 + 1))[: len(data)]
    xored = int.from_bytes(data, "little") ^ int.from_bytes(repeated, "little")
    return xored.to_bytes(len(data), "little")


try:
    from websockets.speedups import apply_mask as _speedy_mask

    apply_mask: Mask = _speedy_mask
except ImportError:  # wheels without the extension exist for rare platforms
    apply_mask = _mask_slowly

OPCODE_CONTINUATION = 0x0
OPCODE_TEXT = 0x1
OPCODE_BINARY = 0x2
OPCODE_CLOSE = 0x8
OPCODE_PING = 0x9
OPCODE_PONG = 0xA

CLOSE_NORMAL = 1000
CLOSE_PROTOCOL_ERROR = 1002
CLOSE_UNSUPPORTED = 1003
CLOSE_NO_CODE = 1005  # never on the wire: stands for a Close frame without a code
CLOSE_BAD_TEXT = 1007
CLOSE_INTERNAL = 1011

HEADER_BYTES_MAX = 14  # two bytes, eight of length, four of mask
CONTROL_BYTES_MAX = 125
REASON_BYTES_MAX = CONTROL_BYTES_MAX - 2

# --- events --------------------------------------------------------------------------------------


class Text(msgspec.Struct, frozen=True, gc=False):
    data: bytes  # valid UTF-8


class Binary(msgspec.Struct, frozen=True, gc=False):
    data: bytes


class Ping(msgspec.Struct, frozen=True, gc=False):
    data: bytes


class Pong(msgspec.Struct, frozen=True, gc=False):
    data: bytes


class Close(msgspec.Struct, frozen=True, gc=False):
    code: int  # CLOSE_NO_CODE if the frame had none
    reason: str


class Broken(msgspec.Struct, frozen=True, gc=False):
    """The peer broke the protocol: close with this code."""

    code: int
    reason: str


Event = Text | Binary | Ping | Pong | Close | Broken


# --- reading -------------------------------------------------------------------------------------


class Partial:
    """What a client has sent so far of a frame or a message that is not complete."""

    __slots__ = ("at", "buffer", "message", "needed", "opcode")

    def __init__(self) -> None:
        self.buffer: bytes | bytearray = b""
        self.at = 0  # what lies before has been read
        self.needed = 0  # bytes from `at` on below which there is nothing to find
        self.message: bytearray | None = None  # fragments so far
        self.opcode = OPCODE_CONTINUATION  # of their first frame

    @property
    def held_bytes(self) -> int:
        message = self.message
        return len(self.buffer) - self.at + (0 if message is None else len(message))

    @property
    def unread(self) -> bool:
        """Whether reading stopped early, so that complete frames may be among the bytes."""
        return self.needed == 0 and len(self.buffer) > self.at


class FrameReader:
    """Takes frames out of what was read: `begin`, then `next` until None or enough, then `end`.

    It is on the path of every message, hence one object for all connections and no generator: the
    state between `begin` and `end` belongs to one connection, and nothing calls back from here.
    """

    __slots__ = ("_at", "_data", "_message_bytes_max", "_needed", "_over", "_partial")

    def __init__(self, *, message_bytes_max: int = 65_536) -> None:
        assert message_bytes_max >= CONTROL_BYTES_MAX
        self._message_bytes_max = message_bytes_max
        self._data: bytes | bytearray = b""
        self._at = 0
        self._needed = 0
        self._over = False
        self._partial: Partial | None = None

    def begin(self, data: bytes, partial: Partial | None = None) -> None:
        """`data` follows whatever `partial` holds."""
        self._over = False
        self._needed = 0
        self._partial = partial
        if partial is None:
            self._data = data
            self._at = 0
            return
        at = partial.at
        buffer = partial.buffer
        if data:
            if at >= len(buffer):
                buffer = data
                at = 0
            elif isinstance(buffer, bytearray):
                # Growing in place keeps a client that sends single bytes from costing us a copy
                # of its message for each of them.
                del buffer[:at]
                at = 0
                buffer += data
            else:
                buffer = bytearray(memoryview(buffer)[at:])
                at = 0
                buffer += data
        self._data = buffer
        self._at = at
        if len(buffer) - at < partial.needed:
            self._needed = partial.needed

    def end(self) -> Partial | None:
        """What must be handed to the next `begin` of this connection."""
        data, at = self._data, self._at
        partial = self._partial
        self._partial = None
        self._data = b""  # the reader holds nobody's bytes
        if self._over:
            return None
        if at >= len(data):
            if partial is None or partial.message is None:
                return None
            partial.buffer = b""
            partial.at = 0
            partial.needed = 0
            return partial
        if partial is None:
            partial = Partial()
        if at and self._needed:
            data = bytearray(memoryview(data)[at:])  # let go of what is read
            at = 0
        partial.buffer = data
        partial.at = at
        partial.needed = self._needed
        return partial

    def next(self) -> Event | None:
        """The next event, or None when more bytes are needed."""
        while not self._over and not self._needed:
            data = self._data
            at = self._at
            there = len(data) - at
            if there < 2:
                self._needed = 2 if there else 0
                return None
            first = data[at]
            length = data[at + 1] - 0x80
            if length < 0:
                return self._break(CLOSE_PROTOCOL_ERROR, "frame is not masked")  # section 5.1
            head = 6
            if length > CONTROL_BYTES_MAX:
                if first & 0x08:
                    return self._break(CLOSE_PROTOCOL_ERROR, "control frame too long")
                head = 8 if length == 126 else 14
                if there < head:
                    self._needed = head
                    return None
                length = int.from_bytes(data[at + 2 : at + head - 4], "big")
            partial = self._partial
            message = None if partial is None else partial.message
            if first != 0x81 or length > self._message_bytes_max or message is not None:
                trouble = self._trouble(first, length, message)
                if trouble is not None:
                    return trouble
            end = head + length
            if there < end:
                self._needed = end
                return None
            start = at + head
            self._at = at = at + end
            payload = apply_mask(data[start:at], data[start - 4 : start])
            if first == 0x81:
                return self._text(payload)
            event = self._take(first, payload)
            if event is not None:
                return event
        return None

    def _trouble(self, first: int, length: int, message: bytearray | None) -> Broken | None:
        """What a header alone says against its frame (sections 5.2, 5.4 and 5.5)."""
        opcode = first & 0x0F
        if first & 0x70:
            return self._break(CLOSE_PROTOCOL_ERROR, "reserved bits are set")
        if opcode >= OPCODE_CLOSE:
            if opcode > OPCODE_PONG:
                return self._break(CLOSE_PROTOCOL_ERROR, "unknown opcode")
            if not first & 0x80:
                return self._break(CLOSE_PROTOCOL_ERROR, "fragmented control frame")
            return None
        if opcode > OPCODE_BINARY:
            return self._break(CLOSE_PROTOCOL_ERROR, "unknown opcode")
        if opcode == OPCODE_CONTINUATION:
            if message is None:
                return self._break(CLOSE_PROTOCOL_ERROR, "nothing to continue")
            length += len(message)
        elif message is not None:
            return self._break(CLOSE_PROTOCOL_ERROR, "a message within a message")
        if length > self._message_bytes_max:
            # Section 7.4.1 has 1009 for this, but user agents know 1002 from Autopush.
            return self._break(CLOSE_PROTOCOL_ERROR, "message too long")
        return None

    def _take(self, first: int, payload: bytes) -> Event | None:
        """A frame that is not a whole text message; None if it only adds to one."""
        match first & 0x0F:
            case 0x9:
                return Ping(payload)
            case 0xA:
                return Pong(payload)
            case 0x8:
                return self._close(payload)
            case 0x0:
                partial = self._partial
                assert partial is not None
                assert partial.message is not None
                partial.message += payload
                if not first & 0x80:
                    return None
                whole = bytes(partial.message)
                partial.message = None
                return self._text(whole) if partial.opcode == OPCODE_TEXT else Binary(whole)
            case opcode:
                if first & 0x80:
                    return Binary(payload)
                if self._partial is None:
                    self._partial = Partial()
                self._partial.message = bytearray(payload)
                self._partial.opcode = opcode
                return None

    def _text(self, payload: bytes) -> Text | Broken:
        if not payload.isascii():
            try:
                payload.decode()
            except UnicodeDecodeError:
                return self._break(CLOSE_BAD_TEXT, "text is not UTF-8")
        return Text(payload)

    def _close(self, payload: bytes) -> Close | Broken:
        """Section 5.5.1; the codes that may travel are those of section 7.4."""
        if not payload:
            self._over = True
            return Close(CLOSE_NO_CODE, "")
        if len(payload) == 1:
            return self._break(CLOSE_PROTOCOL_ERROR, "half a close code")
        code = int.from_bytes(payload[:2], "big")
        if not may_travel(code):
            return self._break(CLOSE_PROTOCOL_ERROR, "invalid close code")
        try:
            reason = payload[2:].decode()
        except UnicodeDecodeError:
            return self._break(CLOSE_BAD_TEXT, "close reason is not UTF-8")
        self._over = True
        return Close(code, reason)

    def _break(self, code: int, reason: str) -> Broken:
        self._over = True
        return Broken(code, reason)


def may_travel(code: int) -> bool:
    """Whether a close code may stand in a frame (section 7.4 and the IANA registry)."""
    return 3000 <= code <= 4999 or (1000 <= code <= 1014 and code not in (1004, 1005, 1006))


# --- writing -------------------------------------------------------------------------------------

_SHORT_TEXT = tuple(bytes((0x80 | OPCODE_TEXT, n)) for n in range(126))
_pack_medium = struct.Struct("!BBH").pack
_pack_long = struct.Struct("!BBQ").pack

PING = bytes((0x80 | OPCODE_PING, 0))  # one for all: our pings carry nothing


def text_frame(payload: bytes) -> bytes:
    """One whole text message; `payload` is UTF-8."""
    length = len(payload)
    if length < 126:
        return _SHORT_TEXT[length] + payload
    if length < 65_536:
        return _pack_medium(0x81, 126, length) + payload
    return _pack_long(0x81, 127, length) + payload


def ping_frame(payload: bytes = b"") -> bytes:
    assert len(payload) <= CONTROL_BYTES_MAX
    return bytes((0x89, len(payload))) + payload


def pong_frame(payload: bytes) -> bytes:
    assert len(payload) <= CONTROL_BYTES_MAX
    return bytes((0x8A, len(payload))) + payload


def close_frame(code: int, reason: str = "") -> bytes:
    """`CLOSE_NO_CODE` gives an empty frame; a reason that is too long is cut between characters."""
    if code == CLOSE_NO_CODE:
        return b"\x88\x00"
    assert may_travel(code), f"close code {code} must not travel"
    text = reason.encode()
    if len(text) > REASON_BYTES_MAX:
        text = text[:REASON_BYTES_MAX].decode(errors="ignore").encode()
    return bytes((0x88, len(text) + 2)) + code.to_bytes(2, "big") + text
