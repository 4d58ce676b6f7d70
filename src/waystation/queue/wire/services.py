"""Services: clients that present a long-term certificate (§2.8), from version 16 on.

Rule 1: a service shows its chain twice, in TLS and in its hello, and both are the same; the key of
        the leaf has signed the key of its session.
Rule 2: one certificate vouches for itself; of two to four the second is the identity, as of
        servers. A service is known by the fingerprint of its identity.
Rule 3: only services get a third block: `R` and their id, or `E` and why they are not let in.
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
    """A service that is who it says: it may be let in if its role is what it was before."""

    role: ServiceRole
    fingerprint: Fingerprint
    key: AuthKey  # of its session


class BadServiceError(BadHelloError):
    """A service whose certificate or role is not as it must be; it is told so.

    Show in TLS the chain of the hello, and keep to the role of the first time.
    """

    label = "bad_service"

    def __init__(self) -> None:
        super().__init__(Broker.HANDSHAKE_BAD_SERVICE)


def claim_of(hello: ServiceHello, shown: Sequence[bytes], now: dt.datetime) -> ServiceClaim:
    """`shown` is the chain of TLS. `BadServiceError` if it does not hold."""
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
