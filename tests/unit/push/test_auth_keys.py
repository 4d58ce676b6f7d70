"""Registration secrets (webpush §4.7)."""

import hashlib
import hmac

import pytest

from waystation.push.auth_keys import AuthKeys
from waystation.push.model import Uaid

UAID = Uaid(bytes.fromhex("0f1e2d3c4b5a469788796a5b4c3d2e1f"))


def keys(text: str) -> AuthKeys:
    parsed = AuthKeys.parse(text)
    assert parsed is not None
    return parsed


def test_a_secret_is_the_hmac_of_the_plain_uaid_under_the_key_as_it_is_written() -> None:
    wanted = hmac.new(b"a+b/c=", b"0f1e2d3c4b5a469788796a5b4c3d2e1f", hashlib.sha256).hexdigest()

    assert keys("['a+b/c=']").secret_of(UAID) == wanted


def test_the_first_key_signs_and_all_verify() -> None:
    old, new, both = keys("old"), keys("new"), keys("[new, old]")

    assert both.secret_of(UAID) == new.secret_of(UAID)
    assert both.verify(UAID, new.secret_of(UAID).encode())
    assert both.verify(UAID, old.secret_of(UAID).encode())
    assert not new.verify(UAID, old.secret_of(UAID).encode())


@pytest.mark.parametrize("secret", [b"", b"\xff", b"0" * 64, b"0" * 63])
def test_other_texts_are_no_secret(secret: bytes) -> None:
    assert not keys("key").verify(UAID, secret)


@pytest.mark.parametrize("text", ["", "[]", ' [ "" ] ', "[,]"])
def test_no_key_is_no_keys(text: str) -> None:
    assert AuthKeys.parse(text) is None
