"""Services: busy clients that servers identify by a certificate (version 16 and later).

Rule 1: TLS and hello have the same chain; its leaf signs the key of the session. A single
        certificate is the identity; of two to four the second is.
Rule 2: commands that create or take a subscription (`NEW`, `SUB`, `NSUB`) are signed twice: by the
        queue's key over our fingerprint and the command, by the session's key over the command.
Rule 3: the server answers our hello with our id or the reason of a refusal; after a refusal the
        client does not try again.
"""

import hashlib
import ssl
from pathlib import Path
from typing import Literal

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from .commands import Command, New, NotifierSub, Sub
from .encoding import BadBytesError, Reader, large
from .hello import IdentityError, ServiceSession, encode_signed_key
from .keys import PrivateKey

Role = Literal["M", "N", "P"]  # messaging, notifier, proxy
VERSION_MIN = 16


class ServiceRefusedError(IdentityError):
    """The server refuses this service: its role differs from before, or its chain is not
    accepted."""

    label = "queue_service_refused"


class ServiceCard(msgspec.Struct, frozen=True):
    """Certificates and key of a service, and their files."""

    role: Role
    chain: tuple[bytes, ...]  # DER, leaf first
    key: PrivateKey
    chain_file: Path
    key_file: Path

    @classmethod
    def load(cls, chain_file: Path, key_file: Path, role: Role) -> "ServiceCard":
        """PEM, as TLS reads it. Raises `BadBytesError` for unsuitable files."""
        try:
            certificates = x509.load_pem_x509_certificates(chain_file.read_bytes())
            private = load_pem_private_key(key_file.read_bytes(), None)
        except (ValueError, TypeError) as exc:
            raise BadBytesError(f"no certificates or no key of a service: {exc}") from exc
        if not 1 <= len(certificates) <= 4:
            raise BadBytesError(f"a chain of {len(certificates)} certificates")
        if isinstance(private, Ed25519PrivateKey):
            key = PrivateKey("ed25519", private.private_bytes_raw())
        elif isinstance(private, Ed448PrivateKey):
            key = PrivateKey("ed448", private.private_bytes_raw())
        else:
            raise BadBytesError("services have keys of Ed25519 or Ed448")
        chain = tuple(one.public_bytes(Encoding.DER) for one in certificates)
        return cls(role, chain, key, chain_file, key_file)

    @property
    def fingerprint(self) -> bytes:
        return hashlib.sha256(self.chain[0 if len(self.chain) == 1 else 1]).digest()

    def show_in(self, context: ssl.SSLContext) -> None:
        context.load_cert_chain(self.chain_file, self.key_file)

    def hello(self, session_key: PrivateKey) -> bytes:
        """The fields that a service adds to its hello."""
        chain = bytes((len(self.chain),)) + b"".join(large(one) for one in self.chain)
        return self.role.encode() + chain + large(encode_signed_key(session_key.public, self.key))

    def welcomed(self, content: bytes, session_key: PrivateKey) -> ServiceSession:
        """Decodes the server's third block."""
        reader = Reader(content)
        match reader.take(1):
            case b"R":
                return ServiceSession(reader.short(), self.fingerprint, session_key)
            case b"E":
                raise ServiceRefusedError(
                    f"the server refuses us as a service: {reader.tail().decode(errors='replace')}"
                )
            case _:
                raise BadBytesError("the server's third block is neither R nor E")


def signs_twice(command: Command) -> bool:
    return isinstance(command, New | Sub | NotifierSub)
