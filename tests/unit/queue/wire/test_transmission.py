"""Transmissions and batches: limits, order, and the answers to malformed ones."""

import pytest

from waystation.queue.errors import Code
from waystation.queue.model import CorrId, EntityId, SessionId
from waystation.queue.wire.commands import Nsub, Ping, Sub
from waystation.queue.wire.fields import FieldError
from waystation.queue.wire.responses import OK, Ends, encode_response
from waystation.queue.wire.transmission import (
    BATCH_BYTES_MAX,
    NOT_A_BATCH,
    TRANSMISSION_BYTES_MAX,
    Answer,
    Dialect,
    Refusal,
    Transmission,
    authorized_bytes,
    decode_answer,
    decode_batch,
    decode_transmission,
    encode_answer,
    encode_transmission,
    fits_batch,
    join_batch,
    pack_batches,
    split_batch,
)

SESSION_ID = SessionId(b"\xaa" * 32)
V6, V7, V15, V18 = (Dialect(version, SESSION_ID) for version in (6, 7, 15, 18))
CORR_ID = CorrId(b"c" * 24)
ENTITY_ID = EntityId(b"e" * 24)


def sub(dialect: Dialect, proof: bytes = b"s" * 64) -> bytes:
    return encode_transmission(CORR_ID, ENTITY_ID, b"SUB", dialect, proof)


def test_two_transmissions_in_one_block_are_two() -> None:
    """Q-013"""
    other = encode_transmission(b"other", b"", b"PING", V18)

    received = decode_batch(join_batch([sub(V18), other]), V18)

    assert [(item.corr_id, item.entity_id) for item in received] == [
        (CORR_ID, ENTITY_ID),
        (b"other", b""),
    ]
    assert isinstance(received[1], Transmission)
    assert received[1].command == Ping()


@pytest.mark.parametrize(
    "count, proof_bytes, version, sizes",
    [
        (135, 64, 18, [135]),
        (300, 64, 18, [30, 135, 135]),
        (106, 64, 6, [106]),
        (107, 64, 6, [1, 106]),
    ],
)
def test_how_many_subscriptions_fit_a_block(
    count: int, proof_bytes: int, version: int, sizes: list[int]
) -> None:
    """Q-014"""
    dialect = Dialect(version, SESSION_ID)
    items = [
        encode_transmission(f"{n:024}".encode(), ENTITY_ID, b"SUB", dialect, bytes(proof_bytes))
        for n in range(count)
    ]

    batches = pack_batches(items)

    assert [content[0] for content in batches] == sizes
    assert [item for content in batches for item in split_batch(content)] == items


def test_a_batch_has_at_most_255_items() -> None:
    """Q-014"""
    ends = [encode_answer(b"", ENTITY_ID, b"END", V18)] * 256

    assert [content[0] for content in pack_batches(ends)] == [1, 255]


def test_80_notifications_fit_a_block() -> None:
    notification = encode_answer(b"", ENTITY_ID, b"NMSG " + bytes(24) + b"\x90" + bytes(144), V18)

    assert [content[0] for content in pack_batches([notification] * 81)] == [1, 80]


def test_a_batch_leaves_room_for_the_tag() -> None:
    full = [bytes(TRANSMISSION_BYTES_MAX)]

    assert len(join_batch(full)) == 16384 - 2 - 16
    assert fits_batch(0, 0, full[0])
    assert not fits_batch(1, 1, full[0])
    assert not fits_batch(0, 255, b"")
    assert pack_batches([]) == []


def test_an_item_that_no_block_can_hold_is_our_mistake() -> None:
    with pytest.raises(AssertionError):
        pack_batches([bytes(BATCH_BYTES_MAX)])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0",
        b"\0" + b"\0\x03abc",
        b"\x01",
        b"\x01\0",
        b"\x01\0\x04abc",
        b"\x02\0\x03abc",
        b"\x01\0\x03abcd",
        join_batch([sub(V18)]) + b"#",
        join_batch([sub(V18)])[:-1],
    ],
)
def test_a_broken_batch_is_one_refusal_without_ids(content: bytes) -> None:
    """Q-015: no transmissions, too few bytes, or too many."""
    assert decode_batch(content, V18) == [NOT_A_BATCH]


def test_a_broken_transmission_does_not_spoil_its_batch() -> None:
    received = decode_batch(join_batch([b"\x40short", sub(V18)]), V18)

    assert received[0] == NOT_A_BATCH
    assert isinstance(received[1], Transmission)


@pytest.mark.parametrize("length", [1, 63, 65, 79, 81, 113, 115, 255])
@pytest.mark.parametrize("dialect", [V7, V18], ids=["v7", "v18"])
def test_a_proof_of_no_known_length(dialect: Dialect, length: int) -> None:
    """Q-016"""
    received = decode_transmission(sub(dialect, bytes(length)), dialect)

    assert received == Refusal(CORR_ID, EntityId(b""), Code.BLOCK)


def test_another_session_at_version_6() -> None:
    """Q-018"""
    data = encode_transmission(
        CORR_ID, ENTITY_ID, b"SUB", Dialect(6, SessionId(b"other")), bytes(64)
    )

    assert decode_transmission(data, V6) == Refusal(CORR_ID, EntityId(b""), Code.SESSION)
    assert isinstance(decode_transmission(sub(V6), V6), Transmission)


@pytest.mark.parametrize("dialect", [V6, V7, V15, V18], ids=["v6", "v7", "v15", "v18"])
def test_what_is_signed_begins_with_the_session(dialect: Dialect) -> None:
    received = decode_transmission(sub(dialect), dialect)

    assert isinstance(received, Transmission)
    signed = authorized_bytes(CORR_ID, ENTITY_ID, b"SUB", dialect)
    if dialect is V6:
        assert received.authorized == signed
    assert received.authorized == b"\x20" + SESSION_ID + b"\x18%b\x18%bSUB" % (CORR_ID, ENTITY_ID)
    assert received.authorized == signed


def test_the_proof_of_a_service_is_read_from_version_16_on() -> None:
    """Q-083 needs it to be seen."""
    proof, service = b"p" * 64, b"v" * 64
    said = b"\x18%b\x18%bNSUB" % (CORR_ID, ENTITY_ID)

    received = decode_transmission(b"\x40%b1\x40%b%b" % (proof, service, said), V18)

    assert received == Transmission(
        CORR_ID, ENTITY_ID, Nsub(), proof, V18.signed_prefix + said, service
    )
    for broken in (b"\x40%b2%b", b"\x40%b1\x3f%b"):
        assert decode_transmission(broken % (proof, said), V18) == NOT_A_BATCH
    assert decode_transmission(b"\x40%b1\x40%b" % (proof, service[:20]), V18) == NOT_A_BATCH


def test_no_mark_of_a_service_without_a_proof() -> None:
    received = decode_transmission(b"\0\x01c\0PING", V18)

    assert received == Transmission(CorrId(b"c"), EntityId(b""), Ping())


def test_a_correlation_id_may_have_any_length() -> None:
    for length in (0, 1, 24, 255):
        corr_id = bytes(length)
        received = decode_transmission(
            encode_transmission(corr_id, ENTITY_ID, b"SUB", V18, bytes(64)), V18
        )
        assert isinstance(received, Transmission)
        assert (received.corr_id, received.command) == (corr_id, Sub())


@pytest.mark.parametrize("dialect", [V6, V18], ids=["v6", "v18"])
def test_answers_have_no_proof(dialect: Dialect) -> None:
    data = encode_answer(CORR_ID, ENTITY_ID, encode_response(OK, 18), dialect)

    assert data[0] == 0
    assert decode_answer(data, dialect) == Answer(CORR_ID, ENTITY_ID, b"OK")


def test_an_answer_of_another_session_is_none() -> None:
    data = encode_answer(CORR_ID, ENTITY_ID, encode_response(Ends(3), 18), V6)

    with pytest.raises(FieldError):
        decode_answer(data, Dialect(6, SessionId(b"other")))
