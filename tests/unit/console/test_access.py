"""Who may look at the console, and who may publish."""

import base64

import pytest

from waystation.console.access import (
    bearer,
    is_known,
    is_operator,
    may_publish,
    may_read_broadcasts,
)
from waystation.console.model import Tokens

TOKENS = Tokens("op", "rd", {"news": "n-token", "*": "any-token"})


def with_token(token: str) -> dict[bytes, bytes]:
    return {b"authorization": f"Bearer {token}".encode(), b"host": b"console.example.org"}


@pytest.mark.parametrize(
    "peer, host",
    [
        ("127.0.0.1", "localhost:8083"),
        ("::1", "[::1]:8083"),
        ("::ffff:127.0.0.1", "127.0.0.1"),
    ],
)
def test_this_machine_needs_no_token(peer: str, host: str) -> None:
    assert is_operator(TOKENS, {b"host": host.encode()}, peer)


@pytest.mark.parametrize(
    "headers",
    [
        {b"host": b"localhost", b"x-forwarded-for": b"192.0.2.7"},
        {b"host": b"localhost", b"via": b"1.1 proxy"},
        {b"host": b"console.example.org"},
        {b"host": b"localhost.example.org"},
        {},
    ],
)
def test_a_proxy_or_another_name_is_a_stranger(headers: dict[bytes, bytes]) -> None:
    """A page elsewhere that points its own name at loopback must not see the console."""
    assert not is_operator(TOKENS, headers, "127.0.0.1")


def test_others_need_the_operators_token() -> None:
    basic = base64.b64encode(b"anyone:op")

    assert is_operator(TOKENS, with_token("op"), "192.0.2.1")
    assert is_operator(TOKENS, {b"authorization": b"Basic " + basic}, "192.0.2.1")
    assert not is_operator(TOKENS, with_token("rd"), "192.0.2.1")
    assert not is_operator(TOKENS, {b"host": b"localhost"}, "192.0.2.1")


def test_a_publishers_token_counts_for_its_broadcaster_alone() -> None:
    assert may_publish(TOKENS, with_token("n-token"), "news")
    assert not may_publish(TOKENS, with_token("n-token"), "weather")
    assert may_publish(TOKENS, with_token("any-token"), "weather")
    assert not may_publish(TOKENS, with_token("rd"), "news")


def test_reading_needs_the_readers_token_even_from_this_machine() -> None:
    assert may_read_broadcasts(TOKENS, with_token("rd"))
    assert not may_read_broadcasts(TOKENS, {b"host": b"localhost"})
    assert not may_read_broadcasts(TOKENS, with_token("n-token"))


def test_an_empty_token_opens_nothing() -> None:
    empty = Tokens("", "", {"*": ""})

    assert not may_publish(empty, with_token(""), "news")
    assert not may_read_broadcasts(empty, {})
    assert not is_known(empty, with_token(""))


@pytest.mark.parametrize("header", ["", "Bearer", "Basic !!", "Basic é", "Digest x"])
def test_what_is_no_token_is_none(header: str) -> None:
    assert bearer({b"authorization": header.encode()}) == b""
