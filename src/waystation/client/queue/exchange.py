"""Matches the answers of one session to its commands. No I/O.

Rule 1: an answer has the correlation id and the queue id of its command; an answer for another
        queue is a fault of the server, and the session ends.
Rule 2: a reply without a correlation id is an event. The answer to a command that is no longer
        awaited is dropped.
Rule 3: correlation ids are random and used once: they are nonces too.
"""

import secrets
from collections.abc import Iterable

import msgspec

from .answers import WITHOUT_ENTITY, Refused
from .block import BlockReader, BlockWriter
from .boxes import NONCE_BYTES
from .commands import Command, encode_command
from .encoding import BadBytesError
from .hello import Session
from .keys import PrivateKey
from .service import signs_twice
from .transmission import (
    BATCH_BYTES_MAX,
    Reply,
    batches,
    decode_batch,
    decode_reply,
    encode_transmission,
)


class Said(msgspec.Struct, frozen=True):
    """An encoded command."""

    corr_id: bytes
    transmission: bytes


class Exchange:
    def __init__(self, session: Session, reader: BlockReader, writer: BlockWriter) -> None:
        self.session = session
        self._reader = reader
        self._writer = writer
        self._waiting: dict[bytes, bytes] = {}  # correlation id -> queue id
        self.blocks_in = 0
        self.blocks_out = 0

    def say(
        self,
        command: Command,
        *,
        entity_id: bytes = b"",
        key: PrivateKey | None = None,
        corr_id: bytes | None = None,
    ) -> Said:
        corr_id = corr_id or secrets.token_bytes(NONCE_BYTES)
        transmission = encode_transmission(
            encode_command(command, self.session.version),
            version=self.session.version,
            session_id=self.session.session_id,
            corr_id=corr_id,
            entity_id=entity_id,
            key=key,
            server_key=self.session.server_key,
            service=self.session.service if signs_twice(command) else None,
        )
        if 2 + len(transmission) > BATCH_BYTES_MAX:  # checked here, so that the caller gets it
            raise BadBytesError(f"{type(command).__name__} is too long for a block")
        self._waiting[corr_id] = entity_id
        return Said(corr_id, transmission)

    def forget(self, corr_id: bytes) -> None:
        """The answer is no longer awaited."""
        self._waiting.pop(corr_id, None)

    def blocks(self, transmissions: Iterable[bytes]) -> list[bytes]:
        out = [self._writer.write(content) for content in batches(transmissions)]
        self.blocks_out += len(out)
        return out

    def block(self, block: bytes) -> list[Reply]:
        """Awaited answers and events, in the order of the server."""
        self.blocks_in += 1
        session = self.session
        heard: list[Reply] = []
        for part in decode_batch(self._reader.read(block)):
            reply = decode_reply(part, version=session.version, session_id=session.session_id)
            if not reply.corr_id:
                heard.append(reply)
                continue
            entity_id = self._waiting.pop(reply.corr_id, None)
            if entity_id is None:
                continue
            if reply.entity_id != entity_id and not (
                not reply.entity_id and isinstance(reply.answer, WITHOUT_ENTITY)
            ):
                raise BadBytesError("an answer for another queue than the command's")
            heard.append(reply)
        for reply in heard:
            if not reply.corr_id and not reply.entity_id and isinstance(reply.answer, Refused):
                raise BadBytesError(
                    f"the server could not read our block: {reply.answer.error_reply}"
                )
        return heard
