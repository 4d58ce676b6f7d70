"""A client session in blocks, without a socket."""

import secrets
from pathlib import Path

import pytest

from tests.unit.queue.server.connected import SESSION_ID, Hellos
from waystation.queue.errors import BadHelloError, Code
from waystation.queue.identity import ensure_identity
from waystation.queue.model import NO_CORR_ID, MessageId
from waystation.queue.server.session import Session
from waystation.queue.wire.block import BLOCK_BYTES, open_plain, seal_plain
from waystation.queue.wire.commands import Ping
from waystation.queue.wire.handshake import server_hello_of
from waystation.queue.wire.responses import OK, PONG, Msg
from waystation.queue.wire.transmission import (
    NOT_A_BATCH,
    Dialect,
    Refusal,
    Transmission,
    encode_transmission,
    join_batch,
    split_batch,
)

DIALECT = Dialect(18, SESSION_ID)


@pytest.fixture(scope="module")
def hellos(tmp_path_factory: pytest.TempPathFactory) -> Hellos:
    folder: Path = tmp_path_factory.mktemp("identity")
    identity = ensure_identity(folder, host="localhost", algorithm="ed25519")
    return Hellos(identity.chain, identity.leaf_key)


@pytest.fixture
def session(hellos: Hellos) -> Session:
    session = Session(hellos.server())
    assert session.receive(hellos.client()) == []
    return session


def test_the_server_sends_its_hello_first_and_accepts_a_valid_one(hellos: Hellos) -> None:
    session = Session(hellos.server())
    hello = server_hello_of(session.hello())

    assert hello.session_id == SESSION_ID
    assert not session.is_agreed
    assert session.receive(hellos.client(version=15)) == []
    assert session.version == 15


@pytest.mark.parametrize("version,key_hash", [(18, bytes(32)), (7, None), (19, None)])
def test_a_hello_that_does_not_fit_ends_the_conversation(
    hellos: Hellos, version: int, key_hash: bytes | None
) -> None:
    session = Session(hellos.server())

    with pytest.raises(BadHelloError):
        session.receive(hellos.client(version, key_hash))


def test_a_block_that_does_not_open_is_one_refusal(session: Session) -> None:
    assert session.receive(b"\xff" * BLOCK_BYTES) == [NOT_A_BATCH]


def test_commands_come_out_as_they_were_sent(session: Session) -> None:
    items = [
        encode_transmission(b"1", b"", b"PING", DIALECT),
        encode_transmission(b"2", b"x", b"NONSENSE", DIALECT),
    ]
    first, second = session.receive(seal_plain(join_batch(items)))

    assert isinstance(first, Transmission)
    assert first.command == Ping()
    assert second == Refusal(b"2", b"x", Code.CMD_UNKNOWN)  # pyright: ignore[reportArgumentType]


def test_what_is_said_leaves_in_order_and_in_as_few_blocks_as_hold_it(session: Session) -> None:
    long = Msg(MessageId(bytes(24)), secrets.token_bytes(16_122))
    session.say(b"1", b"", PONG)
    session.say(b"2", b"q", OK)
    session.say(NO_CORR_ID, b"q", long)
    session.say(b"3", b"q", OK)
    blocks: list[list[bytes]] = []
    while (block := session.next_block()) is not None:
        assert len(block) == BLOCK_BYTES
        blocks.append(split_batch(open_plain(block)))

    said = [item for block in blocks for item in block]
    assert [len(block) for block in blocks] == [4]
    assert [item[2:3] for item in said[:2]] == [b"1", b"2"]
    assert session.said_bytes == 0


def test_a_block_takes_no_more_than_255_answers_and_no_more_bytes_than_fit(
    session: Session,
) -> None:
    for n in range(300):
        session.say(b"%d" % n, b"", PONG)
    assert session.said_bytes > 0
    first, second = session.next_block(), session.next_block()

    assert first is not None
    assert second is not None
    assert open_plain(first)[0] == 255
    assert open_plain(second)[0] == 45
    assert session.next_block() is None
    for _ in range(3):
        session.say(b"", b"q" * 24, Msg(MessageId(bytes(24)), bytes(16_122)))
    sizes = []
    while (block := session.next_block()) is not None:
        sizes.append(open_plain(block)[0])
    assert sizes == [1, 1, 1]
