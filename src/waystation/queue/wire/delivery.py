"""Encrypts bodies and notifications for the recipient, by the server.

An observer of both sides of the server cannot match messages by their ciphertext.
The id of a message is its nonce, so delivering it again gives the same bytes.
"""

from typing import Final

from waystation.queue.model import BoxKey, Message, MessageId
from waystation.queue.wire import fields
from waystation.queue.wire.boxes import open_padded, seal_padded
from waystation.queue.wire.fields import FieldError, Reader

_BODY_BYTES: Final = 16106  # the longest body of any version, with its header
_META_BYTES: Final = 128
_MARKER: Final = b"QUOTA "

ENCRYPTED_BODY_BYTES: Final = 16122
ENCRYPTED_META_BYTES: Final = 144


def encrypt_message(key: BoxKey, message: Message) -> bytes:
    """The same length for every message, also for the quota marker."""
    at = fields.i64(message.accepted_at_s)
    if message.body is None:
        plain = _MARKER + at
    else:
        plain = at + (b"T " if message.notify else b"F ") + message.body
    return seal_padded(key, message.message_id, plain, _BODY_BYTES)


def decrypt_message(key: BoxKey, message_id: MessageId, encrypted: bytes) -> Message:
    """Decrypts as a recipient, for tests and tools. `FieldError` if it is invalid."""
    plain = open_padded(key, message_id, encrypted)
    if plain.startswith(_MARKER) and len(plain) == len(_MARKER) + 8:
        return Message(message_id, Reader(plain, len(_MARKER)).i64())
    reader = Reader(plain)
    at, notify = reader.i64(), reader.flag()
    if reader.byte() != 0x20:
        raise FieldError("no blank before the body")
    return Message(message_id, at, notify, reader.tail())


def encrypt_meta(key: BoxKey, nonce: bytes, message_id: MessageId, accepted_at_s: int) -> bytes:
    """The content of `NMSG`: the id and time of a message."""
    plain = fields.short(message_id) + fields.i64(accepted_at_s)
    return seal_padded(key, nonce, plain, _META_BYTES)


def decrypt_meta(key: BoxKey, nonce: bytes, encrypted: bytes) -> tuple[MessageId, int]:
    """Additional fields of later servers are ignored."""
    reader = Reader(open_padded(key, nonce, encrypted))
    return MessageId(reader.short()), reader.i64()
