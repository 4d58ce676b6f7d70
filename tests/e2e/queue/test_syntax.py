"""Malformed commands and their answers (queues §7, 20 to 35)."""

import secrets

import pytest

from tests.e2e.queue.conftest import Connect
from tests.e2e.queue.peer import Peer, Signer
from waystation.queue.errors import Code
from waystation.queue.model import AuthKey, KeyKind
from waystation.queue.wire import fields
from waystation.queue.wire.commands import Ack, Del, Key, New, Off, Send, Sub, encode_command
from waystation.queue.wire.responses import Err

ENTITY = b"12345678"
SAMPLE = secrets.token_bytes(64)  # a signature by nobody
ED25519 = bytes.fromhex("302a300506032b6570032100") + secrets.token_bytes(32)
X448 = bytes.fromhex("3042300506032b656f033900") + secrets.token_bytes(56)
KEY = AuthKey(KeyKind.ED25519, secrets.token_bytes(32))


@pytest.fixture
def peer(connect: Connect) -> Peer:
    return connect()


def fault(peer: Peer, said: bytes, *, entity: bytes = ENTITY, proof: bytes = SAMPLE) -> object:
    return peer.fault(said, entity, proof=proof)


@pytest.mark.parametrize("said", [b"HELLO", b"OK", b"SUB=", b"OFF=", b"DEL=", b"", b"sub"])
def test_unknown_commands_are_cmd_unknown(peer: Peer, said: bytes) -> None:
    """Q-020, Q-029 and Q-033"""
    assert fault(peer, said) is Code.CMD_UNKNOWN


@pytest.mark.parametrize("said", [b"NEW", b"NEW ", b"NEW hello"])
def test_new_needs_its_parameters(peer: Peer, said: bytes) -> None:
    """Q-021 and Q-022"""
    assert fault(peer, said, entity=b"") is Code.CMD_SYNTAX


def test_new_needs_a_signature_and_no_entity(peer: Peer) -> None:
    """Q-023 and Q-024"""
    said = encode_command(New(KEY, secrets.token_bytes(32)), 18)  # pyright: ignore[reportArgumentType]

    assert fault(peer, said, entity=b"", proof=b"") is Code.CMD_NO_AUTH
    assert fault(peer, said) is Code.CMD_HAS_AUTH


def test_a_new_with_more_before_its_first_parameter_is_malformed(peer: Peer) -> None:
    """Q-022"""
    said = encode_command(New(KEY, secrets.token_bytes(32)), 18)  # pyright: ignore[reportArgumentType]

    assert fault(peer, said.replace(b"NEW ", b"NEW x"), entity=b"") is Code.CMD_SYNTAX


def test_key_on_an_unknown_queue_is_refused_by_its_authority(peer: Peer) -> None:
    """Q-025"""
    assert fault(peer, encode_command(Key(KEY), 18)) is Code.AUTH


@pytest.mark.parametrize(
    "said",
    [b"KEY", b"KEY ", b"KEY hello", b"KEY \x2c" + ED25519 + b"!"],
    ids=["nothing", "empty", "no key", "more than a key"],
)
def test_key_needs_a_key_and_no_more(peer: Peer, said: bytes) -> None:
    """Q-026"""
    assert fault(peer, said) is Code.CMD_SYNTAX


def test_key_needs_signature_and_entity(peer: Peer) -> None:
    """Q-027"""
    said = encode_command(Key(KEY), 18)

    assert fault(peer, said, proof=b"") is Code.CMD_NO_AUTH
    assert fault(peer, said, entity=b"") is Code.CMD_NO_AUTH


@pytest.mark.parametrize("command", [Sub(), Off(), Del()])
def test_commands_without_parameters(peer: Peer, command: Sub | Off | Del) -> None:
    """Q-028, Q-029 and Q-030"""
    said = command.tag

    assert fault(peer, said) is Code.AUTH
    assert fault(peer, said + b" ") is Code.CMD_SYNTAX
    assert fault(peer, said, proof=b"") is Code.CMD_NO_AUTH
    assert fault(peer, said, entity=b"") is Code.CMD_NO_AUTH


def test_send_needs_an_entity_and_its_parameters(peer: Peer) -> None:
    """Q-031"""
    said = encode_command(Send(False, b"hello"), 18)

    assert fault(peer, said) is Code.AUTH
    assert fault(peer, said, proof=b"") is Code.AUTH
    assert fault(peer, b"SEND") is Code.CMD_SYNTAX
    assert fault(peer, b"SEND hello") is Code.CMD_SYNTAX
    assert fault(peer, said, entity=b"") is Code.CMD_NO_ENTITY
    assert fault(peer, said, entity=b"", proof=b"") is Code.CMD_NO_ENTITY


def test_ack_needs_signature_entity_and_a_message(peer: Peer) -> None:
    """Q-032"""
    said = encode_command(Ack(secrets.token_bytes(24)), 18)  # pyright: ignore[reportArgumentType]

    assert fault(peer, said) is Code.AUTH
    assert fault(peer, b"ACK") is Code.CMD_SYNTAX
    assert fault(peer, said, entity=b"") is Code.CMD_NO_AUTH
    assert fault(peer, said, proof=b"") is Code.CMD_NO_AUTH


def test_keys_of_the_wrong_kind_are_malformed(peer: Peer) -> None:
    """Q-034"""
    assert fault(peer, b"KEY " + fields.short(X448)) is Code.CMD_SYNTAX
    with_signing_key = b"NKEY " + fields.short(ED25519) + fields.short(ED25519)
    assert fault(peer, with_signing_key) is Code.CMD_SYNTAX


def test_errors_name_the_command_they_are_about(peer: Peer) -> None:
    """Q-035"""
    said, corr_id = peer.transmission(b"KEY hello", ENTITY, Signer())
    peer.write(said)
    answer = peer.next()

    assert answer.response == Err(Code.CMD_SYNTAX)
    assert (answer.corr_id, answer.entity_id) == (corr_id, ENTITY)
