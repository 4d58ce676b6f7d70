"""Encryption between sender and recipient."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.client.queue.commands import message_bytes_max
from waystation.client.queue.envelope import (
    TEXT_BYTES_MAX,
    EnvelopeError,
    open_message,
    seal_message,
)
from waystation.client.queue.keys import PrivateKey

RECIPIENT = PrivateKey("x25519", b"r" * 32)
SENDER = PrivateKey("x25519", b"s" * 32)


@given(st.binary(max_size=500))
def test_what_was_sealed_opens(text: bytes) -> None:
    assert open_message(seal_message(text, RECIPIENT.public, SENDER), RECIPIENT) == text


def test_all_messages_have_one_length_and_fit_every_version() -> None:
    lengths = {
        len(seal_message(text, RECIPIENT.public, SENDER))
        for text in (b"", b"hello", b"x" * TEXT_BYTES_MAX)
    }

    assert len(lengths) == 1
    assert max(lengths) <= message_bytes_max(18)
    with pytest.raises(EnvelopeError, match="holds"):
        seal_message(b"x" * (TEXT_BYTES_MAX + 1), RECIPIENT.public, SENDER)


def test_another_recipient_cannot_open_it() -> None:
    sealed = seal_message(b"hello", RECIPIENT.public, SENDER)

    with pytest.raises(EnvelopeError):
        open_message(sealed, PrivateKey.generate("x25519"))
    with pytest.raises(EnvelopeError):
        open_message(sealed[:-1] + bytes([sealed[-1] ^ 1]), RECIPIENT)


@given(st.binary(max_size=300))
def test_other_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(EnvelopeError):
        open_message(body, RECIPIENT)
