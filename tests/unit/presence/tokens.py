"""JwkSet and tokens for tests."""

import base64
import json
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from waystation.presence.settings import PresenceAuth

ISSUER, AUDIENCE = "https://id.example", "presence"
AUTH = PresenceAuth(mode="jwt", issuer=ISSUER, audience=AUDIENCE, jwks="test")
EVERYWHERE = [{"id": "*", "perm": ["join", "signal"]}]


class Signer:
    def __init__(self, kid: str, algorithm: str = "EdDSA", *, bits: int = 2048) -> None:
        self.kid, self.algorithm = kid, algorithm
        if algorithm == "EdDSA":
            self.key: Any = ed25519.Ed25519PrivateKey.generate()
            row: Any = OKPAlgorithm.to_jwk(self.key.public_key())
        elif algorithm == "ES256":
            self.key = ec.generate_private_key(ec.SECP256R1())
            row = ECAlgorithm.to_jwk(self.key.public_key())
        else:
            self.key = rsa.generate_private_key(public_exponent=65537, key_size=bits)
            row = RSAAlgorithm.to_jwk(self.key.public_key())
        self.jwk = {**json.loads(row), "kid": kid}

    @property
    def public_pem(self) -> bytes:
        return self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def token(self, now_s: float, client: int | str = 1, **changes: Any) -> str:
        header = {"kid": self.kid, **changes.pop("header", {})}
        claims: dict[str, Any] = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "exp": now_s + 300,
            "iat": now_s - 10,
            "cid": str(client),
            "parties": EVERYWHERE,
            **changes,
        }
        claims = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(claims, self.key, algorithm=self.algorithm, headers=header)


def key_set(*signers: Signer) -> bytes:
    return json.dumps({"keys": [one.jwk for one in signers]}).encode()


def handmade(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> str:
    """A token that no library would make."""

    def part(value: bytes) -> str:
        return base64.urlsafe_b64encode(value).rstrip(b"=").decode()

    texts = [part(json.dumps(one).encode()) for one in (header, claims)]
    return ".".join([*texts, part(signature)])
