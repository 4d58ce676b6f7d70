"""Blocks: all data on the wire is in blocks of exactly 16384 bytes.

Rule 1: hellos, and all blocks of a session without inner encryption, are only padded.
Rule 2: an encrypted block takes one step of its direction's chain, whether it can be read or not.
"""

from .boxes import TAG_BYTES, Chain, hsalsa20, seal, unseal
from .encoding import BadBytesError, pad, unpad

BLOCK_BYTES = 16_384


def plain_block(content: bytes) -> bytes:
    return pad(content, BLOCK_BYTES)


class BlockWriter:
    __slots__ = ("_chain",)

    def __init__(self, chain: Chain | None) -> None:
        self._chain = chain

    def write(self, content: bytes) -> bytes:
        if self._chain is None:
            return plain_block(content)
        key, nonce = self._chain.step()
        return seal(hsalsa20(key), nonce, pad(content, BLOCK_BYTES - TAG_BYTES))


class BlockReader:
    __slots__ = ("_chain",)

    def __init__(self, chain: Chain | None) -> None:
        self._chain = chain

    def read(self, block: bytes) -> bytes:
        if len(block) != BLOCK_BYTES:
            raise BadBytesError(f"a block of {len(block)} bytes")
        if self._chain is None:
            return unpad(block)
        key, nonce = self._chain.step()
        return unpad(unseal(hsalsa20(key), nonce, block))
