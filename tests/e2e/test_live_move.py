"""From DynamoDB to Bigtable while everybody goes on: docs/guides/stores/dual.md, step by step.

Two machines with a connection node and an endpoint node each, under load, user agents that come and
go, and one machine after the other restarted with the next step's store.
"""

import asyncio
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.e2e.crowd import Crowd
from tests.e2e.platform import Daemon
from tests.e2e.store_walk import Cluster, SharedStore, init_store, running_cluster
from tests.e2e.wire_clients import Message, UserAgent, accepted, user_agent, version_of
from tests.servers.bigtable import BigtableEmulator, bigtable_emulator
from tests.servers.dynamodb import DynamoServer, dynamodb_server
from waystation.base.clock import SystemClock
from waystation.push.model import Uaid
from waystation.storage.open import open_push_store
from waystation.storage.settings import Store

__all__ = ["bigtable_emulator", "dynamodb_server"]

pytestmark = [pytest.mark.e2e, pytest.mark.dynamodb, pytest.mark.bigtable]


@pytest.fixture
def new_url(bigtable_emulator: BigtableEmulator, tmp_path: Path) -> str:
    table = bigtable_emulator.unmade_table()
    url = f"bigtable://{table.project}/{table.instance}/{table.table}?emulator={table.emulator}"
    init_store(url, tmp_path / "operator")
    return url


@pytest.fixture
def cluster(dynamodb_server: DynamoServer, tmp_path: Path) -> Iterator[Cluster]:
    old = SharedStore(dynamodb_server.new_url(), dynamodb_server.port)
    # On a busy machine much may wait for a user agent that is away.
    with running_cluster(tmp_path, old, msg_limit=1000) as cluster:
        yield cluster


def both(primary: str, secondary: str, **options: str) -> str:
    return f"dual:?{urlencode({'primary': primary, 'secondary': secondary, **options})}"


async def roll_out(url: str, *machines: Sequence[Daemon]) -> None:
    """One machine after the other, as an operator does; those of the others go on."""
    for machine in machines:
        for node in machine:
            node.change(db_dsn=url)
        await asyncio.gather(*(asyncio.to_thread(node.restart) for node in machine))


async def on_new_store(url: str, tmp_path: Path, uaids: list[str]) -> list[str]:
    """Who of them has a record there."""
    store = await open_push_store(
        url, data_dir=tmp_path, settings=Store(operation_timeout_s=30), clock=SystemClock()
    )
    try:
        return [uaid for uaid in uaids if await store.get_user_agent(Uaid(bytes.fromhex(uaid)))]
    finally:
        await store.close()


async def received(agent: UserAgent) -> Message:
    return await agent.notification(ack=True, timeout_s=20)


async def test_everybody_moves_and_nothing_is_lost(
    cluster: Cluster, new_url: str, tmp_path: Path
) -> None:
    seed = int(os.environ.get("MOVE_SEED") or random.SystemRandom().randrange(2**32))
    print(f"MOVE_SEED={seed}")
    old_url = cluster.store.url
    machines = [(cluster.a, cluster.endpoints[0]), (cluster.b, cluster.endpoints[1])]
    crowd = Crowd(cluster.a.ws_url, cluster.b.ws_url, seed=seed, devices=10, app_servers=2)
    await crowd.subscribe()
    async with user_agent(cluster.a.ws_url) as sleeper:
        sleeper_at = await sleeper.subscribe()
        await sleeper.leave()
        early = version_of(await accepted(sleeper_at, b"before the move"))
        async with crowd.alive():
            async with crowd.posting(0.05):
                await asyncio.sleep(0.5)
                # Every node knows of both before anybody is moved. Then they move, at first
                # while one machine does not move anybody yet.
                await roll_out(both(new_url, old_url, median="none"), *machines)
                await roll_out(both(new_url, old_url), *machines)
                await asyncio.sleep(0.5)
            await crowd.calm_down()
            await asyncio.sleep(1.5)  # acks are recorded
        late = version_of(await accepted(sleeper_at, b"after the move"))
        sleeper.url = cluster.b.ws_url
        await sleeper.connect()
        woken = [(await received(sleeper))["version"] for _ in range(2)]
        print(crowd.witness.summary())

        assert crowd.witness.accepted > 50
        assert crowd.witness.verdict() == []
        assert woken == [early, late]
        uaids = [sleeper.uaid, *(device.uaid for device in crowd.devices)]
        assert await on_new_store(new_url, tmp_path, uaids) == uaids

        await sleeper.leave()
        await roll_out(new_url, machines[0])  # the old store is not needed any more
        sleeper.url = cluster.a.ws_url
        await sleeper.connect()
        last = version_of(await accepted(sleeper_at, ttl=0))
        assert (await received(sleeper))["version"] == last
    trouble = [
        line
        for node in (*cluster.endpoints, cluster.a, cluster.b)
        for line in node.lines
        if "Traceback" in line
    ]
    assert trouble == []
