"""The test vectors of the protocol (tests/vectors/queue.toml), one by one."""

import hashlib
import tomllib
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from waystation.queue import auth
from waystation.queue.model import (
    AuthKey,
    BoxKey,
    CorrId,
    DhKey,
    DhPrivateKey,
    EntityId,
    KeyKind,
    Message,
    MessageId,
    SessionId,
    sender_id_from,
    slot_letters,
    slot_of,
)
from waystation.queue.wire import boxes, delivery, handshake, transmission
from waystation.queue.wire.block import (
    BLOCK_BYTES,
    ChainedBlocks,
    chain_keys,
    next_link,
    open_plain,
    seal_plain,
)
from waystation.queue.wire.commands import Send, Sub
from waystation.queue.wire.signed_key import open_signed_key, sign_key

PATH = Path(__file__).parents[3] / "vectors/queue.toml"
VECTORS: dict[str, Any] = tomllib.loads(PATH.read_text())
HSALSA20 = [boxes.box_key, boxes.plain_hsalsa20]


def known(table: str, name: str) -> bytes:
    return bytes.fromhex(VECTORS[table][name])


SESSION_ID = SessionId(known("session", "session_id"))
CORR_ID = CorrId(known("session", "corr_id"))
ENTITY_ID = EntityId(known("session", "entity_id"))
CLIENT_PRIVATE = DhPrivateKey(known("session", "client_private"))
SERVER_PRIVATE = DhPrivateKey(known("session", "server_private"))
CLIENT_KEY = DhKey(known("session", "client_public"))
SERVER_KEY = DhKey(known("session", "server_public"))
SECRET = known("session", "secret")
DIALECT = transmission.Dialect(18, SESSION_ID)


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def test_padding() -> None:
    padded = boxes.pad(known("pad", "message"), VECTORS["pad"]["size"])

    assert padded == known("pad", "padded")
    assert boxes.unpad(padded) == known("pad", "message")


@pytest.mark.parametrize("hsalsa20", HSALSA20)
def test_the_extra_step_of_every_key(hsalsa20: Any) -> None:
    """By libsodium, and by our own code for where libsodium hides it."""
    assert hsalsa20(known("hsalsa20", "key")) == known("hsalsa20", "out")


def test_a_box_over_a_raw_key() -> None:
    key = boxes.box_key(known("box", "key"))
    boxed = boxes.seal(key, known("box", "nonce"), known("box", "message"))

    assert boxed == known("box", "boxed")
    assert boxes.open_box(key, known("box", "nonce"), boxed) == known("box", "message")


def test_the_chains_of_a_session_and_their_first_link() -> None:
    first, second = chain_keys(SessionId(known("chain", "session_id")), known("chain", "secret"))

    assert (first, second) == (known("chain", "first"), known("chain", "second"))
    assert next_link(first) == (
        known("chain", "next"),
        known("chain", "key"),
        known("chain", "nonce"),
    )


def test_the_sender_id_that_a_client_chooses() -> None:
    assert sender_id_from(known("sender_id", "corr_id")) == known("sender_id", "sender_id")


def test_the_signed_session_key() -> None:
    signer = Ed25519PrivateKey.from_private_bytes(known("signed_key", "ed25519_seed"))
    der = sign_key(DhKey(known("signed_key", "key")), signer)

    assert der == known("signed_key", "der")
    assert open_signed_key(der, signer.public_key()) == known("signed_key", "key")


def test_the_keys_and_the_secret_of_the_session() -> None:
    assert boxes.dh_public(CLIENT_PRIVATE) == CLIENT_KEY
    assert boxes.dh_public(SERVER_PRIVATE) == SERVER_KEY
    assert boxes.agree_raw(CLIENT_KEY, SERVER_PRIVATE) == SECRET
    assert boxes.agree_raw(SERVER_KEY, CLIENT_PRIVATE) == SECRET
    assert boxes.agree(SERVER_KEY, CLIENT_PRIVATE) == boxes.box_key(SECRET)


def test_the_authenticator_of_a_send() -> None:
    authorized = transmission.authorized_bytes(
        CORR_ID, ENTITY_ID, known("authenticator", "command"), DIALECT
    )
    proof = auth.authenticator(SERVER_KEY, CLIENT_PRIVATE, CORR_ID, authorized)

    assert authorized == b"\x20%b\x18%b\x18%bSEND F hello" % (SESSION_ID, CORR_ID, ENTITY_ID)
    assert proof == known("authenticator", "proof")
    assert auth.check(
        [AuthKey(KeyKind.X25519, CLIENT_KEY)], proof, authorized, CORR_ID, SERVER_PRIVATE
    )


def test_the_authenticator_in_a_transmission() -> None:
    data = transmission.encode_transmission(
        CORR_ID,
        ENTITY_ID,
        known("authenticator", "command"),
        DIALECT,
        known("authenticator", "proof"),
    )
    received = transmission.decode_transmission(data, DIALECT)

    assert isinstance(received, transmission.Transmission)
    assert received.command == Send(False, b"hello")
    assert auth.check(
        [AuthKey(KeyKind.X25519, CLIENT_KEY)],
        received.proof,
        received.authorized,
        received.corr_id,
        SERVER_PRIVATE,
    )


def test_the_signed_sub_of_version_18() -> None:
    signer = Ed25519PrivateKey.from_private_bytes(known("sub", "ed25519_seed"))
    authorized = transmission.authorized_bytes(CORR_ID, ENTITY_ID, b"SUB", DIALECT)
    data = transmission.encode_transmission(
        CORR_ID, ENTITY_ID, b"SUB", DIALECT, signer.sign(authorized)
    )
    received = transmission.decode_transmission(data, DIALECT)

    assert data == known("sub", "transmission")
    assert len(data) == 119
    assert isinstance(received, transmission.Transmission)
    assert received.command == Sub()
    assert received.authorized == authorized
    key = AuthKey(KeyKind.ED25519, signer.public_key().public_bytes_raw())
    assert auth.check([key], received.proof, received.authorized, received.corr_id, None)


def test_the_block_that_holds_only_it() -> None:
    block = seal_plain(transmission.join_batch([known("sub", "transmission")]))

    assert len(block) == BLOCK_BYTES
    assert sha256(block) == known("sub", "plain_block_sha256")
    assert transmission.split_batch(open_plain(block)) == [known("sub", "transmission")]


def test_the_first_encrypted_block_of_a_client() -> None:
    to_client, to_server = chain_keys(SESSION_ID, SECRET)
    content = transmission.join_batch([known("sub", "transmission")])
    block = ChainedBlocks(to_server, to_client).seal(content)

    assert to_client == known("session", "server_to_client")
    assert to_server == known("session", "client_to_server")
    assert block[:16] == known("sub", "first_client_block_tag")
    assert sha256(block) == known("sub", "first_client_block_sha256")
    assert ChainedBlocks(to_client, to_server).open(block) == content


def _message(body: bytes | None) -> Message:
    message_id = MessageId(known("message", "message_id"))
    return Message(message_id, VECTORS["message"]["at_s"], body is not None, body)


def test_the_body_of_a_message() -> None:
    message = _message(known("message", "body"))
    encrypted = delivery.encrypt_message(boxes.box_key(SECRET), message)

    assert len(encrypted) == delivery.ENCRYPTED_BODY_BYTES == 16122
    assert encrypted[:16] == known("message", "tag")
    assert sha256(encrypted) == known("message", "sha256")
    key = boxes.box_key(SECRET)
    assert delivery.decrypt_message(key, message.message_id, encrypted) == message


def test_the_quota_marker() -> None:
    marker = _message(None)
    key = boxes.box_key(SECRET)
    encrypted = delivery.encrypt_message(key, marker)

    assert sha256(encrypted) == known("message", "marker_sha256")
    assert delivery.decrypt_message(key, marker.message_id, encrypted) == marker


def test_the_meta_data_of_a_notification() -> None:
    message = _message(None)
    key = BoxKey(boxes.box_key(SECRET))
    nonce = message.message_id
    meta = delivery.encrypt_meta(key, nonce, message.message_id, message.accepted_at_s)

    assert len(meta) == delivery.ENCRYPTED_META_BYTES == 144
    assert meta[:16] == known("message", "meta_tag")
    opened = delivery.decrypt_meta(key, nonce, meta)
    assert opened == (message.message_id, message.accepted_at_s)


@pytest.mark.parametrize("name, key", [("with_key", CLIENT_KEY), ("without_key", None)])
def test_the_hello_of_a_client(name: str, key: DhKey | None) -> None:
    hello = handshake.ClientHello(18, known("client_hello", "key_hash"), key)

    assert handshake.encode_client_hello(hello) == known("client_hello", name)
    assert handshake.decode_client_hello(known("client_hello", name)) == hello


def test_the_link_id_of_a_contact_address() -> None:
    """Clients compute it; it is here because it shows our key derivation over three blocks."""
    out = boxes.hkdf_sha512(b"", known("contact_link", "secret"), b"SimpleXContactLink", 56)

    assert out == known("contact_link", "link_id") + known("contact_link", "key")


@pytest.mark.parametrize("case", VECTORS["slot"], ids=lambda case: case["letters"])
def test_slots(case: dict[str, Any]) -> None:
    slot = slot_of(bytes.fromhex(case["id"]))

    assert slot == case["slot"]
    assert slot_letters(slot) == case["letters"]
