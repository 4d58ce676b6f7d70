"""Fernet (https://github.com/fernet/spec) from its parts, with the contexts kept.

Rule 1: a MAC is compared in constant time, and nothing is decrypted before it matched.
Rule 2: the time inside a token is never checked: endpoints have no age.

It is put together here because in place, with cold caches, `cryptography.fernet` costs four times
as much per token: it builds an HMAC and a cipher context for every call, we keep both. The contexts
are not safe to share between threads; an object belongs to one event loop.
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
    """The system's randomness by the page: asking for sixteen bytes costs as much as for many.

    Each block is given out once. Processes are spawned, never forked, so none shares a page."""
    return chain.from_iterable(_random_pages())


def _random_pages() -> Iterator[Iterator[tuple[bytes]]]:
    while True:
        yield cast(Iterator[tuple[bytes]], _BLOCKS.iter_unpack(os.urandom(_PAGE_BYTES)))


class Fernet:
    """One key."""

    __slots__ = ("_at_s", "_decrypt", "_encrypt", "_head", "_random_blocks", "_signing")

    def __init__(self, key: bytes) -> None:
        assert len(key) == KEY_BYTES
        self._signing = HMAC(key[:16], SHA256())  # begun; a copy of it signs one token
        # CBC is undone with single blocks and an exclusive or, so that one context serves all
        # tokens whatever their IV. ECB as a mode is not what protects anything here.
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
        # The chain of the kept CBC context never ends. A random block in front of each token
        # becomes, once encrypted, that token's IV: NIST SP 800-38A, appendix C, first method.
        if now_s != self._at_s:
            self._head = b"\x80" + now_s.to_bytes(8, "big")
            self._at_s = now_s
        (block,) = next(self._random_blocks)
        signed = self._head + self._encrypt.update(block + plain + _PADDINGS[len(plain) % _BLOCK])
        mac = self._signing.copy()  # as `_mac`, without the call: every message has an id
        mac.update(signed)
        return signed + mac.finalize()

    def open(self, raw: bytes) -> bytes | None:
        """What was sealed, or None for anything that this key did not seal."""
        length = len(raw) - _HEAD - _BLOCK - _MAC
        if length < _BLOCK or length % _BLOCK or raw[0] != _VERSION:
            return None
        if not hmac.compare_digest(self._mac(raw[:-_MAC]), raw[-_MAC:]):
            return None
        blocks = self._decrypt.update(raw[_HEAD + _BLOCK : -_MAC])
        # Each block was chained to the one before it, the first to the IV.
        chain = raw[_HEAD : _HEAD + length]
        plain = (int.from_bytes(blocks, "big") ^ int.from_bytes(chain, "big")).to_bytes(
            length, "big"
        )
        padding = plain[-1]
        if not 1 <= padding <= _BLOCK or plain[-padding:] != bytes((padding,)) * padding:
            return None
        return plain[:-padding]
