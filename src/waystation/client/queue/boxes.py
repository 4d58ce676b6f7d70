"""The ciphers of SMP: boxes over a raw key, padded boxes, HKDF and the chain of block keys.

Rule 1: a box is made as by NaCl's crypto_box after the key agreement, also for raw keys: HSalsa20
        over the key comes first, then XSalsa20-Poly1305.
Rule 2: each direction of a connection has a chain; every block takes one step, also an unreadable
        one.
"""

import ctypes
from collections.abc import Callable

import nacl._sodium as sodium  # only for its path
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from nacl.bindings import (
    crypto_box_beforenm,
    crypto_scalarmult,
    crypto_secretbox_easy,
    crypto_secretbox_open_easy,
)
from nacl.exceptions import CryptoError

from .encoding import BadBytesError, pad, unpad

NONCE_BYTES = 24
TAG_BYTES = 16
_MASK = 0xFFFFFFFF
_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)  # "expand 32-byte k"
# Which words each quarter round of Salsa20 changes: four columns, then four rows.
_QUARTERS = (
    *((0, 4, 8, 12), (5, 9, 13, 1), (10, 14, 2, 6), (15, 3, 7, 11)),
    *((0, 1, 2, 3), (5, 6, 7, 4), (10, 11, 8, 9), (15, 12, 13, 14)),
)


class NotOpenedError(BadBytesError):
    """A box does not decrypt: another key, another nonce, or changed bytes."""

    label = "queue_box"


def hsalsa20_in_python(key: bytes) -> bytes:
    """HSalsa20 with sixteen zero bytes as its input; about a hundred times slower than C."""
    k = [int.from_bytes(key[at : at + 4], "little") for at in range(0, 32, 4)]
    c = _CONSTANTS
    x = [c[0], *k[:4], c[1], 0, 0, 0, 0, c[2], *k[4:], c[3]]
    for _ in range(10):
        for a, b, d, e in _QUARTERS:
            for to, one, other, turn in ((b, a, e, 7), (d, b, a, 9), (e, d, b, 13), (a, e, d, 18)):
                total = (x[one] + x[other]) & _MASK
                x[to] ^= ((total << turn) & _MASK) | (total >> (32 - turn))
    return b"".join(x[at].to_bytes(4, "little") for at in (0, 5, 10, 15, 6, 7, 8, 9))


def _libsodium() -> Callable[[bytes], bytes] | None:
    """PyNaCl contains the function but has no call for it; if its symbol is hidden, the Python
    version above is used."""
    try:
        function = ctypes.CDLL(sodium.__file__).crypto_core_hsalsa20
    except (OSError, AttributeError, TypeError):
        return None
    zero = bytes(16)

    def hsalsa20(key: bytes) -> bytes:
        assert len(key) == 32
        out = ctypes.create_string_buffer(32)
        function(out, zero, key, None)
        return out.raw

    probe = bytes(range(32))
    return hsalsa20 if hsalsa20(probe) == hsalsa20_in_python(probe) else None


hsalsa20: Callable[[bytes], bytes] = _libsodium() or hsalsa20_in_python


def nonce24(text: bytes) -> bytes:
    """A correlation id as a nonce: cut, or filled with zero bytes."""
    return text[:NONCE_BYTES].ljust(NONCE_BYTES, b"\0")


def shared_secret(public: bytes, private: bytes) -> bytes:
    """X25519; a public key of low order, whose secret is predictable, is refused."""
    try:
        return crypto_scalarmult(private, public)
    except (CryptoError, RuntimeError) as exc:
        raise BadBytesError("a public key of low order") from exc


def box_key(public: bytes, private: bytes) -> bytes:
    """HSalsa20 of the shared secret: the key for `seal` and `unseal`."""
    try:
        return crypto_box_beforenm(public, private)
    except (CryptoError, RuntimeError) as exc:
        raise BadBytesError("a public key of low order") from exc


def seal(derived: bytes, nonce: bytes, text: bytes) -> bytes:
    """Tag and ciphertext, with a key that is the result of HSalsa20."""
    return crypto_secretbox_easy(text, nonce, derived)


def unseal(derived: bytes, nonce: bytes, sealed: bytes) -> bytes:
    if len(sealed) < TAG_BYTES:
        raise NotOpenedError("box shorter than its tag")
    try:
        return crypto_secretbox_open_easy(sealed, nonce, derived)
    except CryptoError as exc:
        raise NotOpenedError("box does not decrypt") from exc


def seal_padded(derived: bytes, nonce: bytes, text: bytes, size: int) -> bytes:
    return seal(derived, nonce, pad(text, size))


def unseal_padded(derived: bytes, nonce: bytes, sealed: bytes) -> bytes:
    return unpad(unseal(derived, nonce, sealed))


def hkdf(salt: bytes, secret: bytes, info: bytes, size: int) -> bytes:
    return HKDF(hashes.SHA512(), size, salt, info).derive(secret)


class Chain:
    """The keys of one direction, one after the other."""

    __slots__ = ("_next",)

    def __init__(self, start: bytes) -> None:
        self._next = start

    def step(self) -> tuple[bytes, bytes]:
        """The key and the nonce of the next block."""
        out = hkdf(b"", self._next, b"SimpleXSbChain", 88)
        self._next = out[:32]
        return out[32:64], out[64:]


def block_chains(session_id: bytes, secret: bytes) -> tuple[Chain, Chain]:
    """The chains of the server's and of the client's blocks."""
    out = hkdf(session_id, secret, b"SimpleXSbChainInit", 64)
    return Chain(out[:32]), Chain(out[32:])
