"""Basic encodings of the protocol: integers, strings, lists.

Reading is strict: a `Reader` raises `FieldError` for a missing or malformed field, and `end` for
surplus bytes. The caller chooses the fault for it.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from waystation.queue.model import AuthKey, DhKey, KeyKind, VersionRange

ED25519_SPKI: Final = bytes.fromhex("302a300506032b6570032100")
X25519_SPKI: Final = bytes.fromhex("302a300506032b656e032100")
ED448_SPKI: Final = bytes.fromhex("3043300506032b6571033a00")

_KINDS: Final = {
    (ED25519_SPKI, 44): KeyKind.ED25519,
    (X25519_SPKI, 44): KeyKind.X25519,
    (ED448_SPKI, 69): KeyKind.ED448,
}
_PREFIXES: Final = {
    KeyKind.ED25519: ED25519_SPKI,
    KeyKind.X25519: X25519_SPKI,
    KeyKind.ED448: ED448_SPKI,
}
_PREFIX_BYTES: Final = 12

NOTHING: Final = b"0"
SOMETHING: Final = b"1"
_MAYBE_NOTHING: Final = 0x30
_MAYBE_SOMETHING: Final = 0x31
TRUE: Final = 0x54
FALSE: Final = 0x46


class FieldError(ValueError):
    """Malformed bytes."""


def from_spki(der: bytes) -> AuthKey:
    """Refuses X448 keys and all others that cannot authorise a command."""
    kind = _KINDS.get((der[:_PREFIX_BYTES], len(der)))
    if kind is None:
        raise FieldError("key type cannot authorise commands")
    return AuthKey(kind, der[_PREFIX_BYTES:])


def to_spki(key: AuthKey) -> bytes:
    return _PREFIXES[key.kind] + key.raw


def dh_from_spki(der: bytes) -> DhKey:
    if len(der) != 44 or not der.startswith(X25519_SPKI):
        raise FieldError("not an X25519 key")
    return DhKey(der[_PREFIX_BYTES:])


def dh_to_spki(key: DhKey) -> bytes:
    return X25519_SPKI + key


class Reader:
    """Reads field by field; results are copies and keep no reference to the data."""

    __slots__ = ("_at", "_data", "_end")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self._at = at
        self._end = len(data)

    def take(self, count: int) -> bytes:
        start = self._at
        self._at = end = start + count
        if end > self._end:
            raise FieldError("truncated")
        return self._data[start:end]

    def byte(self) -> int:
        at = self._at
        if at >= self._end:
            raise FieldError("truncated")
        self._at = at + 1
        return self._data[at]

    def u16(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def i64(self) -> int:
        return int.from_bytes(self.take(8), "big", signed=True)

    def short(self) -> bytes:
        return self.take(self.byte())

    def large(self) -> bytes:
        return self.take(self.u16())

    def tail(self) -> bytes:
        start, self._at = self._at, self._end
        return self._data[start:]

    def flag(self) -> bool:
        letter = self.byte()
        if letter == TRUE:
            return True
        if letter == FALSE:
            return False
        raise FieldError("flag is neither T nor F")

    def maybe(self) -> bool:
        """Whether an optional field follows."""
        letter = self.byte()
        if letter == _MAYBE_SOMETHING:
            return True
        if letter == _MAYBE_NOTHING:
            return False
        raise FieldError("option is neither 0 nor 1")

    def maybe_short(self) -> bytes | None:
        return self.short() if self.maybe() else None

    def auth_key(self) -> AuthKey:
        return from_spki(self.short())

    def dh_key(self) -> DhKey:
        return dh_from_spki(self.short())

    def versions(self) -> VersionRange:
        lowest, highest = self.u16(), self.u16()
        if lowest > highest:
            raise FieldError("version range ends before it begins")
        return VersionRange(lowest, highest)

    def larges(self) -> tuple[bytes, ...]:
        """A list with at least one item, such as a chain of certificates."""
        count = self.byte()
        if not count:
            raise FieldError("empty list")
        return tuple(self.large() for _ in range(count))

    @property
    def at(self) -> int:
        return self._at

    def back_to(self, at: int) -> None:
        self._at = at

    def end(self) -> None:
        if self._at != self._end:
            raise FieldError("surplus bytes")


def short(data: bytes) -> bytes:
    return bytes((len(data),)) + data


def large(data: bytes) -> bytes:
    return len(data).to_bytes(2, "big") + data


def u16(number: int) -> bytes:
    return number.to_bytes(2, "big")


def i64(number: int) -> bytes:
    return number.to_bytes(8, "big", signed=True)


def flag(value: bool) -> bytes:
    return b"T" if value else b"F"


def maybe(encoded: bytes | None) -> bytes:
    return NOTHING if encoded is None else SOMETHING + encoded


def maybe_short(data: bytes | None) -> bytes:
    return NOTHING if data is None else SOMETHING + short(data)


def auth_key(key: AuthKey) -> bytes:
    return short(to_spki(key))


def dh_key(key: DhKey) -> bytes:
    return b"\x2c" + X25519_SPKI + key


def versions(offered: VersionRange) -> bytes:
    return u16(offered.lowest) + u16(offered.highest)


def larges(items: Sequence[bytes]) -> bytes:
    return bytes((len(items),)) + b"".join(map(large, items))


def shorts(items: Iterable[bytes]) -> bytes:
    encoded = [short(item) for item in items]
    return bytes((len(encoded),)) + b"".join(encoded)
