"""A transmission is a command with its ids and its authorization; several make a batch.

Rule 1: the signed bytes begin with the id of the TLS session, so that nothing can be replayed in
        another one; from version 7 on the id is not sent, because both sides know it.
Rule 2: a batch holds at most 255 transmissions and leaves room for the tag of an encrypted block,
        also where no block is encrypted.
"""

from collections.abc import Iterable, Iterator

import msgspec

from .answers import WITHOUT_ENTITY, Answer, decode_answer
from .encoding import BadBytesError, Reader, short, u16
from .hello import ServiceSession
from .keys import PrivateKey

BATCH_BYTES_MAX = 16_365  # of all (2 + length)
BATCH_ITEMS_MAX = 255


class Reply(msgspec.Struct, frozen=True):
    """A server's transmission: answer, queue id, correlation id (none: an event)."""

    corr_id: bytes
    entity_id: bytes
    answer: Answer


def encode_transmission(
    command: bytes,
    *,
    version: int,
    session_id: bytes,
    corr_id: bytes,
    entity_id: bytes = b"",
    key: PrivateKey | None = None,
    server_key: bytes | None = None,
    service: ServiceSession | None = None,
) -> bytes:
    """`service`: makes the second signature of a service."""
    ids = short(corr_id) + short(entity_id)
    sent = ids + command if version >= 7 else short(session_id) + ids + command
    if key is None:
        return b"\0" + sent
    authorized = short(session_id) + ids + command
    if service is not None:
        shown = short(key.authorize(service.fingerprint + authorized, corr_id, server_key))
        return shown + b"1" + short(service.key.sign(authorized)) + sent
    auth = short(key.authorize(authorized, corr_id, server_key))
    return auth + (b"0" if version >= 16 else b"") + sent


def decode_reply(data: bytes, *, version: int, session_id: bytes) -> Reply:
    reader = Reader(data)
    if reader.short():
        raise BadBytesError("a server's transmission with an authorization")
    if version < 7 and reader.short() != session_id:
        raise BadBytesError("a transmission of another session")
    corr_id, entity_id = reader.short(), reader.short()
    answer = decode_answer(reader.tail(), version)
    if not entity_id and not isinstance(answer, WITHOUT_ENTITY):
        raise BadBytesError("an answer without the id of its queue")
    return Reply(corr_id, entity_id, answer)


def encode_batch(transmissions: Iterable[bytes]) -> bytes:
    """The content of one block."""
    parts = list(transmissions)
    assert 1 <= len(parts) <= BATCH_ITEMS_MAX
    return len(parts).to_bytes(1) + b"".join(u16(len(part)) + part for part in parts)


def decode_batch(content: bytes) -> list[bytes]:
    reader = Reader(content)
    parts = [reader.large() for _ in range(reader.count())]
    reader.end()
    return parts


def batches(transmissions: Iterable[bytes]) -> Iterator[bytes]:
    """As few block contents as possible, in order."""
    waiting: list[bytes] = []
    size = 0
    for part in transmissions:
        needed = 2 + len(part)
        if needed > BATCH_BYTES_MAX:
            raise BadBytesError(f"a transmission of {len(part)} bytes does not fit into a block")
        if waiting and (size + needed > BATCH_BYTES_MAX or len(waiting) == BATCH_ITEMS_MAX):
            yield encode_batch(waiting)
            waiting, size = [], 0
        waiting.append(part)
        size += needed
    if waiting:
        yield encode_batch(waiting)
