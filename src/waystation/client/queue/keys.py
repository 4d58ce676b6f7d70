"""Key pairs of the parties of a queue, and the proofs they make for transmissions.

Ed25519 and Ed448 sign. X25519 makes an authenticator that only the server can check and that the
server could have made itself, so it proves nothing to others.
"""

import hashlib
import secrets
from typing import Literal

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey, Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from nacl.bindings import crypto_scalarmult_base

from .boxes import box_key, nonce24, seal
from .encoding import BadBytesError

KeyKind = Literal["ed25519", "ed448", "x25519"]

# DER of a SubjectPublicKeyInfo up to the raw key (RFC 8410), and the size of the raw key.
_FORMS: dict[KeyKind, tuple[bytes, int]] = {
    "ed25519": (bytes.fromhex("302a300506032b6570032100"), 32),
    "x25519": (bytes.fromhex("302a300506032b656e032100"), 32),
    "ed448": (bytes.fromhex("3043300506032b6571033a00"), 57),
}
_SEED_BYTES: dict[KeyKind, int] = {"ed25519": 32, "x25519": 32, "ed448": 57}


class PublicKey(msgspec.Struct, frozen=True):
    kind: KeyKind
    raw: bytes

    @property
    def der(self) -> bytes:
        return _FORMS[self.kind][0] + self.raw

    @classmethod
    def from_der(cls, der: bytes) -> "PublicKey":
        for kind, (prefix, size) in _FORMS.items():
            if len(der) == len(prefix) + size and der.startswith(prefix):
                return cls(kind, der[len(prefix) :])
        raise BadBytesError("unsupported type of public key")

    def verifies(self, signature: bytes, signed: bytes) -> bool:
        try:
            match self.kind:
                case "ed25519":
                    Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, signed)
                case "ed448":
                    Ed448PublicKey.from_public_bytes(self.raw).verify(signature, signed)
                case "x25519":
                    return False
        except (InvalidSignature, ValueError):
            return False
        return True


def dh_key(der: bytes) -> bytes:
    """The raw bytes of an X25519 key."""
    key = PublicKey.from_der(der)
    if key.kind != "x25519":
        raise BadBytesError("not an X25519 key")
    return key.raw


class PrivateKey(msgspec.Struct, frozen=True):
    """`seed` is the whole secret, in each algorithm's own form."""

    kind: KeyKind
    seed: bytes

    def __post_init__(self) -> None:
        if len(self.seed) != _SEED_BYTES[self.kind]:
            raise BadBytesError(f"a private key of {len(self.seed)} bytes")

    def __repr__(self) -> str:
        return f"PrivateKey({self.kind!r}, …)"  # secret: never in a log or a traceback

    @classmethod
    def generate(cls, kind: KeyKind = "ed25519") -> "PrivateKey":
        return cls(kind, secrets.token_bytes(_SEED_BYTES[kind]))

    @property
    def public(self) -> PublicKey:
        match self.kind:
            case "ed25519":
                raw = Ed25519PrivateKey.from_private_bytes(self.seed).public_key()
                return PublicKey(self.kind, raw.public_bytes_raw())
            case "ed448":
                raw = Ed448PrivateKey.from_private_bytes(self.seed).public_key()
                return PublicKey(self.kind, raw.public_bytes_raw())
            case "x25519":
                return PublicKey(self.kind, crypto_scalarmult_base(self.seed))

    def sign(self, text: bytes) -> bytes:
        match self.kind:
            case "ed25519":
                return Ed25519PrivateKey.from_private_bytes(self.seed).sign(text)
            case "ed448":
                return Ed448PrivateKey.from_private_bytes(self.seed).sign(text)
            case "x25519":
                raise BadBytesError("an X25519 key cannot sign")

    def authorize(self, authorized: bytes, corr_id: bytes, server_key: bytes | None) -> bytes:
        """The proof for a transmission. `server_key` is the raw key of the session."""
        if self.kind != "x25519":
            return self.sign(authorized)
        if server_key is None:
            raise BadBytesError("an X25519 key needs a session key of the server (version 7)")
        digest = hashlib.sha512(authorized).digest()
        return seal(box_key(server_key, self.seed), nonce24(corr_id), digest)
