"""Sixteen-byte ids, their text forms, and keyed hashes of them for logs and events.

Inside the process an id is its 16 raw bytes; text is for wires. A raw id never reaches a log or an
event: a `Tagger` makes a keyed hash of it. A hash key serves one purpose for one calendar quarter;
destroying the key of a quarter makes its hashes unlinkable.
"""

import hashlib
import hmac
import os
import re
import time
from collections.abc import Callable
from functools import lru_cache

_HEX_LETTERS = 32
_DASHED_LETTERS = 36
_CANONICAL = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def parse_uuid(text: str) -> bytes | None:
    """The 16 bytes of a UUID in any usual spelling, else None; never raises.

    Accepts the forms of `uuid.UUID` (dashed, plain, in braces, as a URN, either case), but no
    underscores, signs, blanks or `0x` between the digits.
    """
    if len(text) == _DASHED_LETTERS:
        digits = text.replace("-", "")
    elif len(text) == _HEX_LETTERS:
        digits = text
    else:
        digits = text.replace("urn:", "").replace("uuid:", "").strip("{}").replace("-", "")
    if len(digits) != _HEX_LETTERS:
        return None
    try:
        raw = bytes.fromhex(digits)
    except ValueError:
        return None
    return raw if len(raw) == 16 else None  # fromhex passes over blanks, so count what is left


@lru_cache(maxsize=4096)  # every message spells its channel twice, and channels come again
def dashed(raw: bytes) -> str:
    """Lower case with dashes, the canonical text of RFC 9562."""
    h = raw.hex()
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def simple(raw: bytes) -> str:
    """Thirty-two lower-case hex digits."""
    return raw.hex()


def is_canonical_dashed(text: str) -> bool:
    return _CANONICAL.fullmatch(text) is not None


def new_uuid4(random_bytes: Callable[[int], bytes] = os.urandom) -> bytes:
    raw = bytearray(random_bytes(16))
    raw[6] = (raw[6] & 0x0F) | 0x40  # version 4, RFC 9562 section 5.4
    raw[8] = (raw[8] & 0x3F) | 0x80  # the variant of RFC 9562 section 4.1
    return bytes(raw)


class Tagger:
    """Keyed hashes under one key: the same id gives the same tag, and nothing leads back.

    HMAC-SHA-256 (RFC 2104) with both of its keyed beginnings kept: 0.7 us an id where
    `hmac.digest`, which begins anew each time, takes 1.7 us; every message needs two or three.
    """

    __slots__ = ("inner", "outer")

    def __init__(self, key: bytes) -> None:
        assert len(key) >= 16, "a hash key needs 16 bytes or more"
        if len(key) > 64:
            key = hashlib.sha256(key).digest()
        block = key.ljust(64, b"\0")
        self.inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block))
        self.outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in block))

    def digest(self, raw: bytes) -> bytes:
        """All 32 bytes of HMAC-SHA-256(key, raw)."""
        inner = self.inner.copy()
        inner.update(raw)
        outer = self.outer.copy()
        outer.update(inner.digest())
        return outer.digest()

    def tag(self, raw: bytes) -> str:
        """Sixteen hex digits, for log lines."""
        return self.digest(raw)[:8].hex()

    def hash64(self, raw: bytes) -> int:
        """The same eight bytes as a signed integer, for events.

        Signed, because Parquet's unsigned 64-bit columns reach Spark as slow decimals.
        """
        return int.from_bytes(self.digest(raw)[:8], "big", signed=True)


def period_of(time_ms: int) -> str:
    """The calendar quarter (UTC) of an event's date, such as `2026Q3`."""
    utc = time.gmtime(time_ms // 1000)
    return f"{utc.tm_year:04d}Q{(utc.tm_mon + 2) // 3}"


def period_key(master: bytes, purpose: str, period: str) -> bytes:
    """HKDF-SHA-256 (RFC 5869) with info = purpose || period and one 32-byte block."""
    extracted = hmac.digest(bytes(hashlib.sha256().digest_size), master, "sha256")
    return hmac.digest(extracted, (purpose + period).encode() + b"\x01", "sha256")


class PeriodTagger:
    """The `Tagger` of one purpose for any moment; remembers the quarter it was last asked for."""

    __slots__ = ("_current", "_from_ms", "_master", "_purpose", "_until_ms")

    def __init__(self, master: bytes, purpose: str) -> None:
        self._master = master
        self._purpose = purpose
        self._from_ms = 0
        self._until_ms = 0
        self._current = Tagger(period_key(master, purpose, period_of(0)))

    def at(self, time_ms: int) -> Tagger:
        if not self._from_ms <= time_ms < self._until_ms:
            # A day never lies in two quarters, so a day is what we may remember.
            self._from_ms = time_ms - time_ms % 86_400_000
            self._until_ms = self._from_ms + 86_400_000
            self._current = Tagger(period_key(self._master, self._purpose, period_of(time_ms)))
        return self._current
