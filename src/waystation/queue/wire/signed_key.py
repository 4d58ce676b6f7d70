"""The server's key of one session, signed by the key of its certificate.

    SEQUENCE { SEQUENCE { SubjectPublicKeyInfo }, SEQUENCE { OID }, BIT STRING signature }

The middle SEQUENCE has nothing else in it, and the signature covers it, not the key inside: every
implementation does it so. There are two forms, Ed25519 and Ed448; both have fixed bytes except for
key and signature, and are decoded as such.
"""

from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey, Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from waystation.queue.model import DhKey
from waystation.queue.wire.fields import X25519_SPKI, FieldError, dh_from_spki

SigningKey = Ed25519PrivateKey | Ed448PrivateKey
VerifyingKey = Ed25519PublicKey | Ed448PublicKey

_WRAP: Final = b"\x30\x2c"
_WRAPPED_BYTES: Final = 46
_ED25519: Final = (b"\x30\x78", bytes.fromhex("300506032b6570034100"), 64)
_ED448: Final = (b"\x30\x81\xaa", bytes.fromhex("300506032b6571037300"), 114)


def sign_key(key: DhKey, by: SigningKey) -> bytes:
    return sign(X25519_SPKI + key, by)


def open_signed_key(der: bytes, by: VerifyingKey) -> DhKey:
    """Raises `FieldError` unless it is a key signed by `by`."""
    return dh_from_spki(open_signed(der, by))


def sign(spki: bytes, by: SigningKey) -> bytes:
    """The same for any key of 44 bytes: services sign the Ed25519 key of a session."""
    wrapped = _WRAP + spki
    assert len(wrapped) == _WRAPPED_BYTES
    start, middle, _ = _ED25519 if isinstance(by, Ed25519PrivateKey) else _ED448
    return start + wrapped + middle + by.sign(wrapped)


def open_signed(der: bytes, by: VerifyingKey) -> bytes:
    """The SubjectPublicKeyInfo inside, which may be no valid key."""
    start, middle, signature_bytes = _ED25519 if isinstance(by, Ed25519PublicKey) else _ED448
    wrapped_end = len(start) + _WRAPPED_BYTES
    signature_at = wrapped_end + len(middle)
    wrapped, signature = der[len(start) : wrapped_end], der[signature_at:]
    if (
        not der.startswith(start)
        or not wrapped.startswith(_WRAP)
        or der[wrapped_end:signature_at] != middle
        or len(signature) != signature_bytes
    ):
        raise FieldError("not a signed key")
    try:
        by.verify(signature, wrapped)
    except InvalidSignature as error:
        raise FieldError("signed by another key") from error
    return wrapped[2:]
