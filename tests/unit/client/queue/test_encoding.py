"""Values to bytes and back; truncated and surplus bytes are refused."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.client.queue.encoding import (
    BadBytesError,
    Reader,
    flag,
    from_base64,
    i64,
    large,
    maybe,
    pad,
    short,
    some,
    to_base64,
    u16,
    unpad,
)


@given(st.binary(max_size=255), st.binary(max_size=3000), st.booleans(), st.binary(max_size=20))
def test_what_was_written_is_read(first: bytes, second: bytes, third: bool, tail: bytes) -> None:
    written = short(first) + large(second) + flag(third) + maybe(None) + maybe(short(b"x")) + tail
    reader = Reader(written)

    assert (reader.short(), reader.large(), reader.flag()) == (first, second, third)
    assert (reader.maybe(), reader.maybe(), reader.short()) == (False, True, b"x")
    assert reader.tail() == tail
    reader.end()


@given(st.integers(0, 65_535), st.integers(-(2**63), 2**63 - 1))
def test_numbers_keep_their_value(small: int, big: int) -> None:
    reader = Reader(u16(small) + i64(big))

    assert (reader.u16(), reader.i64()) == (small, big)


@given(st.binary(max_size=100), st.integers(0, 50))
def test_padding_goes_and_comes(text: bytes, room: int) -> None:
    assert unpad(pad(text, len(text) + 2 + room)) == text


@given(st.binary(max_size=60))
def test_base64_is_read_with_and_without_its_padding(value: bytes) -> None:
    text = to_base64(value)

    assert from_base64(text) == from_base64(text.rstrip("=")) == value


@pytest.mark.parametrize("text", ["a", "é", "ab+/", "ab cd", "abcde"])
def test_text_that_is_not_base64url_is_refused(text: str) -> None:
    with pytest.raises(BadBytesError):
        from_base64(text)


def test_bytes_that_do_not_fit_are_refused() -> None:
    refused: list[Callable[[], object]] = [
        lambda: Reader(b"\x05abcd").short(),
        lambda: Reader(b"\x00").large(),
        lambda: Reader(b"X").flag(),
        lambda: Reader(b"2").maybe(),
        lambda: Reader(b"\x00").count(),
        lambda: Reader(b"x").end(),
        lambda: Reader(b"").u8(),
        lambda: unpad(b"\x00"),
        lambda: unpad(b"\x00\x03ab"),
        lambda: pad(b"abc", 4),
        lambda: short(bytes(256)),
        lambda: large(bytes(65_536)),
        lambda: some([]),
        lambda: some([b"x"] * 256),
    ]

    for attempt in refused:
        with pytest.raises(BadBytesError):
            attempt()
