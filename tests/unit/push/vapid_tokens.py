"""App servers for tests: a key pair that signs VAPID tokens, right ones and wrong ones."""

import base64
import hashlib
import json
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

AUDIENCE = "https://push.example.org"


def b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


class AppServer:
    def __init__(self, secret: int = 7) -> None:
        self._key = ec.derive_private_key(secret, ec.SECP256R1())
        self.point = self._key.public_key().public_bytes(
            Encoding.X962, PublicFormat.UncompressedPoint
        )
        self.public_key = b64(self.point)
        self.key_hash = hashlib.sha256(self.point).digest()

    def token(self, claims: Any, header: Any = None) -> str:
        head = {"typ": "JWT", "alg": "ES256"} if header is None else header
        signed = f"{b64(json.dumps(head).encode())}.{b64(json.dumps(claims).encode())}"
        r, s = decode_dss_signature(self._key.sign(signed.encode(), ec.ECDSA(SHA256())))
        return f"{signed}.{b64(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"

    def authorization(self, now_s: int, **claims: Any) -> bytes:
        claims = {"aud": AUDIENCE, "exp": now_s + 3600, **claims}
        return f"vapid t={self.token(claims)}, k={self.public_key}".encode()
