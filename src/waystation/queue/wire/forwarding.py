"""Commands through a proxy: two layers of encryption.

    client → proxy   PFWD v k.pub et      et = the command for the relay, sealed with k
    proxy  → relay   RFWD …               the same with version and key, sealed with the session
    relay  → proxy   RRES …               the answer, sealed twice, in reverse order
    proxy  → client  PRES r

The nonce of an answer is that of its command with the bytes reversed. The inner layers are padded,
so that the proxy cannot tell commands apart; the outer ones need no padding.
"""

from typing import Final

import msgspec

from waystation.queue.errors import Code, RefusedError, WeakKeyError
from waystation.queue.model import BoxKey, CorrId, DhKey, DhPrivateKey
from waystation.queue.wire import fields
from waystation.queue.wire.boxes import agree, nonce_of, open_box, open_padded, seal, seal_padded
from waystation.queue.wire.commands import Command, Lget, Lkey, Send, Skey
from waystation.queue.wire.fields import FieldError, Reader
from waystation.queue.wire.transmission import split_batch

INNER_BYTES: Final = 16226
INNER_ENCRYPTED_BYTES: Final = 16242
FORWARDABLE: Final = (Send, Skey, Lkey, Lget)


class Forwarded(msgspec.Struct, frozen=True, gc=False):
    """One client's command, as the proxy forwards it to the relay."""

    corr_id: CorrId  # the client's, which is the nonce of its layer
    version: int
    key: DhKey
    encrypted: bytes


def is_forwardable(command: Command) -> bool:
    return isinstance(command, FORWARDABLE)


def _answering(corr_id: bytes) -> bytes:
    return nonce_of(corr_id)[::-1]


# --- the proxy -----------------------------------------------------------------------------------


def seal_forwarded(key: BoxKey, corr_id: CorrId, forwarded: Forwarded) -> bytes:
    """The parameter of `RFWD`; `corr_id` is the proxy's own, for the relay."""
    start = fields.short(forwarded.corr_id) + fields.u16(forwarded.version)
    plain = start + fields.dh_key(forwarded.key) + forwarded.encrypted
    return seal(key, nonce_of(corr_id), plain)


def open_forwarded_answer(key: BoxKey, corr_id: CorrId, encrypted: bytes) -> tuple[CorrId, bytes]:
    """Decrypts `RRES`: the client's correlation id, and the layer for the client."""
    reader = Reader(open_box(key, _answering(corr_id), encrypted))
    return CorrId(reader.short()), reader.tail()


# --- the relay -----------------------------------------------------------------------------------


class Inner(msgspec.Struct, frozen=True, gc=False):
    """One command without its layers, and the keys for its answer."""

    forwarded: Forwarded
    key: BoxKey
    transmission: bytes


def open_forwarded(
    key: BoxKey, corr_id: CorrId, encrypted: bytes, session_key: DhPrivateKey
) -> Inner:
    """Raises `RefusedError` with the fault that the relay sends to the proxy."""
    try:
        plain = open_box(key, nonce_of(corr_id), encrypted)
    except FieldError as error:
        raise RefusedError(Code.CRYPTO) from error
    try:
        reader = Reader(plain)
        client_corr_id, version = CorrId(reader.short()), reader.u16()
        forwarded = Forwarded(client_corr_id, version, reader.dh_key(), reader.tail())
    except FieldError as error:
        raise RefusedError(Code.CMD_SYNTAX) from error
    try:
        inner_key = agree(forwarded.key, session_key)
        content = open_padded(inner_key, nonce_of(client_corr_id), forwarded.encrypted)
    except (FieldError, WeakKeyError) as error:
        raise RefusedError(Code.CRYPTO) from error
    try:
        items = split_batch(content)
    except FieldError as error:
        raise RefusedError(Code.BLOCK) from error
    if len(items) != 1:
        raise RefusedError(Code.BLOCK)
    return Inner(forwarded, inner_key, items[0])


def seal_answer(key: BoxKey, corr_id: CorrId, inner: Inner, content: bytes) -> bytes:
    """The parameter of `RRES`: a batch with the one answer, sealed for client and proxy."""
    client = inner.forwarded.corr_id
    sealed = seal_padded(inner.key, _answering(client), content, INNER_BYTES)
    return seal(key, _answering(corr_id), fields.short(client) + sealed)


# --- the client, for tests and tools -------------------------------------------------------------


def seal_inner(key: BoxKey, corr_id: CorrId, content: bytes) -> bytes:
    return seal_padded(key, nonce_of(corr_id), content, INNER_BYTES)


def open_inner_answer(key: BoxKey, corr_id: CorrId, encrypted: bytes) -> bytes:
    return open_padded(key, _answering(corr_id), encrypted)
