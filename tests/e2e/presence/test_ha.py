"""A highly available client on three real nodes and a Redis; a node that is drained by SIGTERM."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.presence.kit import until
from tests.e2e.presence.node import Node
from tests.servers.redis import redis_server, redis_url
from waystation.client.party.member import PartyMember
from waystation.client.party.model import (
    Event,
    Joined,
    Left,
    Resynced,
    Snapshot,
    State,
    StateChanged,
)

__all__ = ["redis_server", "redis_url"]

pytestmark = pytest.mark.redis

PARTY = 0xA1
PATIENCE_S = 60.0
SECRET = "one cluster has one secret, whatever its machines"
Clock = Callable[[], float]


class Cluster:
    def __init__(self, url: str, folder: Path) -> None:
        self._folder = folder
        self._url = url
        self.nodes: list[Node] = []

    def node(self, kind: type[Node] = Node) -> Node:
        name = f"node.{len(self.nodes) + 1}"
        node = kind(
            self._folder / name,
            store=self._url,
            node_id=name,
            heartbeat_s=0.5,
            self_fence_s=3.5,
            lease_s=4.0,
            session_ttl_s=60.0,
            drain_timeout_s=30.0,
        )
        node._env["WAYSTATION_CLUSTER__SECRET"] = SECRET
        self.nodes.append(node)
        return node

    async def start(self, *nodes: Node) -> None:
        await asyncio.gather(*(asyncio.to_thread(node.start) for node in nodes))

    async def close(self) -> None:
        for node in self.nodes:
            with contextlib.suppress(ProcessLookupError):
                if node.running:
                    os.kill(node.pid, signal.SIGCONT)
            await asyncio.to_thread(node.close)


@pytest.fixture
async def cluster(redis_url: str, tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(redis_url, tmp_path)
    yield cluster
    await cluster.close()


class Told:
    """What an application was told, and when."""

    def __init__(self) -> None:
        self.events: list[tuple[float, Event]] = []

    def __call__(self, event: Event) -> None:
        self.events.append((asyncio.get_running_loop().time(), event))

    def of(self, *kinds: type[Any]) -> list[Any]:
        return [event for _, event in self.events if isinstance(event, kinds)]

    def comings_and_goings(self) -> list[tuple[str, int, int]]:
        return [
            (type(one).__name__, one.who.client_id, one.party_seq) for one in self.of(Joined, Left)
        ]

    def party_seq(self) -> int:
        """How far it has come, by what happened or by who is there now."""
        return max((one.party_seq for one in self.of(Snapshot, Resynced, Joined, Left)), default=0)

    def has_left(self, client: int) -> bool:
        return any(one.who.client_id == client for one in self.of(Left))

    def promotion_s(self) -> float:
        """From the last detection of a failure to the end of the promotion."""
        states = [(at, e.state) for at, e in self.events if isinstance(e, StateChanged)]
        last = max(n for n, (_, state) in enumerate(states) if state is State.PROMOTING)
        return states[last + 1][0] - states[last][0]


async def visit(endpoint: str, client: int) -> None:
    async with PartyMember(endpoint, party_id=PARTY, client_id=client) as client_session:
        await client_session.joined(PATIENCE_S)


async def test_a_highly_available_client_outlives_its_nodes(cluster: Cluster) -> None:
    """P-123 P-124 P-126: its primary is killed, the next one frozen, then two at once."""
    first, second, third = cluster.node(), cluster.node(), cluster.node()
    await cluster.start(first, second, third)
    nodes = {one.address: one for one in (first, second, third)}
    told, seen = Told(), Told()
    member = PartyMember(
        *nodes,
        party_id=PARTY,
        client_id=1,
        on_event=told,
        highly_available=True,
        ha_ping_s=1.0,
        ha_answer_timeout_s=3.0,
        avoid_s=5.0,
        session_ttl_ms=60_000,
    )
    witness = PartyMember(*reversed(nodes), party_id=PARTY, client_id=2, on_event=seen)

    def holds(line: str) -> Node | None:
        core: Any = member._session
        found = core._primary if line == "primary" else core._standby
        return None if found is None or not found.up else nodes[found.endpoint]

    try:
        witness.start()
        await witness.joined(PATIENCE_S)
        member.start()
        await member.joined(PATIENCE_S)
        await until(lambda: member.state is State.PAIRED, PATIENCE_S)

        # the primary is killed
        dead, heir = holds("primary"), holds("standby")
        assert dead is not None
        assert heir is not None
        await asyncio.to_thread(dead.kill)
        await until(lambda: holds("primary") is heir, PATIENCE_S)
        assert told.promotion_s() < 1 + 10  # the bar is 1 s, and the machine may be busy
        await visit(heir.address, 10)
        await until(lambda: member.state is State.PAIRED, PATIENCE_S)
        assert holds("standby") not in (None, dead, heir)
        await cluster.start(dead)

        # the next one stands still
        frozen, heir = holds("primary"), holds("standby")
        assert frozen is not None
        assert heir is not None
        os.kill(frozen.pid, signal.SIGSTOP)
        await until(lambda: holds("primary") is heir, PATIENCE_S)
        os.kill(frozen.pid, signal.SIGCONT)
        await visit(heir.address, 11)
        await until(lambda: member.state is State.PAIRED, PATIENCE_S)

        # primary and standby go at once
        pair = [holds("primary"), holds("standby")]
        last = next(one for one in nodes.values() if one not in pair)
        for one in pair:
            assert one is not None
            await asyncio.to_thread(one.kill)
        await until(lambda: holds("primary") is last, PATIENCE_S)
        await visit(last.address, 12)
        await until(lambda: told.has_left(12), PATIENCE_S)
        await until(lambda: seen.party_seq() >= told.party_seq(), PATIENCE_S)

        mine = told.comings_and_goings()
        assert len(set(mine)) == len(mine), "nothing is told twice"
        visits = [row for row in mine if row[1] >= 10]
        assert [row[:2] for row in visits] == [
            (what, who) for who in (10, 11, 12) for what in ("Joined", "Left")
        ], "nothing is lost"
        # Nobody waited for the witness to be back: it may have learned of a visit by a snapshot,
        # because what lies below a LIST is not applied any more (5.3, the view rule).
        witnessed = [row for row in seen.comings_and_goings() if row[1] >= 10]
        assert witnessed == [row for row in visits if row in witnessed]
        covered = max(one.party_seq for one in seen.of(Snapshot, Resynced))
        assert all(row in witnessed or row[2] <= covered for row in visits)
        assert {one.client_id for one in witness.participants} == {1}
        assert [row[1] for row in seen.comings_and_goings() if row[1] == 1] == [1]
        assert not [event for event in told.of(Left) if event.who.client_id == 2]
        await member.leave()
    finally:
        await member.close()
        await witness.close()


class Served(Node):
    """Under the supervisor, as it is run in earnest."""

    def __init__(self, data_dir: Path, **settings: Any) -> None:
        super().__init__(data_dir, **settings)
        self._command = [str(Path(sys.executable).with_name("waystation")), "serve", "presence"]

    def is_ready(self) -> bool:
        return any("waystation is ready" in line for line in self.lines)


async def test_a_node_that_is_told_to_stop_hands_its_sessions_over(cluster: Cluster) -> None:
    """P-117: SIGTERM; everybody has moved when it exits with 0, and nobody heard of it."""
    first, second = cluster.node(kind=Served), cluster.node()
    await cluster.start(first, second)
    told, seen = [Told() for _ in range(20)], Told()
    witness = PartyMember(second.address, party_id=PARTY, client_id=100, on_event=seen)
    members = [
        PartyMember(first.address, party_id=PARTY, client_id=at + 1, on_event=told[at])
        for at in range(20)
    ]
    try:
        for one in (witness, *members):
            one.start()
        await asyncio.gather(*(one.joined(PATIENCE_S) for one in (witness, *members)))
        await until(lambda: len(witness.participants) == 20, PATIENCE_S)
        code = await asyncio.to_thread(first.stop)
        await visit(second.address, 50)
        await until(lambda: all(one.of(Left) for one in told), PATIENCE_S)

        assert code == 0
        assert [one.resumes for one in members] == [1] * 20
        assert {event.who.client_id for event in seen.of(Left)} == {50}
        for one in told:
            rows = one.comings_and_goings()
            assert len(set(rows)) == len(rows)
            assert {event.who.client_id for event in one.of(Left)} == {50}
    finally:
        for one in (witness, *members):
            await one.close()
