"""The client decodes or refuses whatever bytes a server sends."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.client.queue.certificates import Authority
from tests.unit.client.queue.peer import a_queue, ids, marker, message
from waystation.client.queue.address import AddressError, LinkAddress, QueueAddress, ServerAddress
from waystation.client.queue.block import BlockReader, BlockWriter, plain_block
from waystation.client.queue.bodies import open_body, open_notification
from waystation.client.queue.commands import LinkData, Ping
from waystation.client.queue.encoding import BadBytesError, short
from waystation.client.queue.exchange import Exchange
from waystation.client.queue.hello import Session, check_chain, decode_server_hello
from waystation.client.queue.links import open_link
from waystation.client.queue.transmission import encode_batch

QUEUE = a_queue()
AUTHORITY = Authority()
SAMPLES = [
    b"OK",
    b"SOK 0",
    b"END",
    b"PONG",
    b"ERR PROXY PROTOCOL STORE x",
    message(QUEUE, b"m" * 24, b"hello"),
    marker(QUEUE, b"m" * 24),
    ids(b"r" * 24, b"s" * 24),
]


def session() -> Exchange:
    return Exchange(Session(18, b"i" * 32, b"k" * 32), BlockReader(None), BlockWriter(None))


@st.composite
def bent(draw: st.DrawFn) -> bytes:
    """A good answer with a few bytes changed, cut or added."""
    data = bytearray(b"\0" + short(b"") + short(b"e" * 24) + draw(st.sampled_from(SAMPLES)))
    for _ in range(draw(st.integers(0, 4))):
        data[draw(st.integers(0, min(len(data) - 1, 120)))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))]) + draw(st.binary(max_size=3))


@given(st.binary(max_size=400))
def test_any_content_of_a_block_is_understood_or_refused(content: bytes) -> None:
    try:
        heard = session().block(plain_block(content))
    except BadBytesError:
        return
    assert all(reply.corr_id == b"" for reply in heard)  # we have asked nothing


@given(bent())
def test_answers_that_were_bent_are_understood_or_refused(part: bytes) -> None:
    try:
        heard = session().block(plain_block(encode_batch([part])))
    except BadBytesError:
        return
    assert len(heard) <= 1


@given(st.binary(max_size=300))
def test_any_answer_to_our_command_is_understood_or_refused(rest: bytes) -> None:
    exchange = session()
    said = exchange.say(Ping())
    part = b"\0" + short(said.corr_id) + rest
    try:
        heard = exchange.block(plain_block(encode_batch([part])))
    except BadBytesError:
        return
    assert [reply.corr_id for reply in heard] == [said.corr_id]


@given(st.binary(max_size=300))
def test_hellos_and_keys_of_nonsense_are_refused(data: bytes) -> None:
    now = datetime(2026, 11, 15, tzinfo=UTC)
    attempts: list[Callable[[], object]] = [
        lambda: check_chain((data, data), data, fingerprint=b"f" * 32, now=now),
        lambda: check_chain(AUTHORITY.chain, data, fingerprint=b"f" * 32, now=now),
        lambda: open_body(b"k" * 32, b"m", data),
        lambda: open_notification(b"k" * 32, b"n" * 24, data),
        lambda: open_link(LinkData(data, data), b"k" * 32, contact=True),
    ]

    for attempt in attempts:
        with pytest.raises(BadBytesError):
            attempt()
    try:
        hello = decode_server_hello(data)
    except BadBytesError:
        return
    assert hello.version_min <= hello.version_max


@given(st.text(max_size=80))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    for parse in (ServerAddress.parse, QueueAddress.parse, LinkAddress.parse):
        for candidate in (text, f"smp://{'A' * 43}@{text}", f"smp://{'A' * 43}@host/{text}"):
            try:
                address = parse(candidate)
            except AddressError:
                continue
            assert parse(str(address)) == address
