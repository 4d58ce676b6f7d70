"""A drain: everybody who can move is told to, however often a neighbour must be asked."""

from typing import cast

import pytest

from tests.unit.presence.shared_broker_harness import SharedStage
from waystation.presence.cluster import session_handover as handover
from waystation.presence.cluster.peer_clients import PeerClients
from waystation.presence.cluster.session_handover import SessionHandover
from waystation.presence.errors import PeerError
from waystation.presence.model import MessageType
from waystation.presence.store import PresenceNode
from waystation.presence.wire.presence_cluster_pb2 import (
    HandoffGrant,
    HandoffReply,
    HandoffRequest,
)

NODES = (
    PresenceNode(node_id="node.1", incarnation=1, client_endpoint="a:1", peer_endpoint="a:2"),
    PresenceNode(node_id="node.2", incarnation=1, client_endpoint="b:1", peer_endpoint="b:2"),
)


class LateNeighbour:
    """Does not answer in time at first; grants everything later."""

    def __init__(self, harness: SharedStage, late: int) -> None:
        self.harness = harness
        self.late = late
        self.asked = 0

    async def prepare(self, node: PresenceNode, request: HandoffRequest) -> HandoffReply:
        self.asked += 1
        if self.asked <= self.late:
            raise PeerError("it does not answer")
        expires_ms = self.harness.clock.now_ms() + 60_000
        return HandoffReply(
            grants=[
                HandoffGrant(key=one.key, ticket=b"t" * 16, expires_ms=expires_ms, accepted=True)
                for one in request.offers
            ]
        )

    async def close(self) -> None: ...


async def drained(
    monkeypatch: pytest.MonkeyPatch, *, late: int
) -> tuple[LateNeighbour, list[list[int]]]:
    monkeypatch.setattr(handover, "OFFER_AGAIN_S", 0.0)
    harness = SharedStage(handoff_rate_per_s=1000.0)
    participants = [harness.member(client) for client in range(1, 6)]
    neighbour = LateNeighbour(harness, late)
    broker = harness.broker
    drain = SessionHandover(
        broker.registry,
        broker.session_end,
        broker.reports,
        cast(PeerClients, neighbour),
        lambda: NODES,
        node=broker.node,
    )
    await drain.drain(harness.clock.now_ms() + 60_000)
    told: list[list[int]] = [
        [int(one.message_type) for one in participant.take()] for participant in participants
    ]
    return neighbour, told


async def test_a_session_that_was_refused_is_offered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """P-117: a neighbour that is too busy to answer once does not keep anybody here."""
    neighbour, told = await drained(monkeypatch, late=2)

    assert neighbour.asked == 3
    assert all(one.count(MessageType.HANDOFF) == 1 for one in told)


async def test_a_session_that_was_told_to_move_is_not_told_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    neighbour, told = await drained(monkeypatch, late=0)

    assert neighbour.asked == 1
    assert all(one.count(MessageType.HANDOFF) == 1 for one in told)
