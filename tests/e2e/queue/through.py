"""A sender behind a proxy: both layers made by the test, over its blocking client."""

import secrets
from collections import deque
from collections.abc import Iterable

from tests.e2e.queue.peer import Peer, Signer
from tests.e2e.queue.process import QueueServer
from waystation.queue.model import BoxKey, CorrId, EntityId, Fingerprint
from waystation.queue.wire.boxes import agree, new_dh_pair
from waystation.queue.wire.certificates import fingerprint_of, leaf_key
from waystation.queue.wire.commands import Command, Pfwd, Prxy, RelayAddress, encode_command
from waystation.queue.wire.forwarding import open_inner_answer, seal_inner
from waystation.queue.wire.responses import Pkey, Pres, Response, decode_response
from waystation.queue.wire.signed_key import open_signed_key
from waystation.queue.wire.transmission import (
    Dialect,
    authorized_bytes,
    decode_answer,
    encode_transmission,
    join_batch,
    split_batch,
)

VERSION = 17


def address_of(server: QueueServer) -> RelayAddress:
    identity = fingerprint_of(server.identity.chain[1])
    return RelayAddress((b"127.0.0.1",), b"%d" % server.port, Fingerprint(identity))


def introduce(proxy: Peer, relay: RelayAddress, password: bytes | None = None) -> Response:
    return proxy.ask(Prxy(relay, password))


class Through:
    """Commands for a relay, through a proxy."""

    def __init__(self, proxy: Peer, pkey: Response) -> None:
        assert isinstance(pkey, Pkey), pkey
        self.proxy = proxy
        self.pkey = pkey
        self.relay_key = open_signed_key(pkey.signed_key, leaf_key(pkey.chain))
        self.dialect = Dialect(VERSION, pkey.session_id)

    def transmission(
        self, command: Command | bytes, entity_id: bytes = b"", signer: Signer | None = None
    ) -> bytes:
        """What the relay is to read."""
        corr_id = CorrId(secrets.token_bytes(24))
        said = command if isinstance(command, bytes) else encode_command(command, VERSION)
        proof = b""
        if signer is not None:
            authorized = authorized_bytes(corr_id, EntityId(entity_id), said, self.dialect)
            proof = signer.prove(authorized, corr_id, self.relay_key)
        return encode_transmission(corr_id, EntityId(entity_id), said, self.dialect, proof)

    def seal(self, content: bytes, corr_id: CorrId) -> tuple[Pfwd, BoxKey]:
        public, private = new_dh_pair()
        key = agree(self.relay_key, private)
        return Pfwd(VERSION, public, seal_inner(key, corr_id, content)), key

    def forward(self, content: bytes) -> Response | tuple[Response, BoxKey, CorrId]:
        """The proxy's own answer to a batch for the relay."""
        corr_id = CorrId(secrets.token_bytes(24))
        command, key = self.seal(content, corr_id)
        response = self.proxy.ask(command, self.pkey.session_id, corr_id=corr_id)
        return (response, key, corr_id) if isinstance(response, Pres) else response

    def ask(
        self, command: Command | bytes, entity_id: bytes = b"", signer: Signer | None = None
    ) -> Response:
        """The relay's answer, or the proxy's if it did not come so far."""
        outcome = self.forward(join_batch([self.transmission(command, entity_id, signer)]))
        if not isinstance(outcome, tuple):
            return outcome
        response, key, corr_id = outcome
        assert isinstance(response, Pres)
        return self.open(response, key, corr_id)

    def open(self, response: Pres, key: BoxKey, corr_id: CorrId) -> Response:
        (item,) = split_batch(open_inner_answer(key, corr_id, response.encrypted))
        return decode_response(decode_answer(item, self.dialect).response, VERSION)

    def ask_all(
        self, commands: Iterable[tuple[Command, bytes, Signer | None]], window: int
    ) -> list[Response]:
        """Many at once, at most `window` of them under way; answers in the order asked."""
        waiting: deque[CorrId] = deque()
        keys: dict[bytes, BoxKey] = {}
        answers: dict[bytes, Response] = {}
        order: list[CorrId] = []

        def take() -> None:
            answer = self.proxy.next()
            key = keys.pop(answer.corr_id)
            waiting.remove(CorrId(answer.corr_id))
            response = answer.response
            if isinstance(response, Pres):
                response = self.open(response, key, CorrId(answer.corr_id))
            answers[answer.corr_id] = response

        for command, entity_id, signer in commands:
            while len(waiting) >= window:
                take()
            corr_id = CorrId(secrets.token_bytes(24))
            content = join_batch([self.transmission(command, entity_id, signer)])
            forwarded, keys[corr_id] = self.seal(content, corr_id)
            said, _ = self.proxy.transmission(forwarded, self.pkey.session_id, corr_id=corr_id)
            self.proxy.write(said)
            waiting.append(corr_id)
            order.append(corr_id)
        while waiting:
            take()
        return [answers[corr_id] for corr_id in order]
