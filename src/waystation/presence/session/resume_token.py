"""The token with which a client proves that a session is its own, and what is kept of it."""

import hashlib
import secrets
from typing import Final

import msgspec

TOKEN_BYTES: Final = 16
RANDOM_BLOCK_BYTES: Final = 4096


_begun: Final = hashlib.sha256()  # a copy takes less than looking for the algorithm again


def hashed(token: bytes) -> bytes:
    whole = _begun.copy()
    whole.update(token)
    return whole.digest()


class ResumeToken(msgspec.Struct, frozen=True, gc=False):
    """As the client gets it, and as it is kept."""

    raw: bytes
    digest: bytes


class RandomBytes:
    """`secrets.token_bytes`, asked for in blocks: a question to the kernel costs more than all
    else that a token takes."""

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
