"""The client's side of services: hello, signatures, and the server's answer."""

import hashlib
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

from tests.e2e.queue.certificates import longer_chain
from waystation.client.queue.commands import (
    New,
    NotifierSub,
    Ping,
    ServiceNotifiers,
    Sub,
    encode_command,
)
from waystation.client.queue.encoding import BadBytesError, Reader
from waystation.client.queue.hello import ServiceSession, encode_client_hello, open_signed_key
from waystation.client.queue.keys import PrivateKey
from waystation.client.queue.service import ServiceCard, ServiceRefusedError, signs_twice
from waystation.client.queue.transmission import encode_transmission

SESSION_KEY = PrivateKey("ed25519", bytes(range(32)))


def card_of(folder: Path, length: int) -> ServiceCard:
    longer_chain(folder, length)
    return ServiceCard.load(folder / "server.crt", folder / "server.key", "N")


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_a_hello_carries_role_chain_and_signed_key(tmp_path: Path, length: int) -> None:
    card = card_of(tmp_path / "a", length)
    hello = encode_client_hello(18, b"f" * 32, None, service=card.hello(SESSION_KEY))
    reader = Reader(hello)
    reader.take(2 + 33)

    assert reader.take(3) == b"F1N"
    assert tuple(reader.large() for _ in range(reader.u8())) == card.chain
    signed = reader.large()
    assert SESSION_KEY.public.der in signed
    assert card.key.public.verifies(signed[-64:], b"\x30\x2c" + SESSION_KEY.public.der)
    identity = card.chain[0 if length == 1 else 1]
    assert card.fingerprint == hashlib.sha256(identity).digest()
    with pytest.raises(BadBytesError):  # it is no key of a server's session
        open_signed_key(signed, card.key.public)


def test_two_proofs_stand_before_what_they_cover() -> None:
    service = ServiceSession(b"s" * 24, b"f" * 32, SESSION_KEY)
    key = PrivateKey.generate()
    sent = encode_transmission(
        b"NSUB",
        version=18,
        session_id=b"\xaa" * 32,
        corr_id=b"c" * 24,
        entity_id=b"n" * 24,
        key=key,
        service=service,
    )
    said = b"\x18" + b"c" * 24 + b"\x18" + b"n" * 24 + b"NSUB"
    authorized = b"\x20" + b"\xaa" * 32 + said

    assert sent[:1] + sent[65:67] == b"\x40" + b"1\x40"
    assert sent[131:] == said
    assert key.public.verifies(sent[1:65], b"f" * 32 + authorized)
    assert SESSION_KEY.public.verifies(sent[67:131], authorized)


def test_which_commands_are_signed_twice() -> None:
    new = New(recipient_key=SESSION_KEY.public, dh=PrivateKey.generate("x25519").public)

    assert [signs_twice(one) for one in (new, Sub(), NotifierSub())] == [True] * 3
    assert [signs_twice(one) for one in (ServiceNotifiers(), Ping())] == [False] * 2
    assert encode_command(ServiceNotifiers(), 18) == b"NSUBS"


def test_the_third_block_accepts_or_refuses_the_service(tmp_path: Path) -> None:
    card = card_of(tmp_path / "a", 1)
    welcome = card.welcomed(b"R\x18" + b"s" * 24, SESSION_KEY)

    assert welcome == ServiceSession(b"s" * 24, card.fingerprint, SESSION_KEY)
    with pytest.raises(ServiceRefusedError, match="HANDSHAKE BAD_SERVICE"):
        card.welcomed(b"EHANDSHAKE BAD_SERVICE", SESSION_KEY)
    for bad in (b"", b"X", b"R\x18short"):
        with pytest.raises(BadBytesError):
            card.welcomed(bad, SESSION_KEY)


def test_what_is_no_card(tmp_path: Path) -> None:
    card = card_of(tmp_path / "a", 1)
    other = tmp_path / "other.key"
    other.write_bytes(
        generate_private_key(SECP256R1()).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    long = tmp_path / "long.crt"
    long.write_bytes(card.chain_file.read_bytes() * 5)
    nothing = tmp_path / "nothing.pem"
    nothing.write_bytes(b"nothing")

    for chain_file, key_file in (
        (card.chain_file, other),
        (long, card.key_file),
        (nothing, card.key_file),
        (card.chain_file, nothing),
    ):
        with pytest.raises(BadBytesError):
            ServiceCard.load(chain_file, key_file, "M")
    assert "…" in repr(card)
