"""The handshake inside TLS: identity of the server, version, and session keys.

Rule 1: the server's session id must be that of our TLS connection, its first certificate the one
        of TLS, its identity the one in the address, and the session key signed by the leaf.
        Otherwise the connection ends before the client sends anything.
Rule 2: the highest common version is used.
Rule 3: bytes after the known fields belong to later versions.
"""

import hashlib
import itertools
from collections.abc import Sequence
from datetime import datetime

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from .block import BlockReader, BlockWriter
from .boxes import block_chains, shared_secret
from .encoding import BadBytesError, Reader, short, u16
from .keys import PrivateKey, PublicKey, dh_key

FINGERPRINT_BYTES = 32
SESSION_ID_BYTES = 32  # of TLS 1.3 with the only cipher suite that is allowed
_IDENTITY_AT = {2: 1, 3: 1, 4: 1}  # length of a chain -> place of the identity certificate
_SIGNATURE_OIDS = {
    bytes.fromhex("300506032b6570"): ("ed25519", 64),
    bytes.fromhex("300506032b6571"): ("ed448", 114),
}


class IdentityError(BadBytesError):
    """The server is not the one in the address, or cannot prove it."""

    label = "queue_identity"


class VersionError(BadBytesError):
    """Client and server have no version in common."""

    label = "queue_version"


class ServerHello(msgspec.Struct, frozen=True):
    version_min: int
    version_max: int
    session_id: bytes
    chain: tuple[bytes, ...] = ()
    signed_key: bytes = b""


class ServiceSession(msgspec.Struct, frozen=True):
    """The service of a connection (`service`)."""

    service_id: bytes
    fingerprint: bytes
    key: PrivateKey


class Session(msgspec.Struct, frozen=True):
    """The result of the hellos."""

    version: int
    session_id: bytes
    server_key: bytes | None  # raw X25519
    version_min: int = 0  # what the server offered
    version_max: int = 0
    service: ServiceSession | None = None


def decode_server_hello(content: bytes) -> ServerHello:
    reader = Reader(content)
    low, high, session_id = reader.u16(), reader.u16(), reader.short()
    if low > high:
        raise BadBytesError("version range ends before it begins")
    if high < 7:
        return ServerHello(low, high, session_id)
    chain = tuple(reader.large() for _ in range(reader.count()))
    return ServerHello(low, high, session_id, chain, reader.large())


def encode_client_hello(
    version: int,
    fingerprint: bytes,
    key: PublicKey | None,
    *,
    as_proxy: bool = False,
    service: bytes | None = None,
) -> bytes:
    """`service`: the fields of a service, from version 16 on."""
    hello = u16(version) + short(fingerprint)
    if version >= 7 and key is not None:
        hello += short(key.der)
    if version >= 14:
        hello += b"T" if as_proxy else b"F"
    if version >= 16:
        hello += b"0" if service is None else b"1" + service
    return hello


def common_version(low: int, high: int, versions: tuple[int, int]) -> int:
    version = min(high, versions[1])
    if version < max(low, versions[0]):
        ours, theirs = f"{versions[0]}–{versions[1]}", f"{low}–{high}"
        raise VersionError(f"the server speaks versions {theirs}, this client {ours}")
    return version


def check_server(
    hello: ServerHello, *, session_id: bytes, leaf: bytes, fingerprint: bytes, now: datetime
) -> bytes:
    """Checks the server's identity; returns its raw session key."""
    if hello.session_id != session_id:
        raise IdentityError("the hello has the id of another TLS session: is TLS intercepted?")
    if not hello.chain or hello.chain[0] != leaf:
        raise IdentityError("the certificate in the hello is not that of TLS")
    return check_chain(hello.chain, hello.signed_key, fingerprint=fingerprint, now=now)


def check_chain(
    chain: Sequence[bytes], signed_key: bytes, *, fingerprint: bytes, now: datetime
) -> bytes:
    """Fingerprint, signatures, dates and the signed session key; returns the raw key."""
    place = _IDENTITY_AT.get(len(chain))
    if place is None:
        raise IdentityError(f"a chain of {len(chain)} certificates")
    if hashlib.sha256(chain[place]).digest() != fingerprint:
        raise IdentityError("the server's fingerprint is not the one in the address")
    try:
        certificates = [x509.load_der_x509_certificate(der) for der in chain]
        _check_certificates(certificates, now)
        public = certificates[0].public_key()
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound) as exc:
        raise IdentityError("the server's certificates are not signed by their issuers") from exc
    if isinstance(public, Ed25519PublicKey):
        return open_signed_key(signed_key, PublicKey("ed25519", public.public_bytes_raw()))
    if isinstance(public, Ed448PublicKey):
        return open_signed_key(signed_key, PublicKey("ed448", public.public_bytes_raw()))
    raise IdentityError("the key of the server's certificate is neither Ed25519 nor Ed448")


def _check_certificates(chain: Sequence[x509.Certificate], now: datetime) -> None:
    if chain[0].version is not x509.Version.v3:
        raise IdentityError("the server's certificate is not of version 3")
    for certificate in chain:
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            raise IdentityError("a certificate of the server expired or is not yet valid")
    for certificate, issuer in itertools.pairwise(chain):
        certificate.verify_directly_issued_by(issuer)
        if not issuer.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            raise IdentityError("a certificate of the server was signed by one that is no CA")
    anchor = chain[-1]
    anchor.verify_directly_issued_by(anchor)


def open_signed_key(der: bytes, signer: PublicKey) -> bytes:
    """Returns the X25519 key. Unlike in a certificate, the signature covers a SEQUENCE around the
    key, header included."""
    outer = Reader(_sequence(der))
    signed = outer.peek(46)
    wrapper = Reader(outer.take(46))
    if wrapper.take(2) != b"\x30\x2c":
        raise IdentityError("the signed session key is malformed")
    raw = dh_key(wrapper.tail())
    kind, size = _SIGNATURE_OIDS.get(outer.take(7), ("", 0))
    bits = outer.take(3)
    if kind != signer.kind or bits != bytes((0x03, size + 1, 0)):
        raise IdentityError("session key and certificate have different signature algorithms")
    signature = outer.take(size)
    outer.end()
    if not signer.verifies(signature, signed):
        raise IdentityError("the signature of the session key is wrong")
    return raw


def encode_signed_key(key: PublicKey, signer: PrivateKey) -> bytes:
    """For peers in tests: the inverse."""
    signed = b"\x30\x2c" + key.der
    oid = next(oid for oid, (kind, _) in _SIGNATURE_OIDS.items() if kind == signer.kind)
    signature = signer.sign(signed)
    content = signed + oid + bytes((0x03, len(signature) + 1, 0)) + signature
    length = bytes((len(content),)) if len(content) < 128 else bytes((0x81, len(content)))
    return b"\x30" + length + content


def _sequence(der: bytes) -> bytes:
    """The content of the one DER SEQUENCE that `der` is."""
    reader = Reader(der)
    if reader.u8() != 0x30:
        raise IdentityError("the signed session key is no SEQUENCE")
    length = reader.u8()
    if length == 0x81:
        length = reader.u8()
    content = reader.take(length)
    reader.end()
    return content


def block_ends(
    session: Session, private: PrivateKey | None, *, as_proxy: bool = False
) -> tuple[BlockReader, BlockWriter]:
    """Inner encryption is on from version 11, if the client sends a key and is no proxy."""
    if session.version < 11 or private is None or session.server_key is None or as_proxy:
        return BlockReader(None), BlockWriter(None)
    secret = shared_secret(session.server_key, private.seed)
    from_server, from_client = block_chains(session.session_id, secret)
    return BlockReader(from_server), BlockWriter(from_client)
