"""One client's session: blocks in, commands out; answers in, blocks out.

Rule 1: the first block is the client's hello. An invalid one closes the connection without an
        answer; later blocks are always answered. For a service, a third block follows the hellos.
Rule 2: answers and events are sent in the order of `say`, as many in a block as fit.
Rule 3: a block is built when the socket asks for it. Until then answers wait without padding, and
        their size is known.

A core: no socket, no clock, no store.
"""

from collections import deque
from typing import Final

from waystation.queue.errors import RefusedError
from waystation.queue.model import DhPrivateKey
from waystation.queue.wire.handshake import Agreement, ServerHandshake
from waystation.queue.wire.responses import Response, encode_response
from waystation.queue.wire.transmission import (
    NOT_A_BATCH,
    Received,
    decode_batch,
    encode_answer,
    fits_batch,
    join_batch,
)

_NOTHING: Final[list[Received]] = []


class Session:
    __slots__ = ("_agreement", "_handshake", "_said", "_third", "said_bytes")

    def __init__(self, handshake: ServerHandshake) -> None:
        self._handshake: ServerHandshake | None = handshake
        self._agreement: Agreement | None = None
        self._third: bytes | None = None  # the block that only services get
        self._said: deque[bytes] | None = None  # only while something waits: most are idle
        self.said_bytes = 0

    # Inbound

    def hello(self) -> bytes:
        """The first block, which the server sends."""
        assert self._handshake is not None
        return self._handshake.hello()

    def shown(self, chain: tuple[bytes, ...]) -> None:
        """The client's certificates from TLS; called before its hello."""
        assert self._handshake is not None
        self._handshake.shown = chain

    def receive(self, block: bytes) -> list[Received]:
        """The commands of a block, each decoded or refused. Raises `BadHelloError` for a first
        block that closes the connection, `BadServiceError` for one that must be answered."""
        agreement = self._agreement
        if agreement is None:
            assert self._handshake is not None
            self._agreement = self._handshake.accept(block)
            self._handshake = None
            return _NOTHING
        try:
            content = agreement.blocks.open(block)
        except RefusedError:
            return [NOT_A_BATCH]
        return decode_batch(content, agreement.dialect)

    @property
    def is_agreed(self) -> bool:
        return self._agreement is not None

    @property
    def agreement(self) -> Agreement:
        assert self._agreement is not None
        return self._agreement

    @property
    def version(self) -> int:
        return self.agreement.dialect.version

    @property
    def session_key(self) -> DhPrivateKey | None:
        return self.agreement.session_key

    # Outbound

    def say(self, corr_id: bytes, entity_id: bytes, response: Response) -> None:
        dialect = self.agreement.dialect
        encoded = encode_response(response, dialect.version)
        self.hand_on(encode_answer(corr_id, entity_id, encoded, dialect))

    def hand_on(self, item: bytes) -> None:
        """Queues an encoded transmission unchanged."""
        if self._said is None:
            self._said = deque((item,))
        else:
            self._said.append(item)
        self.said_bytes += len(item)

    def answer_hello(self, block: bytes) -> None:
        """Queues a whole block, before anything else."""
        self._third = block

    def next_block(self) -> bytes | None:
        """The next block to send, or None if nothing waits."""
        if self._third is not None:
            third, self._third = self._third, None
            return third
        said = self._said
        if said is None:
            return None
        items = [said.popleft()]
        size = 2 + len(items[0])
        while said and fits_batch(size, len(items), said[0]):
            size += 2 + len(said[0])
            items.append(said.popleft())
        self.said_bytes -= size - 2 * len(items)
        if not said:
            self._said = None
        return self.agreement.blocks.seal(join_batch(items))
