"""Every form of ERR, decoded and encoded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.base.errors import BusyError, GoneError, RejectedError, UnavailableError
from waystation.client.queue.encoding import BadBytesError
from waystation.client.queue.error_replies import (
    ErrorReply,
    decode_error_reply,
    encode_error_reply,
    error_of,
)

WORDS = [
    *("BLOCK", "SESSION", "AUTH", "SERVICE", "CRYPTO", "QUOTA", "NO_MSG", "LARGE_MSG", "EXPIRED"),
    *("INTERNAL", "CMD UNKNOWN", "CMD SYNTAX", "CMD PROHIBITED", "CMD NO_AUTH", "CMD HAS_AUTH"),
    *("CMD NO_ENTITY", "PROXY BASIC_AUTH", "PROXY NO_SESSION", "PROXY PROTOCOL QUOTA"),
    *("PROXY PROTOCOL CMD SYNTAX", "PROXY BROKER NETWORK", "PROXY BROKER TIMEOUT"),
    *("PROXY BROKER HOST", "PROXY BROKER NO_SERVICE", "PROXY BROKER TRANSPORT BLOCK"),
    *("PROXY BROKER TRANSPORT VERSION", "PROXY BROKER TRANSPORT LARGE_MSG"),
    *("PROXY BROKER TRANSPORT SESSION", "PROXY BROKER TRANSPORT NO_AUTH"),
    *("PROXY BROKER TRANSPORT HANDSHAKE PARSE", "PROXY BROKER TRANSPORT HANDSHAKE IDENTITY"),
    *("PROXY BROKER TRANSPORT HANDSHAKE BAD_AUTH", "PROXY BROKER TRANSPORT HANDSHAKE BAD_SERVICE"),
]


@pytest.mark.parametrize("words", WORDS)
def test_an_error_code_keeps_all_of_its_words(words: str) -> None:
    assert decode_error_reply(words.encode()) == ErrorReply(words)
    assert encode_error_reply(ErrorReply(words)) == words.encode()


@pytest.mark.parametrize(
    "data, expected",
    [
        (b"BLOCKED reason=spam", ErrorReply("BLOCKED", "spam")),
        (
            b'BLOCKED reason=content,notice={"ttl":60}',
            ErrorReply("BLOCKED", "content", {"ttl": 60}),
        ),
        (b"BLOCKED reason=spam,notice={}", ErrorReply("BLOCKED", "spam", {})),
        (b"STORE the disk, again", ErrorReply("STORE", "the disk, again")),
        (b"PROXY BROKER RESPONSE \x05AUTH!", ErrorReply("PROXY BROKER RESPONSE", "AUTH!")),
        (b"PROXY BROKER UNEXPECTED \x01x", ErrorReply("PROXY BROKER UNEXPECTED", "x")),
        (b"PROXY PROTOCOL STORE x", ErrorReply("PROXY PROTOCOL STORE", "x")),
        (b"PROXY PROTOCOL BLOCKED reason=spam", ErrorReply("PROXY PROTOCOL BLOCKED", "spam")),
    ],
)
def test_a_problem_with_more_to_say_keeps_it(data: bytes, expected: ErrorReply) -> None:
    assert decode_error_reply(data) == expected
    assert encode_error_reply(expected) == data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"AUTH ",
        b"CMD",
        b"CMD NOTHING",
        b"BLOCKED",
        b"BLOCKED reason=other",
        b"BLOCKED reason=spam,notice=1",
        b"PROXY",
        b"PROXY BROKER",
        b"PROXY BROKER TRANSPORT HANDSHAKE",
        b"PROXY BROKER RESPONSE \x05AUTH",
        b"PROXY BROKER RESPONSE \x04AUTH!",
        b"PROXY PROTOCOL " * 9 + b"AUTH",
        "ÄUTH".encode(),
    ],
)
def test_unknown_error_codes_are_refused(data: bytes) -> None:
    with pytest.raises(BadBytesError):
        decode_error_reply(data)


@given(st.binary(max_size=80))
def test_hostile_bytes_are_refused_or_keep_their_meaning(data: bytes) -> None:
    try:
        problem = decode_error_reply(data)
    except BadBytesError:
        return
    assert decode_error_reply(encode_error_reply(problem)).code == problem.code


@pytest.mark.parametrize(
    "code, kind",
    [
        ("AUTH", GoneError),
        ("PROXY PROTOCOL AUTH", GoneError),
        ("BLOCKED", GoneError),
        ("QUOTA", BusyError),
        ("PROXY PROTOCOL QUOTA", BusyError),
        ("PROXY BROKER NETWORK", UnavailableError),
        ("PROXY BROKER TIMEOUT", UnavailableError),
        ("PROXY BROKER HOST", RejectedError),
        ("LARGE_MSG", RejectedError),
        ("NO_MSG", RejectedError),
        ("CMD SYNTAX", RejectedError),
    ],
)
def test_the_error_says_what_to_do(code: str, kind: type[Exception]) -> None:
    assert isinstance(error_of(ErrorReply(code)), kind)
