"""Fernet tokens (https://github.com/fernet/spec) with reused HMAC and cipher contexts.

Rule 1: the MAC is compared in constant time, and nothing is decrypted before it matches.
Rule 2: the time in a token is never checked, because endpoints do not expire.

`cryptography.fernet` builds an HMAC and a cipher context for every call and takes four times as
long per token with cold caches. The contexts must not be shared between threads: an object belongs
to one event loop.
"""

import hmac
import os
import struct
from collections.abc import Iterator
from itertools import chain
from typing import Final, cast

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hmac import HMAC

KEY_BYTES: Final = 32

_VERSION: Final = 0x80
_BLOCK: Final = 16
_HEAD: Final = 9  # version and time
_MAC: Final = 32
_PAGE_BYTES: Final = 4096
_BLOCKS: Final = struct.Struct(f"{_BLOCK}s")
_PADDINGS: Final = tuple(bytes((_BLOCK - n,)) * (_BLOCK - n) for n in range(_BLOCK))


def random_blocks() -> Iterator[tuple[bytes]]:
    """Blocks of the system's random bytes, read by the page: a system call costs the same for
    sixteen bytes and for many.

    Each block is returned once. Processes are spawned, never forked, so no two share a page."""
    return chain.from_iterable(_random_pages())


def _random_pages() -> Iterator[Iterator[tuple[bytes]]]:
    while True:
        yield cast(Iterator[tuple[bytes]], _BLOCKS.iter_unpack(os.urandom(_PAGE_BYTES)))


class Fernet:
    """One key."""

    __slots__ = ("_at_s", "_decrypt", "_encrypt", "_head", "_random_blocks", "_signing")

    def __init__(self, key: bytes) -> None:
        assert len(key) == KEY_BYTES
        self._signing = HMAC(key[:16], SHA256())  # copied for each token
        # CBC is decrypted block by block and XORed here, so that one context serves tokens with any
        # IV. ECB is only the building block; the scheme is still CBC.
        aes = algorithms.AES(key[16:])
        self._decrypt = Cipher(aes, modes.ECB()).decryptor()  # noqa: S305
        self._encrypt = Cipher(aes, modes.CBC(os.urandom(_BLOCK))).encryptor()
        self._random_blocks = random_blocks()
        self._at_s = -1
        self._head = b""  # of the tokens of that second

    def _mac(self, signed: bytes) -> bytes:
        mac = self._signing.copy()
        mac.update(signed)
        return mac.finalize()

    def seal(self, plain: bytes, now_s: int) -> bytes:
        """The raw token, before base64."""
        # The CBC context is never finalised. A random block before each token becomes, encrypted,
        # the token's IV: NIST SP 800-38A, appendix C, first method.
        if now_s != self._at_s:
            self._head = b"\x80" + now_s.to_bytes(8, "big")
            self._at_s = now_s
        (block,) = next(self._random_blocks)
        signed = self._head + self._encrypt.update(block + plain + _PADDINGS[len(plain) % _BLOCK])
        mac = self._signing.copy()  # `_mac` inlined: every message id needs it
        mac.update(signed)
        return signed + mac.finalize()

    def open(self, raw: bytes) -> bytes | None:
        """The plain text, or None if this key did not seal the token."""
        length = len(raw) - _HEAD - _BLOCK - _MAC
        if length < _BLOCK or length % _BLOCK or raw[0] != _VERSION:
            return None
        if not hmac.compare_digest(self._mac(raw[:-_MAC]), raw[-_MAC:]):
            return None
        blocks = self._decrypt.update(raw[_HEAD + _BLOCK : -_MAC])
        # CBC: each block was XORed with the cipher block before it, the first with the IV.
        chain = raw[_HEAD : _HEAD + length]
        plain = (int.from_bytes(blocks, "big") ^ int.from_bytes(chain, "big")).to_bytes(
            length, "big"
        )
        padding = plain[-1]
        if not 1 <= padding <= _BLOCK or plain[-padding:] != bytes((padding,)) * padding:
            return None
        return plain[:-padding]
