"""Signs JSON Web Tokens that authenticate a bridge to its vendor (RFC 7519): RS256 and ES256."""

from typing import Any

import msgspec
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from pybase64 import urlsafe_b64encode

SigningKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
_P256_BYTES = 32


def read_signing_key(pem: str) -> SigningKey:
    """Raises `ValueError` unless `pem` is an unencrypted RSA or P-256 key."""
    try:
        key = load_pem_private_key(pem.encode(), password=None)
    except (ValueError, TypeError) as exc:
        raise ValueError("it is not an unencrypted private key in PEM") from exc
    if isinstance(key, rsa.RSAPrivateKey):
        return key
    if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1):
        return key
    raise ValueError("it is neither an RSA nor a P-256 key")


def sign_jwt(key: SigningKey, claims: dict[str, Any], *, key_id: str = "") -> str:
    header = {"alg": "RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256", "typ": "JWT"}
    if key_id:
        header["kid"] = key_id
    signed = _part(msgspec.json.encode(header)) + b"." + _part(msgspec.json.encode(claims))
    if isinstance(key, rsa.RSAPrivateKey):
        signature = key.sign(signed, padding.PKCS1v15(), hashes.SHA256())
    else:
        r, s = decode_dss_signature(key.sign(signed, ec.ECDSA(hashes.SHA256())))
        signature = r.to_bytes(_P256_BYTES, "big") + s.to_bytes(_P256_BYTES, "big")
    return (signed + b"." + _part(signature)).decode()


def _part(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")
