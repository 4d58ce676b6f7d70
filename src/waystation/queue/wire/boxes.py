"""The boxes of this protocol: XSalsa20-Poly1305 with one step more than usual.

Every key goes through HSalsa20 with a zero nonce first. For a secret that X25519 agreed on this
is NaCl's `crypto_box`; the same is done with raw keys, where NaCl's `crypto_secretbox` would not.
A `BoxKey` is the result of that step, so it is computed once per key.

libsodium has the step, but PyNaCl does not offer it, so it is called by name in the library that
PyNaCl brings. Where that library hides it, it is computed in Python, 60 times as slowly.
"""

import ctypes
import hashlib
import hmac
import struct
from collections.abc import Callable
from typing import Final

import nacl.bindings as sodium
from nacl import _sodium  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
from nacl.exceptions import CryptoError
from nacl.exceptions import RuntimeError as SodiumError

from waystation.queue.errors import WeakKeyError
from waystation.queue.model import BoxKey, DhKey, DhPrivateKey
from waystation.queue.wire.fields import FieldError

TAG_BYTES: Final = 16
NONCE_BYTES: Final = 24
PAD: Final = b"#"
_ZEROS: Final = bytes(16)


# --- padding -------------------------------------------------------------------------------------


def pad(message: bytes, size: int) -> bytes:
    length = len(message)
    assert length <= size - 2, "a message that is longer than its block"
    return (length.to_bytes(2, "big") + message).ljust(size, PAD)


def unpad(padded: bytes) -> bytes:
    """The padding bytes are not checked."""
    end = 2 + int.from_bytes(padded[:2], "big")
    if len(padded) < 2 or end > len(padded):
        raise FieldError("not padded")
    return padded[2:end]


def nonce_of(corr_id: bytes) -> bytes:
    """Makes a nonce of a correlation id of any length."""
    return corr_id[:NONCE_BYTES].ljust(NONCE_BYTES, b"\0")


# --- keys ----------------------------------------------------------------------------------------

_MASK: Final = 0xFFFFFFFF
_CONSTANTS: Final = struct.unpack("<4I", b"expand 32-byte k")


def _quarter(x: list[int], a: int, b: int, c: int, d: int) -> None:
    for target, left, right, turn in ((b, a, d, 7), (c, b, a, 9), (d, c, b, 13), (a, d, c, 18)):
        total = (x[left] + x[right]) & _MASK
        x[target] ^= ((total << turn) | (total >> (32 - turn))) & _MASK


def plain_hsalsa20(key: bytes) -> bytes:
    """HSalsa20 with a zero nonce, from its definition."""
    k = struct.unpack("<8I", key)
    c = _CONSTANTS
    x = [c[0], *k[:4], c[1], 0, 0, 0, 0, c[2], *k[4:], c[3]]
    for _ in range(10):
        _quarter(x, 0, 4, 8, 12)
        _quarter(x, 5, 9, 13, 1)
        _quarter(x, 10, 14, 2, 6)
        _quarter(x, 15, 3, 7, 11)
        _quarter(x, 0, 1, 2, 3)
        _quarter(x, 5, 6, 7, 4)
        _quarter(x, 10, 11, 8, 9)
        _quarter(x, 15, 12, 13, 14)
    return struct.pack("<8I", x[0], x[5], x[10], x[15], *x[6:10])


def _find_hsalsa20() -> Callable[[bytes], bytes]:
    try:
        path = str(_sodium.__file__)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        function = ctypes.PyDLL(path).crypto_core_hsalsa20  # too quick to release the GIL
    except (AttributeError, OSError):
        return plain_hsalsa20
    function.argtypes = (ctypes.c_char_p,) * 4
    function.restype = ctypes.c_int

    def hsalsa20(key: bytes) -> bytes:
        assert len(key) == 32
        out = ctypes.create_string_buffer(32)
        function(out, _ZEROS, key, None)
        return out.raw

    return hsalsa20


_hsalsa20: Final = _find_hsalsa20()


def hsalsa20_is_native() -> bool:
    return _hsalsa20 is not plain_hsalsa20


def box_key(secret: bytes) -> BoxKey:
    """The box key of a raw 32-byte secret."""
    return BoxKey(_hsalsa20(secret))


def new_dh_pair() -> tuple[DhKey, DhPrivateKey]:
    public, private = sodium.crypto_box_keypair()
    return DhKey(public), DhPrivateKey(private)


def dh_public(private: DhPrivateKey) -> DhKey:
    return DhKey(sodium.crypto_scalarmult_base(private))


def agree(public: DhKey, private: DhPrivateKey) -> BoxKey:
    """Raises `WeakKeyError` for a public key of small order: everybody knows its secret."""
    try:
        return BoxKey(sodium.crypto_box_beforenm(public, private))
    except (CryptoError, SodiumError) as error:
        raise WeakKeyError("a public key of small order") from error


def agree_raw(public: DhKey, private: DhPrivateKey) -> bytes:
    """The X25519 secret itself, from which session keys are derived."""
    try:
        return sodium.crypto_scalarmult(private, public)
    except (CryptoError, SodiumError) as error:
        raise WeakKeyError("a public key of small order") from error


# --- boxes ---------------------------------------------------------------------------------------


def seal(key: BoxKey, nonce: bytes, message: bytes) -> bytes:
    """Sixteen bytes of tag, then the ciphertext."""
    return sodium.crypto_box_easy_afternm(message, nonce, key)


def open_box(key: BoxKey, nonce: bytes, boxed: bytes) -> bytes:
    """Raises `FieldError` for a box made with another key or nonce."""
    if len(boxed) < TAG_BYTES:
        raise FieldError("box shorter than its tag")
    try:
        return sodium.crypto_box_open_easy_afternm(boxed, nonce, key)
    except CryptoError as error:
        raise FieldError("box does not decrypt") from error


def seal_padded(key: BoxKey, nonce: bytes, message: bytes, size: int) -> bytes:
    """`size` bytes of padded message and sixteen of tag."""
    return seal(key, nonce, pad(message, size))


def open_padded(key: BoxKey, nonce: bytes, boxed: bytes) -> bytes:
    return unpad(open_box(key, nonce, boxed))


# --- derivation ----------------------------------------------------------------------------------


_HASH_BLOCK: Final = 128
_INNER: Final = bytes(byte ^ 0x36 for byte in range(256))
_OUTER: Final = bytes(byte ^ 0x5C for byte in range(256))
_UNSALTED: Final = bytes(_HASH_BLOCK)
_UNSALTED_INNER: Final = hashlib.sha512(_UNSALTED.translate(_INNER))
_UNSALTED_OUTER: Final = hashlib.sha512(_UNSALTED.translate(_OUTER))


def hkdf_sha512(salt: bytes, secret: bytes, info: bytes, size: int) -> bytes:
    """RFC 5869, with HMAC taken apart so that repeated prefixes are hashed once: 4 µs for the two
    keys of a block, where `hmac.digest` takes 8."""
    if salt:
        key = hmac.digest(salt, secret, "sha512")
    else:
        inner, outer = _UNSALTED_INNER.copy(), _UNSALTED_OUTER.copy()
        inner.update(secret)
        outer.update(inner.digest())
        key = outer.digest()
    key = key.ljust(_HASH_BLOCK, b"\0")
    keyed_inner = hashlib.sha512(key.translate(_INNER))
    keyed_outer = hashlib.sha512(key.translate(_OUTER))
    block = out = b""
    count = 0
    while len(out) < size:
        count += 1
        inner, outer = keyed_inner.copy(), keyed_outer.copy()
        inner.update(b"%b%b%c" % (block, info, count))
        outer.update(inner.digest())
        block = outer.digest()
        out += block
    return out[:size]


def sha512(data: bytes) -> bytes:
    return hashlib.sha512(data).digest()
