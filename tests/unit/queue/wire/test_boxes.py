"""Boxes, padding and key derivation beyond the test vectors."""

import os

import pytest
from cryptography.hazmat.primitives.hashes import SHA512
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from waystation.queue.errors import WeakKeyError
from waystation.queue.model import DhKey, DhPrivateKey
from waystation.queue.wire import boxes
from waystation.queue.wire.fields import FieldError

SMALL_ORDER = [
    bytes(32),
    b"\x01" + bytes(31),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
]


def test_libsodium_has_the_step_where_pynacl_brings_it() -> None:
    """If this fails, PyNaCl hides the function now: all still works, at 70 µs more a block."""
    assert boxes.hsalsa20_is_native()


def test_both_implementations_of_hsalsa20_agree() -> None:
    for _ in range(20):
        key = os.urandom(32)
        assert boxes.box_key(key) == boxes.plain_hsalsa20(key)


def test_agreeing_is_taking_the_step_with_the_secret() -> None:
    public, private = boxes.new_dh_pair()
    other_public, other_private = boxes.new_dh_pair()

    assert boxes.agree(public, other_private) == boxes.agree(other_public, private)
    secret = boxes.agree_raw(public, other_private)
    assert boxes.agree(public, other_private) == boxes.box_key(secret)


@pytest.mark.parametrize("public", SMALL_ORDER)
def test_keys_of_small_order_are_refused(public: bytes) -> None:
    _, private = boxes.new_dh_pair()

    with pytest.raises(WeakKeyError):
        boxes.agree(DhKey(public), private)
    with pytest.raises(WeakKeyError):
        boxes.agree_raw(DhKey(public), DhPrivateKey(private))


@pytest.mark.parametrize("salt", [b"", b"salt", bytes(64), bytes(200)])
@pytest.mark.parametrize("size", [1, 64, 65, 88, 200])
def test_derivation_is_that_of_rfc_5869(salt: bytes, size: int) -> None:
    theirs = HKDF(SHA512(), size, salt, b"info").derive(b"secret")

    assert boxes.hkdf_sha512(salt, b"secret", b"info", size) == theirs


@pytest.mark.parametrize("padded", [b"", b"\0", b"\0\x01", b"\xff\xff" + bytes(100)])
def test_what_is_not_padded(padded: bytes) -> None:
    with pytest.raises(FieldError):
        boxes.unpad(padded)


def test_a_message_that_is_too_long_for_its_padding_is_our_mistake() -> None:
    assert boxes.pad(bytes(14), 16) == b"\0\x0e" + bytes(14)
    with pytest.raises(AssertionError):
        boxes.pad(bytes(15), 16)


def test_a_box_opens_with_its_key_and_nonce_only() -> None:
    key, other = boxes.box_key(os.urandom(32)), boxes.box_key(os.urandom(32))
    nonce = os.urandom(24)
    boxed = boxes.seal(key, nonce, b"message")

    assert boxes.open_box(key, nonce, boxed) == b"message"
    for wrong in (
        (other, nonce, boxed),
        (key, nonce[::-1], boxed),
        (key, nonce, boxed[:-1]),
        (key, nonce, boxed[:15]),
        (key, nonce, b""),
    ):
        with pytest.raises(FieldError):
            boxes.open_box(*wrong)


def test_any_correlation_id_is_a_nonce() -> None:
    assert boxes.nonce_of(b"") == bytes(24)
    assert boxes.nonce_of(b"abc") == b"abc" + bytes(21)
    assert boxes.nonce_of(bytes(range(30))) == bytes(range(24))
