"""Basic encodings: strings with a length, optional values, numbers, padding.

Rule 1: reading is strict. Missing, surplus or malformed bytes are refused, and the error says what
        was expected.
Rule 2: padding bytes are written as `#` and not checked.
"""

import binascii
import re
from collections.abc import Iterable

import pybase64

from waystation.base.errors import RejectedError

PAD = b"#"
SHORT_MAX = 255
LARGE_MAX = 65_535
_BASE64URL = re.compile(r"[A-Za-z0-9_-]*", re.ASCII)


class BadBytesError(RejectedError):
    """The peer sent bytes that the protocol does not allow here."""

    label = "queue_bytes"


def short(value: bytes) -> bytes:
    if len(value) > SHORT_MAX:
        raise BadBytesError(f"a short string holds {SHORT_MAX} bytes, not {len(value)}")
    return len(value).to_bytes(1) + value


def large(value: bytes) -> bytes:
    if len(value) > LARGE_MAX:
        raise BadBytesError(f"a large string holds {LARGE_MAX} bytes, not {len(value)}")
    return len(value).to_bytes(2) + value


def maybe(encoded: bytes | None) -> bytes:
    return b"0" if encoded is None else b"1" + encoded


def flag(value: bool) -> bytes:
    return b"T" if value else b"F"


def some(items: Iterable[bytes]) -> bytes:
    """A list of at least one, at most 255 encoded items."""
    parts = list(items)
    if not 1 <= len(parts) <= SHORT_MAX:
        raise BadBytesError(f"a list here has 1 to {SHORT_MAX} items, not {len(parts)}")
    return len(parts).to_bytes(1) + b"".join(parts)


def u16(value: int) -> bytes:
    return value.to_bytes(2)


def i64(value: int) -> bytes:
    return value.to_bytes(8, signed=True)


def pad(content: bytes, size: int) -> bytes:
    """`size` bytes: the length, the content, and `#`."""
    if len(content) > size - 2:
        raise BadBytesError(f"{len(content)} bytes do not fit into {size} with their length")
    return u16(len(content)) + content + PAD * (size - 2 - len(content))


def unpad(padded: bytes) -> bytes:
    if len(padded) < 2:
        raise BadBytesError("padded text is empty")
    length = int.from_bytes(padded[:2])
    if length > len(padded) - 2:
        raise BadBytesError(f"a padded text of {len(padded)} bytes claims {length}")
    return padded[2 : 2 + length]


def to_base64(value: bytes) -> str:
    """The form of ids and keys in addresses: base64url with `=`."""
    return pybase64.urlsafe_b64encode(value).decode()


def from_base64(text: str) -> bytes:
    """With or without the `=`."""
    bare = text.rstrip("=")
    if not _BASE64URL.fullmatch(bare):
        raise BadBytesError("not base64url")
    try:
        return pybase64.urlsafe_b64decode(bare + "=" * (-len(bare) % 4))
    except (binascii.Error, ValueError) as exc:
        raise BadBytesError("not base64url") from exc


class Reader:
    """Reads values one after the other."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise BadBytesError(f"{count} bytes expected, {self.left} left")
        start = self._at
        self._at += count
        return self._data[start : self._at]

    def peek(self, count: int) -> bytes:
        return self._data[self._at : self._at + count]

    def u8(self) -> int:
        return self.take(1)[0]

    def u16(self) -> int:
        return int.from_bytes(self.take(2))

    def i64(self) -> int:
        return int.from_bytes(self.take(8), signed=True)

    def short(self) -> bytes:
        return self.take(self.u8())

    def large(self) -> bytes:
        return self.take(self.u16())

    def one_of(self, letters: bytes) -> bytes:
        letter = self.take(1)
        if letter not in letters:
            raise BadBytesError(f"one of {letters.decode()} expected")
        return letter

    def flag(self) -> bool:
        return self.one_of(b"TF") == b"T"

    def maybe(self) -> bool:
        """Whether an optional value follows."""
        return self.one_of(b"01") == b"1"

    def count(self) -> int:
        """The length of a list with at least one item."""
        count = self.u8()
        if not count:
            raise BadBytesError("an empty list")
        return count

    def tail(self) -> bytes:
        return self.take(self.left)

    def end(self) -> None:
        if self.left:
            raise BadBytesError(f"{self.left} bytes too many")
