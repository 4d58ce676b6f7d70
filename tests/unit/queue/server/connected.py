"""Clients without a socket, for tests of the server's cores."""

import secrets

from waystation.queue.model import (
    CURRENT_VERSIONS,
    DhPrivateKey,
    NotifierId,
    RecipientId,
    SessionId,
)
from waystation.queue.server.services import ServiceSession
from waystation.queue.server.subscribers import Subscription
from waystation.queue.wire.block import seal_plain
from waystation.queue.wire.handshake import (
    ClientHello,
    ServerHandshake,
    encode_client_hello,
    expected_identity,
)
from waystation.queue.wire.responses import Response

SESSION_ID = SessionId(bytes(range(32)))


class Told:
    """A `Subscriber` that keeps what it is told."""

    def __init__(self, *, congested: bool = False) -> None:
        self.subscriptions: dict[RecipientId, Subscription] = {}
        self.notifiers: dict[NotifierId, None] = {}
        self.deferred: dict[RecipientId, Subscription] = {}
        self.told: list[tuple[bytes, Response]] = []
        self.congested = congested
        self.woken = 0
        self.service: ServiceSession | None = None
        self.gone = False

    def tell(self, entity_id: bytes, response: Response) -> None:
        self.told.append((entity_id, response))

    def wake(self) -> None:
        self.woken += 1


class RecordedLine:
    """A `Line` without a socket."""

    def __init__(self) -> None:
        self.origin = ""
        self.paused = False
        self.ended = ""
        self.touched = 0

    def touch(self) -> None:
        self.touched += 1

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def finish(self) -> None:
        self.ended = self.ended or "finished"

    def abort(self) -> None:
        self.ended = self.ended or "aborted"


class Hellos:
    """The two hellos of one session; `chain` and key as tests have them."""

    def __init__(self, chain: tuple[bytes, ...], leaf_key: object) -> None:
        self.chain = chain
        self._leaf_key = leaf_key

    def server(self) -> ServerHandshake:
        return ServerHandshake(
            versions=CURRENT_VERSIONS,
            session_id=SESSION_ID,
            chain=self.chain,
            leaf_key=self._leaf_key,  # pyright: ignore[reportArgumentType]
            private=DhPrivateKey(secrets.token_bytes(32)),
        )

    def client(self, version: int = 18, key_hash: bytes | None = None) -> bytes:
        """Without a key, so that blocks are plain."""
        hash_ = key_hash or expected_identity(self.chain)
        return seal_plain(encode_client_hello(ClientHello(version, hash_)))
