"""The code of HPACK agrees with another implementation, and refuses what is not a string."""

import pytest
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from waystation.net.http2.huffman import HuffmanError, codes, decode, encode


def test_the_codes_are_those_of_the_appendix() -> None:
    assert codes() == list(zip(REQUEST_CODES, REQUEST_CODES_LENGTH, strict=True))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=200))
def test_what_another_implementation_encodes_is_decoded(text: bytes) -> None:
    coded = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode(text)

    assert decode(coded) == text
    assert encode(text) == coded


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=60))
def test_any_bytes_are_a_string_or_an_error(noise: bytes) -> None:
    try:
        text = decode(noise)
    except HuffmanError:
        return
    assert encode(text) == noise


@pytest.mark.parametrize(
    "coded",
    [
        pytest.param(b"\xff\xff\xff\xff", id="the end symbol"),
        pytest.param(encode(b"ab") + b"\xff", id="a whole byte of padding"),
        pytest.param(b"\x18", id="padding with zeros"),  # 'a' is 00011
    ],
)
def test_a_string_that_ends_wrongly_is_refused(coded: bytes) -> None:
    with pytest.raises(HuffmanError):
        decode(coded)
