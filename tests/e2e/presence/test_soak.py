"""The seed's own test: two hundred clients come and go at random, and an oracle looks on."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.e2e.platform import until
from tests.e2e.presence.node import Node
from tests.e2e.presence.oracle import Oracle
from tests.e2e.presence.random_clients import RandomClients

pytestmark = pytest.mark.e2e
TTL_MS = 4_000
LATE_MS = 10_000  # a loaded machine; real lateness is a matter of the virtual clock's tests
SETTLE_S = 90.0

Trouble = Callable[[Node], Awaitable[None]]


def node_of(folder: Path) -> Node:
    return Node(
        folder,
        session_ttl_s=TTL_MS / 1000,
        session_ttl_min_s=1,
        restart_ttl_min_s=TTL_MS / 1000,
        tick_s=0.02,
        join_burst=1000,
        cursor_save_s=0.2,
    )


async def _run(trouble: Trouble, node: Node) -> None:
    await trouble(node)


async def soak(
    node: Node, seed: int, *, seconds: float, operations: int, trouble: Trouble | None = None
) -> RandomClients:
    async with RandomClients(node.address, seed, ttl_ms=TTL_MS) as random_clients:
        meanwhile = None if trouble is None else asyncio.create_task(_run(trouble, node))
        await random_clients.run(seconds, operations, meanwhile=meanwhile)
        await random_clients.settle(SETTLE_S)
        oracle = Oracle(ttl_ms=TTL_MS, late_ms=LATE_MS, restarts=trouble is not None)
        violations = oracle.check(random_clients.records)
        assert not violations, "\n".join([f"seed {seed}", *violations[:40]])
        await random_clients.leave_all()
        await asyncio.to_thread(check_empty, node)
        return random_clients


def check_empty(node: Node) -> None:
    """Rule j: after all have left, nobody is held."""

    def held() -> int:
        with urlopen(f"http://127.0.0.1:{node.ops_port}/debug/parties", timeout=10) as answer:
            numbers = json.loads(answer.read())
        return numbers["active"] + numbers["detached"]

    until(lambda: held() == 0)


async def kill_now_and_then(node: Node, *, times: int, every_s: float) -> None:
    for _ in range(times):
        await asyncio.sleep(every_s)
        await asyncio.to_thread(node.kill)
        await asyncio.to_thread(node.start)


async def test_two_hundred_clients_come_and_go(tmp_path: Path) -> None:
    """P-135"""
    with node_of(tmp_path) as node:
        random_clients = await soak(node, seed=1, seconds=4.0, operations=600)

        assert random_clients.operations >= 50


async def test_two_hundred_clients_survive_kills_of_the_broker(tmp_path: Path) -> None:
    """P-135, P-136: with `kill -9` and a start on the same store."""

    async def trouble(node: Node) -> None:
        await kill_now_and_then(node, times=1, every_s=2.0)

    with node_of(tmp_path) as node:
        random_clients = await soak(node, seed=2, seconds=5.0, operations=600, trouble=trouble)

        assert random_clients.operations >= 50


@pytest.mark.soak
async def test_twenty_thousand_operations(tmp_path: Path) -> None:
    """P-135 in full: 20,000 operations, and as long as WAYSTATION_SOAK_S allows."""
    seconds = float(os.environ.get("WAYSTATION_SOAK_S", "900"))
    with node_of(tmp_path) as node:
        random_clients = await soak(node, seed=3, seconds=seconds, operations=20_000)

        assert random_clients.operations > 1000


@pytest.mark.soak
async def test_kills_of_the_broker_for_a_long_time(tmp_path: Path) -> None:
    """P-136, P-138: fifty kills."""

    async def trouble(node: Node) -> None:
        await kill_now_and_then(node, times=50, every_s=8.0)

    with node_of(tmp_path) as node:
        await soak(node, seed=4, seconds=450.0, operations=20_000, trouble=trouble)

        assert node.running
