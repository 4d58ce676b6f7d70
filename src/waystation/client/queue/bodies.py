"""Decrypts bodies from the server: messages, quota markers and notifications.

The nonce of a message is its id, so a message that is delivered again has the same ciphertext.
"""

import msgspec

from .boxes import nonce24, unseal_padded
from .encoding import BadBytesError, Reader

SEALED_BYTES = 16_122
_MARKER = b"QUOTA "


class Body(msgspec.Struct, frozen=True):
    """A message as its sender sent it to the server."""

    sent_at_s: int  # the server's clock
    notify: bool
    text: bytes


class QuotaMarker(msgspec.Struct, frozen=True):
    """The queue was full at this time: the sender was refused and waits until it is read."""

    sent_at_s: int


class NotificationMeta(msgspec.Struct, frozen=True):
    message_id: bytes
    sent_at_s: int


def open_body(derived: bytes, message_id: bytes, sealed: bytes) -> Body | QuotaMarker:
    """`derived` is HSalsa20 of the secret that recipient and server share."""
    if len(sealed) != SEALED_BYTES:
        raise BadBytesError(f"a message of {len(sealed)} bytes")
    text = unseal_padded(derived, nonce24(message_id), sealed)
    if text.startswith(_MARKER):  # no time begins so: it would be in the year 185 billion
        reader = Reader(text[len(_MARKER) :])
        marker = QuotaMarker(reader.i64())
        reader.end()
        return marker
    reader = Reader(text)
    sent_at_s, notify = reader.i64(), reader.flag()
    if reader.take(1) != b" ":
        raise BadBytesError("no blank between the flag and the body")
    return Body(sent_at_s, notify, reader.tail())


def open_notification(derived: bytes, nonce: bytes, sealed: bytes) -> NotificationMeta:
    """Bytes after the time belong to later versions."""
    reader = Reader(unseal_padded(derived, nonce, sealed))
    return NotificationMeta(reader.short(), reader.i64())
