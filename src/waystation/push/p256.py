"""ES256: verifies signatures of VAPID tokens (P-256 with SHA-256).

AWS-LC does it, through `awscrt`, in four fifths of OpenSSL's time; most libraries of senders sign a
new token for every message (docs/adr/0005). Keys are generated and encoded with `cryptography`.
"""

import hashlib
from typing import Final

from awscrt.crypto import EC  # pyright: ignore[reportMissingTypeStubs]

POINT_BYTES: Final = 65
SIGNATURE_BYTES: Final = 64

# SubjectPublicKeyInfo of P-256 up to the point (RFC 5480, section 2).
_KEY_INFO: Final = bytes.fromhex("3059301306072a8648ce3d020106082a8648ce3d030107034200")


class PublicKey:
    """An uncompressed point of the curve. Raises `ValueError` for any other bytes."""

    __slots__ = ("_verify", "hash", "point")

    def __init__(self, point: bytes) -> None:
        if len(point) != POINT_BYTES:
            raise ValueError(f"a public key has {POINT_BYTES} bytes, not {len(point)}")
        try:
            self._verify = EC.new_key_from_der_data(_KEY_INFO + point).verify
        except RuntimeError as error:  # what `awscrt` raises for every key that AWS-LC rejects
            raise ValueError("not a point of P-256") from error
        self.point = point
        self.hash = hashlib.sha256(point).digest()

    def signed(self, message: bytes, signature: bytes) -> bool:
        """Whether the 64 bytes of a JWT's signature were made with this key."""
        return self._verify(hashlib.sha256(message).digest(), to_der(signature))


def to_der(signature: bytes) -> bytes:
    """r and s of a JWT in DER: shortest form, signed (X.690, section 8.3)."""
    r, s = signature[:32].lstrip(b"\0"), signature[32:].lstrip(b"\0")
    if not r or r[0] > 0x7F:
        r = b"\0" + r
    if not s or s[0] > 0x7F:
        s = b"\0" + s
    return b"\x30%c\x02%c%b\x02%c%b" % (len(r) + len(s) + 4, len(r), r, len(s), s)
