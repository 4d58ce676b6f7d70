"""Header blocks: the examples of RFC 7541, another implementation's encoder, and broken ones."""

import pytest
from hpack import Encoder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from waystation.net.http2.hpack import (
    Decoder,
    HpackBombError,
    HpackError,
    TooManyHeadersError,
    literal,
)

# Appendix C.4: three requests on one connection, with Huffman coding.
C4 = [
    (
        "828684418cf1e3c2e5f23a6ba0ab90f4ff",
        [
            (b":method", b"GET"),
            (b":scheme", b"http"),
            (b":path", b"/"),
            (b":authority", b"www.example.com"),
        ],
    ),
    (
        "828684be5886a8eb10649cbf",
        [
            (b":method", b"GET"),
            (b":scheme", b"http"),
            (b":path", b"/"),
            (b":authority", b"www.example.com"),
            (b"cache-control", b"no-cache"),
        ],
    ),
    (
        "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
        [
            (b":method", b"GET"),
            (b":scheme", b"https"),
            (b":path", b"/index.html"),
            (b":authority", b"www.example.com"),
            (b"custom-key", b"custom-value"),
        ],
    ),
]
NAMES = st.from_regex(rb"[a-z][a-z0-9-]{0,20}", fullmatch=True)
FIELDS = st.lists(st.tuples(NAMES, st.binary(max_size=80)), max_size=12)


def test_the_requests_of_the_appendix_are_read() -> None:
    decoder = Decoder()

    for coded, fields in C4:
        assert decoder.decode(bytes.fromhex(coded)) == fields


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(blocks=st.lists(FIELDS, max_size=6), huffman=st.booleans())
def test_what_another_encoder_says_is_understood(
    blocks: list[list[tuple[bytes, bytes]]], huffman: bool
) -> None:
    """Its table and ours evict the same entries at the same time."""
    encoder = Encoder()
    decoder = Decoder()

    for fields in blocks:
        assert decoder.decode(encoder.encode(fields, huffman=huffman)) == fields


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(FIELDS)
def test_our_literals_enter_no_table(fields: list[tuple[bytes, bytes]]) -> None:
    decoder = Decoder()
    block = b"".join(literal(name, value) for name, value in fields)

    assert decoder.decode(block) == fields
    assert decoder._entries == []


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=200))
def test_any_bytes_are_fields_or_an_error(noise: bytes) -> None:
    decoder = Decoder()
    try:
        fields = decoder.decode(noise)
    except HpackError:
        fields = []

    assert decoder._size == sum(len(n) + len(v) + 32 for n, v in decoder._entries) <= 4096
    assert all(isinstance(name, bytes) for name, _ in fields)


@pytest.mark.parametrize(
    "block",
    [
        pytest.param("80", id="entry 0"),
        pytest.param("be", id="an entry that is not there"),
        pytest.param("ffffffffff0f", id="an integer without end"),
        pytest.param("3fe21f", id="a table larger than ours"),
        pytest.param("823f00", id="a table size after a field"),
        pytest.param("4005", id="a string that is cut off"),
        pytest.param("00", id="nothing after the kind"),
        pytest.param("0085ffffffffff00", id="a bad Huffman string"),
    ],
)
def test_a_broken_block_is_an_error(block: str) -> None:
    with pytest.raises(HpackError):
        Decoder().decode(bytes.fromhex(block))


def test_too_many_headers_still_keep_the_table_in_step() -> None:
    encoder = Encoder()
    decoder = Decoder(list_bytes_max=100)
    block = encoder.encode([(b"first", b"x" * 50), (b"second", b"y" * 50)])

    with pytest.raises(TooManyHeadersError):
        decoder.decode(block)
    assert decoder.decode(encoder.encode([(b"second", b"y" * 50)])) == [(b"second", b"y" * 50)]


def test_an_entry_that_is_larger_than_the_table_empties_it() -> None:
    decoder = Decoder(table_bytes_max=64)
    decoder.decode(b"\x20" + Encoder().encode([], huffman=False))

    encoder = Encoder()
    encoder.header_table_size = 64
    assert decoder.decode(encoder.encode([(b"a", b"1")])) == [(b"a", b"1")]
    assert decoder.decode(encoder.encode([(b"b", b"2" * 90)])) == [(b"b", b"2" * 90)]
    assert decoder._entries == []


def test_the_same_bytes_mean_something_else_once_the_table_has_changed() -> None:
    def entering(value: bytes) -> bytes:
        return b"\x40\x01x" + bytes((len(value),)) + value

    decoder = Decoder()
    newest = b"\xbe"
    decoder.decode(entering(b"one"))
    for _ in range(4):
        assert decoder.decode(newest) == [(b"x", b"one")]
    assert decoder.decode(entering(b"two")) == [(b"x", b"two")]
    for _ in range(4):
        assert decoder.decode(newest) == [(b"x", b"two")]
    decoder.decode(b"\x20")  # a table without room
    for _ in range(2):
        with pytest.raises(HpackError):
            decoder.decode(newest)


def test_a_block_that_changes_the_table_changes_it_each_time() -> None:
    decoder = Decoder()
    block = b"\x40\x01x\x01y" + b"\x40\x01x\x01z"
    for count in range(1, 6):
        assert decoder.decode(block) == [(b"x", b"y"), (b"x", b"z")]
        oldest = bytes((0x80 | 61 + 2 * count,))
        assert decoder.decode(oldest) == [(b"x", b"y")]


def test_a_block_that_unpacks_to_very_much_is_given_up() -> None:
    """One entry of 4,000 bytes, named by a byte each time."""
    decoder = Decoder(list_bytes_max=10_000, unpacked_bytes_max=80_000)
    entering = b"\x40\x01x" + b"\x7f\xa1\x1e" + bytes(4000)

    with pytest.raises(TooManyHeadersError):
        decoder.decode(entering + b"\xbe" * 18)
    with pytest.raises(HpackBombError):
        decoder.decode(b"\xbe" * 20)
