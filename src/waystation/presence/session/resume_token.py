"""Resume tokens: random bytes for the client, their hash for the store."""

import hashlib
import secrets
from typing import Final

import msgspec

TOKEN_BYTES: Final = 16
RANDOM_BLOCK_BYTES: Final = 4096


_begun: Final = hashlib.sha256()  # copying it is faster than creating a hash


def hashed(token: bytes) -> bytes:
    whole = _begun.copy()
    whole.update(token)
    return whole.digest()


class ResumeToken(msgspec.Struct, frozen=True, gc=False):
    """`raw` is sent to the client, `digest` is stored."""

    raw: bytes
    digest: bytes


class RandomBytes:
    """`secrets.token_bytes` in blocks: one system call for many tokens."""

    __slots__ = ("_at", "_block")

    def __init__(self) -> None:
        self._block = b""
        self._at = 0

    def take(self, count: int) -> bytes:
        assert 0 < count <= RANDOM_BLOCK_BYTES
        at = self._at
        end = at + count
        if end > len(self._block):
            self._block = secrets.token_bytes(RANDOM_BLOCK_BYTES)
            at, end = 0, count
        self._at = end
        return self._block[at:end]
