"""Chains of operators with their own certificate authority."""

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID


def longer_chain(directory: Path, length: int) -> tuple[bytes, ...]:
    """server.crt and server.key with a chain of `length`, leaf first; its DER."""
    directory.mkdir(parents=True, mode=0o700)
    names = ["operator", "network", "identity", "leaf"]
    names = {1: names[3:], 2: names[2:], 3: [names[0], *names[2:]], 4: names}[length]
    issuer, issuer_key = None, None
    chain: list[x509.Certificate] = []
    key = Ed25519PrivateKey.generate()
    for name in names:
        key = Ed25519PrivateKey.generate()
        certificate = _certificate(name, key, issuer, issuer_key, ca=name != "leaf")
        chain.insert(0, certificate)
        issuer, issuer_key = certificate, key
    pem = serialization.Encoding.PEM
    (directory / "server.crt").write_bytes(b"".join(one.public_bytes(pem) for one in chain))
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (directory / "server.key").touch(mode=0o600)
    (directory / "server.key").write_bytes(private)
    return tuple(one.public_bytes(serialization.Encoding.DER) for one in chain)


def _certificate(
    name: str,
    key: Ed25519PrivateKey,
    issuer: x509.Certificate | None,
    issuer_key: Ed25519PrivateKey | None,
    *,
    ca: bool,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .sign(issuer_key or key, None)
    )
