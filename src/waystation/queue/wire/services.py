"""Services: clients that present a long-term certificate (§2.8), from version 16 on.

Rule 1: a service sends its chain twice, in TLS and in its hello, and both are the same; the key of
        the leaf has signed the session's key.
Rule 2: a single certificate is self-signed; of two to four the second is the identity, as for
        servers. A service is identified by the fingerprint of that certificate.
Rule 3: only services get a third block: `R` and their id, or `E` and the reason of the refusal.
"""

import datetime as dt
from collections.abc import Sequence
from typing import Final

import msgspec

from waystation.queue.errors import BadHelloError, Broker
from waystation.queue.model import AuthKey, Fingerprint, KeyKind, ServiceId, ServiceRole
from waystation.queue.wire import fields
from waystation.queue.wire.block import seal_plain
from waystation.queue.wire.certificates import check_chain, fingerprint_of
from waystation.queue.wire.fields import FieldError
from waystation.queue.wire.signed_key import open_signed

_TRANSPORT: Final = "TRANSPORT "


class ServiceHello(msgspec.Struct, frozen=True, gc=False):
    """What a service adds to its hello."""

    role: ServiceRole
    chain: tuple[bytes, ...]
    signed_key: bytes


class ServiceClaim(msgspec.Struct, frozen=True, gc=False):
    """A service with a valid certificate; admitted if its role has not changed."""

    role: ServiceRole
    fingerprint: Fingerprint
    key: AuthKey  # of its session


class BadServiceError(BadHelloError):
    """The certificate or role of a service is not accepted; the service gets the reason.

    Use in TLS the certificate chain of the hello, and the role of the first connection.
    """

    label = "bad_service"

    def __init__(self) -> None:
        super().__init__(Broker.HANDSHAKE_BAD_SERVICE)


def claim_of(hello: ServiceHello, shown: Sequence[bytes], now: dt.datetime) -> ServiceClaim:
    """`shown` is the chain of TLS. Raises `BadServiceError` if it is invalid."""
    if hello.chain != tuple(shown):
        raise BadServiceError
    try:
        key = fields.from_spki(open_signed(hello.signed_key, check_chain(hello.chain, now)))
    except FieldError as error:
        raise BadServiceError from error
    if key.kind is not KeyKind.ED25519:
        raise BadServiceError
    identity = hello.chain[min(1, len(hello.chain) - 1)]
    return ServiceClaim(hello.role, fingerprint_of(identity), key)


def ready_block(service_id: ServiceId) -> bytes:
    return seal_plain(b"R" + fields.short(service_id))


def refused_block(error: BadServiceError) -> bytes:
    return seal_plain(b"E" + error.kind.value.removeprefix(_TRANSPORT).encode())
