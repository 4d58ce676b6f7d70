"""Three nodes on one Redis, and now and then one of them is killed: nobody is lost, nobody stays.

The crowd and its oracle are those of the soak. Whoever holds a stream to the node that dies comes
back to another one; whoever is away for good is told to have left once, within lease and TTL.
"""

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.e2e.platform import until
from tests.e2e.presence.node import Node
from tests.e2e.presence.oracle import Oracle
from tests.e2e.presence.random_clients import RandomClients
from tests.servers.redis import RedisServer, running_redis

pytestmark = [pytest.mark.e2e, pytest.mark.redis]

TTL_MS = 5_000
NODES = 3
SETTLE_S = 120.0
EMPTY_S = 60.0


@pytest.fixture(scope="module")
def own_redis() -> Iterator[RedisServer]:
    with running_redis("--appendonly", "yes") as server:
        yield server


@pytest.fixture
def nodes(own_redis: RedisServer, tmp_path: Path) -> Iterator[list[Node]]:
    url = own_redis.new_url()
    started: list[Node] = []
    try:
        for number in range(1, NODES + 1):
            node = Node(
                tmp_path / f"node{number}",
                store=url,
                node_id=f"node.{number}",
                session_ttl_s=TTL_MS / 1000,
                session_ttl_min_s=1,
                tick_s=0.02,
                join_burst=1000,
                cursor_save_s=0.2,
                heartbeat_s=1.0,
                self_fence_s=4.0,
                lease_s=5.0,
                gap_check_s=0.5,
                sweep_s=0.3,
            )
            started.append(node)
            node.start()
        yield started
    finally:
        for node in started:
            node.close()


async def kill_some(nodes: list[Node], chance: random.Random, *, kills: int, gap_s: float) -> None:
    for _ in range(kills):
        await asyncio.sleep(gap_s * (0.5 + chance.random()))
        node = chance.choice(nodes)
        await asyncio.to_thread(node.kill)
        await asyncio.sleep(chance.choice((0.0, gap_s)))  # back before its lease ends, or later
        await asyncio.to_thread(node.start)


def held(node: Node) -> int:
    with urlopen(f"http://127.0.0.1:{node.ops_port}/debug/parties", timeout=10) as answer:
        numbers = json.loads(answer.read())
    return numbers["active"] + numbers["detached"]


def sessions_in_redis(server: RedisServer, database: str) -> int:
    keys = server.command("-n", database, "--scan", "--pattern", "pp:{*}:s").split()
    return sum(int(server.command("-n", database, "HLEN", key)) for key in keys)


async def live(
    nodes: list[Node], seed: int, *, clients: int, operations: int, kills: int, gap_s: float
) -> RandomClients:
    addresses = [node.address for node in nodes]
    chance = random.Random(seed)
    async with RandomClients(
        addresses, seed, ttl_ms=TTL_MS, clients=clients, parties=6
    ) as random_clients:
        trouble = asyncio.create_task(kill_some(nodes, chance, kills=kills, gap_s=gap_s))
        await random_clients.run(kills * gap_s * 2, operations, meanwhile=trouble)
        await random_clients.settle(SETTLE_S)
        oracle = Oracle(ttl_ms=TTL_MS, late_ms=0, restarts=True, nodes_lost=True)
        violations = oracle.check(random_clients.records)
        assert not violations, "\n".join([f"seed {seed}", *violations[:40]])
        await random_clients.leave_all()
        return random_clients


async def check_nobody_left(nodes: list[Node], redis: RedisServer) -> None:
    """Neither in memory nor in Redis: no ghost."""
    await asyncio.to_thread(until, lambda: not sum(map(held, nodes)), timeout_s=EMPTY_S)
    database = nodes[0].setting("presence__store").rpartition("/")[2]
    await asyncio.to_thread(
        until, lambda: not sessions_in_redis(redis, database), timeout_s=EMPTY_S
    )


async def test_nodes_are_killed_and_nobody_is_lost(
    nodes: list[Node], own_redis: RedisServer
) -> None:
    """P-110, P-136, P-138: no message lost, no ghost, order kept."""
    random_clients = await live(nodes, 5, clients=40, operations=150, kills=3, gap_s=1.0)
    await check_nobody_left(nodes, own_redis)

    assert random_clients.operations >= 20


@pytest.mark.soak
@pytest.mark.parametrize("seed", [11, 12])
async def test_nodes_are_killed_for_a_long_time(
    nodes: list[Node], own_redis: RedisServer, seed: int
) -> None:
    """P-138: fifty kills, one every few seconds."""
    random_clients = await live(nodes, seed, clients=200, operations=10_000, kills=50, gap_s=3.0)
    await check_nobody_left(nodes, own_redis)

    assert random_clients.operations > 500
