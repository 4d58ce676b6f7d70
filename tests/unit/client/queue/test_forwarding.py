"""Commands through a proxy: encrypted for the relay, decrypted as by a relay."""

import hashlib

import pytest

from tests.unit.client.queue.certificates import NOW, SESSION_KEY, Authority
from waystation.client.queue.address import ServerAddress
from waystation.client.queue.answers import Ok, Refused, RelaySession
from waystation.client.queue.block import BLOCK_BYTES, plain_block
from waystation.client.queue.boxes import box_key, seal_padded, unseal_padded
from waystation.client.queue.commands import OpenRelay, Send, encode_command
from waystation.client.queue.encoding import BadBytesError, Reader, short
from waystation.client.queue.error_replies import ErrorReply
from waystation.client.queue.forwarding import FORWARDED_BYTES, Forwarding, Parcel, relay_request
from waystation.client.queue.hello import IdentityError
from waystation.client.queue.keys import KeyKind, PrivateKey
from waystation.client.queue.transmission import (
    BATCH_BYTES_MAX,
    decode_batch,
    encode_batch,
    encode_transmission,
)

AUTHORITY = Authority()
RELAY = ServerAddress(hashlib.sha256(AUTHORITY.chain[1]).digest(), ("relay.test",), 443, "secret")
SESSION = RelaySession(b"r" * 32, 8, 17, AUTHORITY.chain, AUTHORITY.signed_key)


def forwarding() -> Forwarding:
    return Forwarding(SESSION, RELAY, NOW)


def answered(parcel: Parcel, *answers: bytes) -> bytes:
    """What the relay seals for us: the nonce backwards."""
    derived = box_key(parcel.command.key.raw, SESSION_KEY.seed)
    return seal_padded(derived, parcel.corr_id[::-1], encode_batch(answers), FORWARDED_BYTES)


@pytest.mark.parametrize("kind", ["ed25519", "ed448", "x25519"])
def test_the_relay_finds_the_command_as_if_it_had_come_directly(kind: KeyKind) -> None:
    key = PrivateKey.generate(kind)
    parcel = forwarding().pack(Send(b"hello"), entity_id=b"e" * 24, key=key)
    derived = box_key(parcel.command.key.raw, SESSION_KEY.seed)
    (inner,) = decode_batch(unseal_padded(derived, parcel.corr_id, parcel.command.sealed))

    assert parcel.command.version == 17
    assert inner == encode_transmission(
        b"SEND F hello",
        version=17,
        session_id=SESSION.session_id,
        corr_id=parcel.corr_id,
        entity_id=b"e" * 24,
        key=key,
        server_key=SESSION_KEY.public.raw,
    )
    assert Reader(inner).short() != b""


def test_the_longest_message_fits_with_ten_bytes_to_spare() -> None:
    key = PrivateKey.generate("ed448")
    parcel = forwarding().pack(Send(bytes(16_048)), entity_id=b"e" * 24, key=key)
    outer = encode_transmission(
        encode_command(parcel.command, 18),
        version=18,
        session_id=b"p" * 32,
        corr_id=parcel.corr_id,
        entity_id=SESSION.session_id,
    )

    assert BATCH_BYTES_MAX - (len(outer) + 2) == 10
    assert len(plain_block(encode_batch([outer]))) == BLOCK_BYTES


def test_the_answer_is_opened_with_the_nonce_backwards() -> None:
    parcel = forwarding().pack(Send(b"x"), entity_id=b"e", key=None)
    head = b"\0" + short(parcel.corr_id)

    assert forwarding().unpack(answered(parcel, head + b"\x01eOK"), parcel) == Ok()
    refused = forwarding().unpack(answered(parcel, head + b"\x01eERR QUOTA"), parcel)
    assert refused == Refused(ErrorReply("QUOTA"))


def test_answers_that_do_not_belong_to_the_command_are_refused() -> None:
    parcel = forwarding().pack(Send(b"x"), entity_id=b"e", key=None)
    other = forwarding().pack(Send(b"x"), entity_id=b"e", key=None)
    head = b"\0" + short(parcel.corr_id)

    for sealed in (
        answered(parcel, head + b"\x01oOK"),
        answered(parcel, b"\0" + short(other.corr_id) + b"\x01eOK"),
        answered(parcel, head + b"\x01eOK", head + b"\x01eOK"),
        answered(other, head + b"\x01eOK"),
    ):
        with pytest.raises(BadBytesError):
            forwarding().unpack(sealed, parcel)


def test_a_proxy_that_shows_another_relay_is_refused() -> None:
    with pytest.raises(IdentityError):
        Forwarding(SESSION, ServerAddress(b"o" * 32, ("relay.test",)), NOW)


def test_every_command_has_a_key_and_a_nonce_of_its_own() -> None:
    one, two = (forwarding().pack(Send(b"x"), entity_id=b"e", key=None) for _ in range(2))

    assert one.corr_id != two.corr_id
    assert one.command.key != two.command.key


def test_the_proxy_is_asked_with_its_own_password_and_not_the_relays() -> None:
    asked = relay_request(RELAY, "proxy's")

    assert asked == OpenRelay(("relay.test",), "443", RELAY.fingerprint, b"proxy's")
    assert relay_request(RELAY).password is None
