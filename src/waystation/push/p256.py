"""ES256: signatures over P-256 with SHA-256, as VAPID tokens carry them.

AWS-LC verifies them, by way of `awscrt`: it takes four fifths of OpenSSL's time, and most libraries
of senders sign a new token for every message (docs/adr/0005). Keys that are made or written down
stay with `cryptography`.
"""

import hashlib
from typing import Final

from awscrt.crypto import EC  # pyright: ignore[reportMissingTypeStubs]

POINT_BYTES: Final = 65
SIGNATURE_BYTES: Final = 64

# SubjectPublicKeyInfo of P-256 up to the point (RFC 5480, section 2).
_KEY_INFO: Final = bytes.fromhex("3059301306072a8648ce3d020106082a8648ce3d030107034200")


class PublicKey:
    """A point of the curve, uncompressed; `ValueError` for any other bytes."""

    __slots__ = ("_verify", "hash", "point")

    def __init__(self, point: bytes) -> None:
        if len(point) != POINT_BYTES:
            raise ValueError(f"a public key has {POINT_BYTES} bytes, not {len(point)}")
        try:
            self._verify = EC.new_key_from_der_data(_KEY_INFO + point).verify
        except RuntimeError as error:  # all that `awscrt` says of what AWS-LC refuses
            raise ValueError("not a point of P-256") from error
        self.point = point
        self.hash = hashlib.sha256(point).digest()

    def signed(self, message: bytes, signature: bytes) -> bool:
        """Whether the 64 bytes of a JWT's signature are those of this key's owner."""
        return self._verify(hashlib.sha256(message).digest(), to_der(signature))


def to_der(signature: bytes) -> bytes:
    """r and s of a JWT as ASN.1 has them: shortest form, with a sign (X.690, section 8.3)."""
    r, s = signature[:32].lstrip(b"\0"), signature[32:].lstrip(b"\0")
    if not r or r[0] > 0x7F:
        r = b"\0" + r
    if not s or s[0] > 0x7F:
        s = b"\0" + s
    return b"\x30%c\x02%c%b\x02%c%b" % (len(r) + len(s) + 4, len(r), r, len(s), s)
