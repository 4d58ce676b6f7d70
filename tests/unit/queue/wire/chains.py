"""Chains of certificates of operators, for tests."""

import datetime as dt

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

NOW = dt.datetime(2026, 11, 15, tzinfo=dt.UTC)
SigningKey = Ed25519PrivateKey | Ed448PrivateKey


def certificate(
    name: str,
    key: SigningKey | EllipticCurvePrivateKey,
    issuer: str,
    by: SigningKey,
    *,
    ca: bool,
    until: dt.datetime = NOW + dt.timedelta(days=1),
) -> bytes:
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - dt.timedelta(days=1))
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    )
    return builder.sign(by, None).public_bytes(Encoding.DER)


def chain(
    length: int = 2, kind: type[SigningKey] = Ed25519PrivateKey
) -> tuple[list[bytes], SigningKey]:
    """Leaf first, each issued by the next, the last by itself; and the leaf's key."""
    keys = [kind.generate() for _ in range(length)]
    names = [f"certificate {n}" for n in range(length)]
    issuers = [*range(1, length), length - 1]
    return [
        certificate(names[n], keys[n], names[by], keys[by], ca=n > 0)
        for n, by in enumerate(issuers)
    ], keys[0]
