"""Chains of certificates: expected identity, valid signatures and dates."""

import datetime as dt

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.unit.queue.wire.chains import NOW, SigningKey, certificate, chain
from waystation.queue.wire.certificates import fingerprint_of, identity_of, verify_chain
from waystation.queue.wire.fields import FieldError


def refused(certificates: list[bytes], now: dt.datetime = NOW) -> str:
    with pytest.raises(FieldError) as error:
        verify_chain(certificates, fingerprint_of(certificates[1]), now)
    return str(error.value)


@pytest.mark.parametrize("length", [2, 3, 4])
@pytest.mark.parametrize("kind", [Ed25519PrivateKey, Ed448PrivateKey])
def test_a_chain_holds(length: int, kind: type[SigningKey]) -> None:
    certificates, key = chain(length, kind)

    leaf = verify_chain(certificates, fingerprint_of(certificates[1]), NOW)

    assert leaf.public_bytes_raw() == key.public_key().public_bytes_raw()
    assert identity_of(certificates) == certificates[1]


@pytest.mark.parametrize("length", [0, 1, 5])
def test_chains_of_other_lengths_are_none(length: int) -> None:
    certificates, _ = chain(5)

    with pytest.raises(FieldError):
        identity_of(certificates[:length])


def test_the_identity_of_another_server() -> None:
    certificates, _ = chain()
    others, _ = chain()

    with pytest.raises(FieldError, match="another server"):
        verify_chain(certificates, fingerprint_of(others[1]), NOW)


def test_a_leaf_that_another_issued() -> None:
    certificates, _ = chain()
    others, _ = chain()

    assert refused([others[0], certificates[1]]) == "certificate not signed by its issuer"


def test_a_chain_that_has_ended_or_not_begun() -> None:
    certificates, _ = chain()

    assert refused(certificates, NOW + dt.timedelta(days=2)) == (
        "certificate expired or not yet valid"
    )
    assert refused(certificates, NOW - dt.timedelta(days=2)) == (
        "certificate expired or not yet valid"
    )


def test_a_leaf_cannot_issue() -> None:
    leaf_key, other_key = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    middle = certificate("middle", leaf_key, "middle", leaf_key, ca=False)
    leaf = certificate("leaf", other_key, "middle", leaf_key, ca=False)

    assert refused([leaf, middle]) == "certificate not signed by its issuer"


def test_other_kinds_of_keys_are_not_used() -> None:
    key, issuer = ec.generate_private_key(ec.SECP256R1()), Ed25519PrivateKey.generate()
    leaf = certificate("leaf", key, "issuer", issuer, ca=False)

    assert refused([leaf, certificate("issuer", issuer, "issuer", issuer, ca=True)]) == (
        "certificate key is neither Ed25519 nor Ed448"
    )


def test_bytes_that_are_no_certificate() -> None:
    certificates, _ = chain()

    assert refused([b"leaf", certificates[1]]) == "not a certificate"
