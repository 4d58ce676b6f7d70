"""Mistakes planted between a real broker and its real clients are each found by the oracle (P-137).

The saboteur sits where the broker meets the transport and spoils what the broker says. What it
cannot spoil from there (timers, fences, tokens) has scenarios of its own; see test_oracle.py.
"""

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.presence.kit import Node, open_store
from tests.e2e.presence.oracle import Oracle
from tests.e2e.presence.random_clients import RandomClients
from waystation.base.clock import SystemClock
from waystation.net.http2.port import Gone, GrpcStatus, Stream, StreamHandler
from waystation.net.http2.server import Http2Server
from waystation.presence.settings import Presence
from waystation.presence.transport.rpc import RPC_PATH
from waystation.presence.wire import party_presence_pb2 as pb
from waystation.presence.wire.party_presence_pb2 import ClientMessage

pytestmark = [pytest.mark.e2e, pytest.mark.soak]
TTL_MS = 4_000

Spoil = Callable[["Spoiled", ClientMessage], list[ClientMessage]]


class Spoiled:
    """A stream whose messages pass through the saboteur's hands."""

    def __init__(self, stream: Stream, saboteur: "Saboteur") -> None:
        self._stream = stream
        self.saboteur = saboteur
        self.holder: Any = None
        self.kept: ClientMessage | None = None

    @property
    def peer(self) -> str:
        return self._stream.peer

    @property
    def authorization(self) -> str | None:
        return self._stream.authorization

    @property
    def writable(self) -> bool:
        return self._stream.writable

    def send(self, message: bytes) -> None:
        parsed = ClientMessage.FromString(message)
        if parsed.message_type not in {pb.JOIN, pb.LEAVE}:
            self._stream.send(message)
            return
        for one in self.saboteur.spoil(self, parsed):
            self._stream.send(one.SerializeToString())

    def finish(self, status: GrpcStatus, detail: str = "", *, discard_unsent: bool = False) -> None:
        self._stream.finish(status, detail, discard_unsent=discard_unsent)

    def pause_reading(self) -> None:
        self._stream.pause_reading()

    def resume_reading(self) -> None:
        self._stream.resume_reading()


class Saboteur:
    """A `StreamHandler` around the broker's."""

    def __init__(self, handler: StreamHandler, spoil: Spoil) -> None:
        self._handler = handler
        self._spoiled: dict[Stream, Spoiled] = {}
        self.spoil = spoil
        self.chance = random.Random(5)
        self.heard: list[ClientMessage] = []

    def opened(self, stream: Stream) -> None:
        self._spoiled[stream] = Spoiled(stream, self)
        self._handler.opened(self._spoiled[stream])

    def message(self, stream: Stream, data: bytes) -> None:
        self._handler.message(self._spoiled[stream], data)

    def half_closed(self, stream: Stream) -> None:
        self._handler.half_closed(self._spoiled[stream])

    def closed(self, stream: Stream, why: Gone) -> None:
        self._handler.closed(self._spoiled.pop(stream), why)

    def unblocked(self, stream: Stream) -> None:
        self._handler.unblocked(self._spoiled[stream])


class SpoiledNode(Node):
    spoil: Spoil

    def _transport(self, routes: Mapping[str, StreamHandler]) -> Http2Server:
        spoilt = Saboteur(routes[RPC_PATH], type(self).spoil)
        return super()._transport({**routes, RPC_PATH: spoilt})


def now_and_then(stream: Spoiled) -> bool:
    return stream.saboteur.chance.random() < 0.05


def skip_one_recipient(stream: Spoiled, message: ClientMessage) -> list[ClientMessage]:
    """For good: later attempts are lost as well."""
    return [] if message.party_seq % 7 == 0 and message.session_id % 3 == 0 else [message]


def swap_two_sends(stream: Spoiled, message: ClientMessage) -> list[ClientMessage]:
    kept, stream.kept = stream.kept, None
    if kept is not None:
        return [message, kept]
    if now_and_then(stream):
        stream.kept = message
        return []
    return [message]


def reuse_an_id(stream: Spoiled, message: ClientMessage) -> list[ClientMessage]:
    heard = stream.saboteur.heard
    heard.append(message)
    if now_and_then(stream) and heard[0].message_id != message.message_id:
        message.message_id = heard[0].message_id
    return [message]


def leave_twice(stream: Spoiled, message: ClientMessage) -> list[ClientMessage]:
    if message.message_type == pb.LEAVE and not message.delivery_attempt:
        again = ClientMessage.FromString(message.SerializeToString())
        again.message_id += 1
        return [message, again]
    return [message]


def lose_the_reason(stream: Spoiled, message: ClientMessage) -> list[ClientMessage]:
    message.status_code = pb.OK
    return [message]


def deliver_across_parties(stream: Spoiled, message: ClientMessage) -> list[ClientMessage]:
    heard = stream.saboteur.heard
    heard.append(message)
    stranger = stream.saboteur.chance.choice(heard)
    if now_and_then(stream) and stranger.party_id != message.party_id:
        return [message, stranger]
    return [message]


def turn_back_the_clock(stream: Spoiled, message: ClientMessage) -> list[ClientMessage]:
    if message.party_seq % 5 == 0:
        message.timestamp -= 1000
    return [message]


MISTAKES = [
    skip_one_recipient,
    swap_two_sends,
    reuse_an_id,
    leave_twice,
    lose_the_reason,
    deliver_across_parties,
    turn_back_the_clock,
]


def honest(stream: Spoiled, message: ClientMessage) -> list[ClientMessage]:
    return [message]


async def found(spoil: Spoil, tmp_path: Path) -> list[str]:
    settings = Presence(
        session_ttl_s=TTL_MS / 1000,
        session_ttl_min_s=1,
        tick_s=0.02,
        join_burst=1000,
    )
    clock = SystemClock()
    store = await open_store("memory", settings, tmp_path, clock)
    SpoiledNode.spoil = staticmethod(spoil)
    node = await SpoiledNode(settings, store).start()
    try:
        async with RandomClients(
            node.target, 9, ttl_ms=TTL_MS, clients=40, parties=3
        ) as random_clients:
            await random_clients.run(4.0, 300)
            try:
                await random_clients.settle(15.0)
            except TimeoutError:
                return ["b it never comes to rest"]
            return Oracle(ttl_ms=TTL_MS, late_ms=10_000).check(random_clients.records)
    finally:
        await node.stop()
        await store.close()


async def test_a_broker_that_is_left_alone_is_not_blamed(tmp_path: Path) -> None:
    assert await found(honest, tmp_path) == []


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
async def test_a_planted_mistake_is_found(mistake: Spoil, tmp_path: Path) -> None:
    """P-137"""
    assert await found(mistake, tmp_path)
