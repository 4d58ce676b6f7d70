"""The identity of a queue server: its certificates, fingerprint and address.

Rule 1: two certificates are made at the first start: an offline CA, whose hash is the identity, and
        an online leaf for TLS. A new leaf may be made at any time; the address stays the same.
Rule 2: the CA's key is not needed to serve. It is written once, with a note to move it away, and is
        read again only to make a new leaf.
Rule 3: each file is readable by its owner only. Existing files are never replaced, except the leaf
        when a new one is requested.
Rule 4: an operator may bring a chain of two to four certificates; the second is the identity
        (queues §2.2).

    ca.crt  ca.key  server.crt (leaf, then the rest of the chain)  server.key  fingerprint
"""

import base64
import datetime
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from waystation.base.settings import SettingsError

from .address import FINGERPRINT_FILE

Algorithm = Literal["ed448", "ed25519"]
SigningKey = Ed448PrivateKey | Ed25519PrivateKey

CHAIN_MIN = 2
CHAIN_MAX = 4
_LIFETIME = datetime.timedelta(days=999_999)  # as other servers (§2.2); addresses live for years
_CLOCK_SKEW = datetime.timedelta(days=1)
_NOTE = """\
ca.key is the key of this server's identity. The server does not need it to run. A thief of this
key can impersonate this server for ever; it cannot be revoked.

Move it to offline storage, for example a USB stick:

    mv ca.key /media/stick/

Bring it back only to make a new leaf (server.crt, server.key); the address stays the same then.
"""


class Identity(msgspec.Struct, frozen=True):
    """The certificates and keys of a running server."""

    chain: tuple[bytes, ...]  # DER, leaf first
    leaf_key: SigningKey
    fingerprint: bytes  # SHA-256 of the second certificate's DER
    chain_file: Path
    key_file: Path
    made: tuple[Path, ...] = ()  # what this start created


def ensure_identity(directory: Path, *, host: str, algorithm: Algorithm = "ed448") -> Identity:
    """Loads the identity in `directory`, or makes one. Raises `SettingsError` for files that do
    not fit together."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    made: list[Path] = []
    if not (directory / "server.crt").exists():
        if not (directory / "ca.crt").exists():
            made += _make_ca(directory, algorithm)
        made += renew_leaf(directory, host=host)
    return msgspec.structs.replace(_load(directory), made=tuple(made))


def renew_leaf(directory: Path, *, host: str) -> list[Path]:
    """Makes a new online certificate, signed by the CA key in `directory`; returns its files."""
    ca = _certificates(directory / "ca.crt")[0]
    ca_key = _key(directory / "ca.key")
    leaf_key = _generate("ed448" if isinstance(ca_key, Ed448PrivateKey) else "ed25519")
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64] or "localhost")])
    leaf = (
        _builder(name, ca.subject, leaf_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_LEAF_USAGE, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .sign(ca_key, None)
    )
    chain = pem(leaf) + pem(ca)
    return [
        _write(directory / "server.key", private_pem(leaf_key), replace=True),
        _write(directory / "server.crt", chain, replace=True),
    ]


def shared_identity(directory: Path) -> dict[str, bytes]:
    """The files for another server with this identity: all but the CA's key."""
    identity = _load(directory)
    chain = [pem(x509.load_der_x509_certificate(one)) for one in identity.chain]
    return {
        "ca.crt": chain[1],
        FINGERPRINT_FILE: (directory / FINGERPRINT_FILE).read_bytes(),
        "server.key": identity.key_file.read_bytes(),
        "server.crt": b"".join(chain),
    }


def adopt_identity(directory: Path, files: Mapping[str, bytes]) -> None:
    """Installs an identity; refused if there is another one."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept = directory / FINGERPRINT_FILE
    if kept.exists():
        if kept.read_bytes().strip() != files[FINGERPRINT_FILE].strip():
            raise SettingsError(
                [f"{directory} holds another identity: use another --data-dir, or remove it first"]
            )
        if (directory / "server.crt").exists():
            return
    # The chain is written last: with it the identity is complete (`ensure_identity`).
    for name in ("ca.crt", FINGERPRINT_FILE, "server.key", "server.crt"):
        _write(directory / name, files[name], replace=True)


def _load(directory: Path) -> Identity:
    chain_file, key_file = directory / "server.crt", directory / "server.key"
    chain = _certificates(chain_file)
    made: list[Path] = []
    if len(chain) == 1:  # as other servers store it: the leaf alone, beside its CA
        chain += _certificates(directory / "ca.crt")[:1]
        chain_file = directory / "chain.crt"
        made.append(_write(chain_file, b"".join(pem(one) for one in chain), replace=True))
    if not CHAIN_MIN <= len(chain) <= CHAIN_MAX:
        raise SettingsError(
            [f"{chain_file} holds {len(chain)} certificates; clients accept a chain of 2 to 4"]
        )
    leaf_key = _key(key_file)
    if leaf_key.public_key() != chain[0].public_key():
        raise SettingsError([f"{key_file} is not the key of the first certificate of {chain_file}"])
    der = tuple(one.public_bytes(serialization.Encoding.DER) for one in chain)
    fingerprint = hashlib.sha256(der[1]).digest()
    kept = directory / FINGERPRINT_FILE
    text = base64.urlsafe_b64encode(fingerprint).decode() + "\n"
    if not kept.exists():
        _write(kept, text.encode())
    elif kept.read_text().strip().rstrip("=") != text.strip().rstrip("="):
        raise SettingsError(
            [
                f"{kept} names another identity than {chain_file}: all published addresses would"
                " stop working. Restore the old certificates, or remove that file to start under a"
                " new address"
            ]
        )
    return Identity(der, leaf_key, fingerprint, chain_file, key_file)


def _make_ca(directory: Path, algorithm: Algorithm) -> list[Path]:
    key = _generate(algorithm)
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, "SMP server CA"),
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Waystation"),
        ]
    )
    public = key.public_key()
    ca = (
        _builder(name, name, key)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, None)
    )
    return [
        _write(directory / "ca.key", private_pem(key)),
        _write(directory / "ca.key.move-it-away", _NOTE.encode()),
        _write(directory / "ca.crt", pem(ca)),
    ]


def _generate(algorithm: Algorithm) -> SigningKey:
    return Ed448PrivateKey.generate() if algorithm == "ed448" else Ed25519PrivateKey.generate()


def _builder(subject: x509.Name, issuer: x509.Name, key: SigningKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _LIFETIME)
    )


_LEAF_USAGE = x509.KeyUsage(
    digital_signature=True,
    content_commitment=True,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=True,
    key_cert_sign=False,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)


def _certificates(path: Path) -> list[x509.Certificate]:
    try:
        return list(x509.load_pem_x509_certificates(path.read_bytes()))
    except FileNotFoundError:
        raise SettingsError([f"{path} is missing"]) from None
    except (OSError, ValueError) as exc:
        raise SettingsError([f"{path} cannot be read: {exc}"]) from exc


def _key(path: Path) -> SigningKey:
    try:
        mode = path.stat().st_mode & 0o777
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except FileNotFoundError:
        raise SettingsError([f"{path} is missing"]) from None
    except (OSError, ValueError, TypeError) as exc:
        raise SettingsError([f"{path} cannot be read: {exc}"]) from exc
    if mode & 0o077:
        raise SettingsError([f"{path} can be read by others (mode {mode:04o}): chmod 600 {path}"])
    if not isinstance(key, Ed448PrivateKey | Ed25519PrivateKey):
        raise SettingsError([f"{path}: clients accept Ed448 and Ed25519 keys only"])
    return key


def pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def private_pem(key: SigningKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, data: bytes, *, replace: bool = False) -> Path:
    """Writes atomically; replaces an existing file only with `replace`."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    if replace:
        fresh.replace(path)
        return path
    try:
        os.link(fresh, path)
    finally:
        fresh.unlink()
    return path
