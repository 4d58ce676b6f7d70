"""Certificate chains: which certificate is the identity, and whether a chain is valid.

A server is identified by the SHA-256 of the certificate of its offline authority, so the online
leaf can change. Names are not compared with hosts: the address has the expected fingerprint. Only
Ed25519 and Ed448 are supported.
"""

import datetime as dt
import hashlib
import itertools
from collections.abc import Sequence

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from waystation.queue.model import Fingerprint
from waystation.queue.wire.fields import FieldError
from waystation.queue.wire.signed_key import VerifyingKey


def fingerprint_of(certificate: bytes) -> Fingerprint:
    return Fingerprint(hashlib.sha256(certificate).digest())


def identity_of(chain: Sequence[bytes]) -> bytes:
    """The certificate that identifies a server; the chain has 2 to 4, leaf first."""
    if not 2 <= len(chain) <= 4:
        raise FieldError("a chain must have two to four certificates")
    return chain[1]


def leaf_key(chain: Sequence[bytes]) -> VerifyingKey:
    return _key(_parse(chain[0]))


def verify_chain(chain: Sequence[bytes], expected: Fingerprint, now: dt.datetime) -> VerifyingKey:
    """The leaf's key of a valid chain of the expected server; otherwise raises `FieldError`."""
    if fingerprint_of(identity_of(chain)) != expected:
        raise FieldError("certificate chain of another server")
    return check_chain(chain, now)


def check_chain(chain: Sequence[bytes], now: dt.datetime) -> VerifyingKey:
    """The leaf's key of a valid chain of any server; a single certificate is self-signed. Raises
    `FieldError`."""
    if not 1 <= len(chain) <= 4:
        raise FieldError("a chain must have one to four certificates")
    certificates = [_parse(der) for der in chain]
    leaf = certificates[0]
    if leaf.version is not x509.Version.v3:
        raise FieldError("leaf certificate is not version 3")
    for certificate in certificates:
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            raise FieldError("certificate expired or not yet valid")
    for issued, issuer in itertools.pairwise(certificates):
        _check_issued(issued, issuer)
    if len(certificates) == 1:
        _check_signed(leaf, leaf)
    return _key(leaf)


def _parse(der: bytes) -> x509.Certificate:
    try:
        return x509.load_der_x509_certificate(der)
    except ValueError as error:
        raise FieldError("not a certificate") from error


def _key(certificate: x509.Certificate) -> VerifyingKey:
    try:
        key = certificate.public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise FieldError("certificate without a usable key") from error
    if isinstance(key, Ed25519PublicKey | Ed448PublicKey):
        return key
    raise FieldError("certificate key is neither Ed25519 nor Ed448")


def _check_issued(issued: x509.Certificate, issuer: x509.Certificate) -> None:
    try:
        if not issuer.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            raise FieldError("issuer is not a CA")
    except (ValueError, x509.ExtensionNotFound) as error:
        raise FieldError("certificate not signed by its issuer") from error
    _check_signed(issued, issuer)


def _check_signed(issued: x509.Certificate, issuer: x509.Certificate) -> None:
    try:
        _key(issuer)
        issued.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise FieldError("certificate not signed by its issuer") from error
