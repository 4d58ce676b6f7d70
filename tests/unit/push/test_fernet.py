"""Our Fernet against the published vector, against `cryptography`, and against hostile input."""

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode

import pytest
from cryptography.fernet import Fernet as Reference
from cryptography.fernet import InvalidToken
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from waystation.push.fernet import Fernet

# The token of generate.json and verify.json in github.com/fernet/spec.
PUBLISHED_KEY = urlsafe_b64decode("cw_0x689RpI-jtRR7oE8h_eQsKImvJapLeSbXpwF4e4=")
PUBLISHED_TOKEN = urlsafe_b64decode(
    "gAAAAAAdwJ6wAAECAwQFBgcICQoLDA0ODy021cpGVWKZ_eEwCGM4BLLF_5CV9dOPmrhuVUPgJobwOz7JcbmrR64jVmpU4IwqDA=="
)


def signed(key: bytes, body: bytes) -> bytes:
    """A token whose MAC is right, whatever its inside."""
    return body + hmac.digest(key[:16], body, "sha256")


def raw_token(key: bytes, padded: bytes, iv: bytes = bytes(16), version: int = 0x80) -> bytes:
    encryptor = Cipher(algorithms.AES(key[16:]), modes.CBC(iv)).encryptor()
    return signed(key, bytes([version]) + bytes(8) + iv + encryptor.update(padded))


def test_the_published_token_opens() -> None:
    assert Fernet(PUBLISHED_KEY).open(PUBLISHED_TOKEN) == b"hello"


def test_the_time_inside_is_not_checked() -> None:
    fernet = Fernet(PUBLISHED_KEY)

    assert fernet.open(fernet.seal(b"old", 0)) == b"old"
    assert fernet.open(fernet.seal(b"future", 2**40)) == b"future"


@pytest.mark.parametrize(
    "case, token",
    [
        ("empty", b""),
        ("too short", PUBLISHED_TOKEN[:40]),
        ("no ciphertext", signed(PUBLISHED_KEY, b"\x80" + bytes(24))),
        ("another version", raw_token(PUBLISHED_KEY, b"hello" + b"\x0b" * 11, version=0x81)),
        ("a flipped MAC", PUBLISHED_TOKEN[:-1] + bytes([PUBLISHED_TOKEN[-1] ^ 1])),
        ("a flipped IV", PUBLISHED_TOKEN[:9] + b"\xff" + PUBLISHED_TOKEN[10:]),
        ("half a block", signed(PUBLISHED_KEY, b"\x80" + bytes(24) + bytes(24))),
        ("padding of zero", raw_token(PUBLISHED_KEY, b"x" * 15 + b"\0")),
        ("padding beyond a block", raw_token(PUBLISHED_KEY, b"x" * 15 + b"\x11")),
        ("uneven padding", raw_token(PUBLISHED_KEY, b"x" * 13 + b"\x01\x02\x03")),
        ("an IV that spoils the padding", raw_token(PUBLISHED_KEY, b"hello" + b"\x0c" * 11)),
    ],
)
def test_what_is_not_a_token_of_this_key_does_not_open(case: str, token: bytes) -> None:
    assert Fernet(PUBLISHED_KEY).open(token) is None, case


@given(key=st.binary(min_size=32, max_size=32), texts=st.lists(st.binary(max_size=200), max_size=4))
def test_cryptography_opens_what_we_seal_and_we_what_it_seals(
    key: bytes, texts: list[bytes]
) -> None:
    """Several in a row, because our contexts outlive a token."""
    ours, reference = Fernet(key), Reference(urlsafe_b64encode(key))

    for text in texts:
        assert reference.decrypt(urlsafe_b64encode(ours.seal(text, 1_700_000_000))) == text
        assert ours.open(urlsafe_b64decode(reference.encrypt(text))) == text


@given(key=st.binary(min_size=32, max_size=32), noise=st.binary(max_size=150))
def test_noise_is_judged_as_cryptography_judges_it(key: bytes, noise: bytes) -> None:
    reference = Reference(urlsafe_b64encode(key))
    for token in (noise, signed(key, b"\x80" + noise)):
        try:
            expected = reference.decrypt(urlsafe_b64encode(token))
        except InvalidToken:
            expected = None

        assert Fernet(key).open(token) == expected


def test_every_token_has_an_iv_of_its_own() -> None:
    fernet = Fernet(bytes(range(32)))

    assert len({fernet.seal(b"same", 0)[9:25] for _ in range(500)}) == 500
