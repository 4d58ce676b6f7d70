"""Certificates and keys of services, and refusals."""

import datetime as dt

import pytest
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.unit.queue.wire.chains import NOW, SigningKey, certificate, chain
from waystation.queue.model import AuthKey, KeyKind, ServiceId, ServiceRole
from waystation.queue.wire.block import open_plain
from waystation.queue.wire.boxes import new_dh_pair
from waystation.queue.wire.certificates import fingerprint_of
from waystation.queue.wire.fields import dh_to_spki, to_spki
from waystation.queue.wire.services import (
    BadServiceError,
    ServiceClaim,
    ServiceHello,
    claim_of,
    ready_block,
    refused_block,
)
from waystation.queue.wire.signed_key import sign

KEY = AuthKey(KeyKind.ED25519, Ed25519PrivateKey.generate().public_key().public_bytes_raw())


def hello(chain: list[bytes], by: SigningKey, spki: bytes | None = None) -> ServiceHello:
    signed = sign(to_spki(KEY) if spki is None else spki, by)
    return ServiceHello(ServiceRole.NOTIFIER, tuple(chain), signed)


@pytest.mark.parametrize("length", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", [Ed25519PrivateKey, Ed448PrivateKey])
def test_a_chain_of_one_to_four_makes_a_service(length: int, kind: type[SigningKey]) -> None:
    shown, key = chain(length, kind)
    claim = claim_of(hello(shown, key), shown, NOW)

    identity = fingerprint_of(shown[0 if length == 1 else 1])
    assert claim == ServiceClaim(ServiceRole.NOTIFIER, identity, KEY)


def test_a_service_with_an_invalid_chain_or_key_is_refused() -> None:
    shown, key = chain()
    other, others_key = chain()
    long, long_key = chain(5)
    late = NOW + dt.timedelta(days=2)
    unsigned = certificate("leaf", key, "leaf", others_key, ca=False)
    dh = dh_to_spki(new_dh_pair()[0])

    for bad, in_tls, now in (
        (hello(shown, key), [], NOW),
        (hello(shown, key), other, NOW),
        (hello(shown, key), shown[:1], NOW),
        (hello(shown, others_key), shown, NOW),
        (hello(shown, key), shown, late),
        (hello(long, long_key), long, NOW),
        (hello([unsigned], key), [unsigned], NOW),
        (hello([shown[0], other[1]], key), [shown[0], other[1]], NOW),
        (hello(shown, key, dh), shown, NOW),
        (ServiceHello(ServiceRole.NOTIFIER, tuple(shown), b"no key"), shown, NOW),
        (ServiceHello(ServiceRole.NOTIFIER, (b"no", b"chain"), b""), [b"no", b"chain"], NOW),
    ):
        with pytest.raises(BadServiceError):
            claim_of(bad, in_tls, now)


def test_the_third_block_has_the_service_id_or_the_refusal() -> None:
    assert open_plain(ready_block(ServiceId(b"s" * 24))) == b"R\x18" + b"s" * 24
    assert open_plain(refused_block(BadServiceError())) == b"EHANDSHAKE BAD_SERVICE"
