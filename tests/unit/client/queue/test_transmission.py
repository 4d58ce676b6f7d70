"""Transmissions and batches, and how many fit into a block."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.client.queue.answers import Ok, Pong, Refused
from waystation.client.queue.block import BLOCK_BYTES, BlockReader, BlockWriter
from waystation.client.queue.boxes import NotOpenedError, block_chains
from waystation.client.queue.commands import Sub, encode_command
from waystation.client.queue.encoding import BadBytesError, short
from waystation.client.queue.error_replies import ErrorReply
from waystation.client.queue.keys import KeyKind, PrivateKey
from waystation.client.queue.transmission import (
    BATCH_BYTES_MAX,
    Reply,
    batches,
    decode_batch,
    decode_reply,
    encode_batch,
    encode_transmission,
)

SESSION_ID = b"s" * 32
KEY = PrivateKey("ed25519", b"k" * 32)


def sub(version: int, kind: KeyKind = "ed25519") -> bytes:
    return encode_transmission(
        encode_command(Sub(), version),
        version=version,
        session_id=SESSION_ID,
        corr_id=b"c" * 24,
        entity_id=b"e" * 24,
        key=PrivateKey.generate(kind),
        server_key=PrivateKey.generate("x25519").public.raw,
    )


@pytest.mark.parametrize("version, capacity", [(18, 135), (6, 106)])
def test_as_many_subscriptions_fit_into_a_block_as_the_protocol_says(
    version: int, capacity: int
) -> None:
    contents = list(batches([sub(version)] * (capacity + 1)))

    assert [content[0] for content in contents] == [capacity, 1]
    assert len(contents[0]) <= BLOCK_BYTES - 2 - 16


def test_a_block_holds_at_most_255_transmissions() -> None:
    assert [content[0] for content in batches([b"x"] * 600)] == [255, 255, 90]


def test_a_transmission_that_fits_no_block_is_refused() -> None:
    assert [content[0] for content in batches([bytes(BATCH_BYTES_MAX - 2)])] == [1]
    with pytest.raises(BadBytesError, match="does not fit"):
        list(batches([bytes(BATCH_BYTES_MAX - 1)]))


@given(st.lists(st.binary(max_size=9000), min_size=1, max_size=40))
def test_batches_keep_everything_in_order(parts: list[bytes]) -> None:
    contents = list(batches(parts))

    assert [part for content in contents for part in decode_batch(content)] == parts
    assert all(len(content) <= BLOCK_BYTES - 18 for content in contents)


@pytest.mark.parametrize("content", [b"", b"\0", b"\x01\x00", b"\x01\x00\x01xy", b"\x02\x00\x01x"])
def test_a_batch_that_is_empty_or_has_leftovers_is_refused(content: bytes) -> None:
    with pytest.raises(BadBytesError):
        decode_batch(content)


@pytest.mark.parametrize("kind, size", [("ed25519", 64), ("ed448", 114), ("x25519", 80)])
def test_each_kind_of_key_gives_an_authorization_of_its_own_length(
    kind: KeyKind, size: int
) -> None:
    assert sub(18, kind)[0] == size


def test_an_authenticator_needs_the_key_of_the_session() -> None:
    with pytest.raises(BadBytesError):
        encode_transmission(
            b"SUB",
            version=6,
            session_id=SESSION_ID,
            corr_id=b"c",
            key=PrivateKey.generate("x25519"),
        )


def test_the_session_id_is_sent_only_in_version_6() -> None:
    old, new = (
        encode_transmission(b"PING", version=version, session_id=SESSION_ID, corr_id=b"c")
        for version in (6, 7)
    )

    assert old == b"\0" + short(SESSION_ID) + b"\x01c\x00PING"
    assert new == b"\0\x01c\x00PING"


def test_replies_are_read() -> None:
    def read(data: bytes) -> Reply:
        return decode_reply(data, version=18, session_id=SESSION_ID)

    assert read(b"\0\x01c\x01eOK") == Reply(b"c", b"e", Ok())
    assert read(b"\0\x01c\x00PONG") == Reply(b"c", b"", Pong())
    assert read(b"\0\x00\x00ERR BLOCK") == Reply(b"", b"", Refused(ErrorReply("BLOCK")))


@pytest.mark.parametrize("data", [b"", b"\x01x\x01c\x01eOK", b"\0\x01c\x00OK", b"\0\x01c"])
def test_replies_that_no_server_sends_are_refused(data: bytes) -> None:
    with pytest.raises(BadBytesError):
        decode_reply(data, version=18, session_id=SESSION_ID)


def test_a_reply_of_another_session_is_refused_in_version_6() -> None:
    good = b"\0" + short(SESSION_ID) + b"\x01c\x01eOK"

    assert decode_reply(good, version=6, session_id=SESSION_ID).answer == Ok()
    with pytest.raises(BadBytesError):
        decode_reply(good, version=6, session_id=b"o" * 32)


@given(st.lists(st.binary(max_size=16_000), min_size=1, max_size=6))
def test_chains_stay_in_step(contents: list[bytes]) -> None:
    ours, theirs = (block_chains(SESSION_ID, b"z" * 32)[1] for _ in range(2))
    writer, reader = BlockWriter(ours), BlockReader(theirs)

    assert [reader.read(writer.write(content)) for content in contents] == contents


def test_a_block_that_cannot_be_read_costs_a_step_too() -> None:
    ours, theirs = (block_chains(SESSION_ID, b"z" * 32)[1] for _ in range(2))
    writer, reader = BlockWriter(ours), BlockReader(theirs)
    first, second = writer.write(b"one"), writer.write(b"two")

    with pytest.raises(NotOpenedError):
        reader.read(first[:-1] + bytes([first[-1] ^ 1]))
    assert reader.read(second) == b"two"


def test_a_block_has_one_size() -> None:
    with pytest.raises(BadBytesError):
        BlockReader(None).read(b"\0" * 100)
    with pytest.raises(BadBytesError):
        BlockWriter(None).write(bytes(16_383))
    assert len(BlockWriter(None).write(encode_batch([b"x"]))) == BLOCK_BYTES
