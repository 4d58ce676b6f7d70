"""Half of the user agents on a new store and back, on two servers (docs/guides/stores/dual.md).

From Redis to PostgreSQL with `median=7f` and `write_to_secondary=1`, and then to Redis alone again.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.e2e.scrape import sample
from tests.e2e.store_walk import Cluster, SharedStore, init_store, running_cluster
from tests.e2e.test_live_move import both, on_new_store, received, roll_out
from tests.e2e.wire_clients import UserAgent, accepted, user_agent, version_of
from tests.servers.postgres import PostgresServer, postgres_server
from tests.servers.redis import RedisServer, redis_server

__all__ = ["postgres_server", "redis_server"]

pytestmark = [pytest.mark.e2e, pytest.mark.postgres, pytest.mark.redis]

OF_EACH_HALF = 2
SOON_S = 20.0


@pytest.fixture
def cluster(redis_server: RedisServer, tmp_path: Path) -> Iterator[Cluster]:
    old = SharedStore(redis_server.new_url(), redis_server.port)
    with running_cluster(tmp_path, old) as cluster:
        yield cluster


@pytest.fixture
def new_url(postgres_server: PostgresServer, tmp_path: Path) -> str:
    url = postgres_server.new_url()
    init_store(url, tmp_path / "operator")
    return url


def is_low(agent: UserAgent) -> bool:
    return int(agent.uaid[:2], 16) <= 0x7F


async def of_both_halves(url: str, stack: AsyncExitStack) -> list[UserAgent]:
    """Chance deals out the uaids, so ask until there are enough of each."""
    halves: dict[bool, list[UserAgent]] = {True: [], False: []}
    while min(map(len, halves.values())) < OF_EACH_HALF:
        agent = await stack.enter_async_context(user_agent(url))
        if len(half := halves[is_low(agent)]) < OF_EACH_HALF:
            half.append(agent)
    return [*halves[True], *halves[False]]


async def moved(cluster: Cluster) -> float:
    """How many user agents the node says that it has moved; it says so once a second."""
    return await asyncio.to_thread(sample, cluster.a, "waystation_database_migrate")


async def test_half_of_them_move_and_everybody_finds_the_way_back(
    cluster: Cluster, new_url: str, tmp_path: Path
) -> None:
    old_url = cluster.store.url
    machine = (cluster.a, cluster.endpoints[0])  # the other one has nothing to do here
    async with AsyncExitStack() as stack:
        agents = await of_both_halves(cluster.a.ws_url, stack)
        endpoints = [await agent.subscribe() for agent in agents]
        early: list[str] = []
        for agent, endpoint in zip(agents, endpoints, strict=True):
            await agent.leave()
            early.append(version_of(await accepted(endpoint, b"before")))
        dual = both(new_url, old_url, median="7f", write_to_secondary="1")
        await roll_out(dual, machine)

        uaids = [agent.uaid for agent in agents]
        later: list[str] = []
        for agent, version in zip(agents, early, strict=True):
            await agent.connect()
            assert (await received(agent))["version"] == version
            later.append(await agent.subscribe())
            await agent.leave()
        assert [agent.uaid for agent in agents] == uaids
        low = [agent.uaid for agent in agents if is_low(agent)]
        assert await on_new_store(new_url, tmp_path, uaids) == low
        deadline = time.monotonic() + SOON_S
        while await moved(cluster) < len(low):
            assert time.monotonic() < deadline, "the moves are not among the numbers"
            await asyncio.sleep(0.2)
        waiting = [version_of(await accepted(endpoint, b"on both")) for endpoint in later]

        await roll_out(old_url, machine)  # the new store disappointed
        for agent, version in zip(agents, waiting, strict=True):
            await agent.connect()
            assert (await received(agent))["version"] == version
        direct = [version_of(await accepted(endpoint, ttl=0)) for endpoint in later]
        heard = [(await received(agent))["version"] for agent in agents]

        assert [agent.uaid for agent in agents] == uaids
        assert heard == direct
