"""Chains of certificates of servers, made for a test."""

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from waystation.client.queue.hello import encode_signed_key
from waystation.client.queue.keys import PrivateKey

SESSION_KEY = PrivateKey("x25519", b"s" * 32)
SINCE = datetime(2026, 1, 1, tzinfo=UTC)
NOW = datetime(2026, 11, 15, tzinfo=UTC)


def _private(key: PrivateKey) -> Ed25519PrivateKey | Ed448PrivateKey:
    if key.kind == "ed448":
        return Ed448PrivateKey.from_private_bytes(key.seed)
    return Ed25519PrivateKey.from_private_bytes(key.seed)


def certificate(
    key: PrivateKey, signer: PrivateKey, name: str, issuer: str, *, ca: bool, days: int = 36_500
) -> bytes:
    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    builder = (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named(issuer))
        .public_key(_private(key).public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(SINCE)
        .not_valid_after(SINCE + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    )
    return builder.sign(_private(signer), None).public_bytes(Encoding.DER)


class Authority:
    """A leaf, an identity, and so many above it."""

    def __init__(
        self, length: int = 2, *, ed448: bool = False, ca: bool = True, days: int = 36_500
    ):
        kind = "ed448" if ed448 else "ed25519"
        keys = [PrivateKey.generate(kind) for _ in range(length)]
        names = [f"certificate {number}" for number in range(length)]
        self.leaf_key = keys[0]
        self.chain = tuple(
            certificate(
                keys[at],
                keys[min(at + 1, length - 1)],
                names[at],
                names[min(at + 1, length - 1)],
                ca=ca and at > 0,
                days=days,
            )
            for at in range(length)
        )
        self.signed_key = encode_signed_key(SESSION_KEY.public, self.leaf_key)
