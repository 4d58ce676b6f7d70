"""Blocks: everything in both directions is exactly 16,384 bytes.

Rule 1: without inner encryption a block is its content, padded. With it, a tag and the ciphertext
        of the padded content; each direction has a chain of keys, one for each block.
Rule 2: a block that cannot be decrypted is answered with `BLOCK`. It uses up its key, so the next
        block can be decrypted again.
"""

from typing import Final, Protocol

from waystation.queue.errors import Code, RefusedError
from waystation.queue.model import SessionId
from waystation.queue.wire.boxes import (
    TAG_BYTES,
    box_key,
    hkdf_sha512,
    open_padded,
    pad,
    seal_padded,
    unpad,
)
from waystation.queue.wire.fields import FieldError

BLOCK_BYTES: Final = 16384
CONTENT_BYTES_MAX: Final = BLOCK_BYTES - 2


class Blocks(Protocol):
    """One end of a connection: encodes content as blocks and decodes it."""

    def seal(self, content: bytes) -> bytes: ...

    def open(self, block: bytes) -> bytes:
        """Raises `RefusedError` with `BLOCK` for an invalid block."""
        ...


def seal_plain(content: bytes) -> bytes:
    return pad(content, BLOCK_BYTES)


def open_plain(block: bytes) -> bytes:
    try:
        return unpad(block)
    except FieldError as error:
        raise RefusedError(Code.BLOCK) from error


class PlainBlocks:
    """For hellos, clients without a key, and proxies, which encrypt by themselves."""

    __slots__ = ()

    def seal(self, content: bytes) -> bytes:
        return seal_plain(content)

    def open(self, block: bytes) -> bytes:
        return open_plain(block)


class ChainedBlocks:
    """Inner encryption: a key for each block, from which earlier keys cannot be derived."""

    __slots__ = ("_receiving", "_sealed_bytes", "_sending")

    def __init__(self, sending: bytes, receiving: bytes, *, block_bytes: int = BLOCK_BYTES) -> None:
        self._sending = sending
        self._receiving = receiving
        self._sealed_bytes = block_bytes - TAG_BYTES

    def seal(self, content: bytes) -> bytes:
        self._sending, key, nonce = next_link(self._sending)
        return seal_padded(box_key(key), nonce, content, self._sealed_bytes)

    def open(self, block: bytes) -> bytes:
        self._receiving, key, nonce = next_link(self._receiving)
        try:
            return open_padded(box_key(key), nonce, block)
        except FieldError as error:
            raise RefusedError(Code.BLOCK) from error


def chain_keys(session_id: SessionId, secret: bytes) -> tuple[bytes, bytes]:
    """The first keys of both chains: server to client, and client to server."""
    keys = hkdf_sha512(session_id, secret, b"SimpleXSbChainInit", 64)
    return keys[:32], keys[32:]


def next_link(chain: bytes) -> tuple[bytes, bytes, bytes]:
    """The next key of the chain, the key of this block, and its nonce."""
    out = hkdf_sha512(b"", chain, b"SimpleXSbChain", 88)
    return out[:32], out[32:64], out[64:]
