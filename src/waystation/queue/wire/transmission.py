"""Transmissions: commands and answers with ids and proofs, and their batches.

Rule 1: a malformed batch is one refusal, `BLOCK` without ids. In a well-formed batch every
        transmission is decoded or refused alone.
Rule 2: the signed bytes begin with the session id, which is sent at version 6 only.
Rule 3: errors of the command are reported only if its transmission is valid: the proof must have a
        known length (`BLOCK` with the correlation id), and at version 6 the session must be ours
        (`SESSION`).
Rule 4: a batch holds 1 to 255 transmissions and leaves room for the tag of the inner encryption,
        whether there is one or not.
"""

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import msgspec

from waystation.queue.errors import Code, Fault, RefusedError
from waystation.queue.model import NO_CORR_ID, NO_ENTITY, CorrId, EntityId, SessionId
from waystation.queue.wire import fields
from waystation.queue.wire.commands import Command, decode_command, misplaced
from waystation.queue.wire.fields import FieldError, Reader

BATCH_BYTES_MAX: Final = 16365  # 16384 - 2 of the padding - 1 of the count - 16 of the tag
BATCH_ITEMS_MAX: Final = 255
TRANSMISSION_BYTES_MAX: Final = BATCH_BYTES_MAX - 2
PROOF_BYTES: Final = frozenset({0, 64, 80, 114})  # none, Ed25519, X25519, Ed448
_SERVICE_PROOF_BYTES: Final = 64


class Dialect(msgspec.Struct, frozen=True, gc=False):
    """The encoding of one session: its version and its id."""

    version: int
    session_id: SessionId
    signed_prefix: bytes = b""  # filled in below

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "signed_prefix", fields.short(self.session_id))


class Transmission(msgspec.Struct, frozen=True, gc=False):
    """A well-formed command with its ids and proof."""

    corr_id: CorrId
    entity_id: EntityId
    command: Command
    proof: bytes = b""  # of a length in `PROOF_BYTES`
    authorized: bytes = b""  # the bytes that the proof covers; empty without one
    service_proof: bytes | None = None


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """The answer to an invalid transmission."""

    corr_id: CorrId
    entity_id: EntityId
    fault: Fault


Received: TypeAlias = Transmission | Refusal

NOT_A_BATCH: Final = Refusal(NO_CORR_ID, NO_ENTITY, Code.BLOCK)


# --- reading -------------------------------------------------------------------------------------


def split_batch(content: bytes) -> list[bytes]:
    """The transmissions in the content of a block; `FieldError` unless it is one whole batch."""
    end = len(content)
    if not end or not content[0]:
        raise FieldError("empty batch")
    items: list[bytes] = []
    at = 1
    for _ in range(content[0]):
        start = at + 2
        at = start + int.from_bytes(content[at:start], "big")
        items.append(content[start:at])
    if at != end:
        # Also true when the last item reached beyond the end.
        raise FieldError("lengths do not match the size of the batch")
    return items


def decode_batch(content: bytes, dialect: Dialect) -> list[Received]:
    """Every command of a block, in order, each decoded or refused."""
    try:
        items = split_batch(content)
    except FieldError:
        return [NOT_A_BATCH]
    return [decode_transmission(item, dialect) for item in items]


def decode_transmission(data: bytes, dialect: Dialect) -> Received:
    version = dialect.version
    service_proof = None
    try:
        # Lengths are read inline: this runs for each of 135 subscriptions in a block.
        at = 1 + data[0]
        proof = data[1:at]
        if version >= 16 and proof:
            mark = data[at]
            at += 1
            if mark == 0x31:
                if data[at] != _SERVICE_PROOF_BYTES:
                    return NOT_A_BATCH
                service_proof = data[at + 1 : at + 65]
                at += 65
            elif mark != 0x30:
                return NOT_A_BATCH
        session_ours = True
        if version < 7:
            end = at + 1 + data[at]
            session_ours = data[at + 1 : end] == dialect.session_id
            at = end
        corr_at = at + 1
        entity_at = corr_at + data[at] + 1
        command_at = entity_at + data[entity_at - 1]
    except IndexError:
        return NOT_A_BATCH
    if command_at > len(data):
        return NOT_A_BATCH
    corr_id = CorrId(data[corr_at : entity_at - 1])
    if not session_ours:
        return Refusal(corr_id, NO_ENTITY, Code.SESSION)
    if len(proof) not in PROOF_BYTES:
        return Refusal(corr_id, NO_ENTITY, Code.BLOCK)
    entity_id = EntityId(data[entity_at:command_at])
    try:
        command = decode_command(data, version, command_at)
    except RefusedError as refused:
        return Refusal(corr_id, entity_id, refused.fault)
    fault = misplaced(command, proof, entity_id)
    if fault is not None:
        return Refusal(corr_id, entity_id, fault)
    if not proof:
        return Transmission(corr_id, entity_id, command)
    authorized = dialect.signed_prefix + data[at:]
    return Transmission(corr_id, entity_id, command, proof, authorized, service_proof)


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A server's transmission as its client sees it; an event has no correlation id."""

    corr_id: CorrId
    entity_id: EntityId
    response: bytes


def decode_answer(data: bytes, dialect: Dialect) -> Answer:
    """Raises `FieldError` if it is invalid. A proof is ignored: servers send none."""
    reader = Reader(data)
    proof = reader.short()
    if dialect.version >= 16 and proof and reader.maybe():
        reader.short()
    if dialect.version < 7 and reader.short() != dialect.session_id:
        raise FieldError("session id of another session")
    corr_id, entity_id = CorrId(reader.short()), EntityId(reader.short())
    return Answer(corr_id, entity_id, reader.tail())


# --- writing -------------------------------------------------------------------------------------


def encode_answer(corr_id: bytes, entity_id: bytes, response: bytes, dialect: Dialect) -> bytes:
    """A server's transmission: the encoded response with its ids, without any proof."""
    if dialect.version >= 7:
        return b"\0%c%b%c%b%b" % (len(corr_id), corr_id, len(entity_id), entity_id, response)
    return (
        b"\0" + dialect.signed_prefix + fields.short(corr_id) + fields.short(entity_id) + response
    )


def authorized_bytes(corr_id: bytes, entity_id: bytes, command: bytes, dialect: Dialect) -> bytes:
    """The bytes that a client proves: the whole transmission and the session id."""
    return dialect.signed_prefix + fields.short(corr_id) + fields.short(entity_id) + command


def encode_transmission(
    corr_id: bytes, entity_id: bytes, command: bytes, dialect: Dialect, proof: bytes = b""
) -> bytes:
    """A client's transmission, for the proxy role, which proves nothing, and for tests."""
    service = fields.NOTHING if dialect.version >= 16 and proof else b""
    session = dialect.signed_prefix if dialect.version < 7 else b""
    said = fields.short(corr_id) + fields.short(entity_id) + command
    return fields.short(proof) + service + session + said


def join_batch(items: Sequence[bytes]) -> bytes:
    """The content of one block; the caller has checked that it fits."""
    assert 1 <= len(items) <= BATCH_ITEMS_MAX
    parts = [bytes((len(items),))]
    for item in items:
        parts += (len(item).to_bytes(2, "big"), item)
    return b"".join(parts)


def fits_batch(batch_bytes: int, items: int, item: bytes) -> bool:
    """Whether one more transmission fits into a batch of this size, lengths included."""
    return items < BATCH_ITEMS_MAX and batch_bytes + 2 + len(item) <= BATCH_BYTES_MAX


def pack_batches(items: Iterable[bytes]) -> list[bytes]:
    """As few contents of blocks as hold all transmissions, in order.

    They are filled from the end, as clients expect: of 300 subscriptions the first block has the
    remainder.
    """
    batches: list[bytes] = []
    batch: list[bytes] = []
    size = 0
    for item in reversed(list(items)):
        assert len(item) <= TRANSMISSION_BYTES_MAX, "no block can hold it"
        if not fits_batch(size, len(batch), item):
            batches.append(join_batch(batch[::-1]))
            batch, size = [], 0
        batch.append(item)
        size += 2 + len(item)
    if batch:
        batches.append(join_batch(batch[::-1]))
    batches.reverse()
    return batches
