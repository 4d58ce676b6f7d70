"""Jobs over the push store on real servers, against what plain Python knows of a population."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.store_population import DAY_MS, StorePopulation
from tests.pipeline.store_servers import KINDS, StoreUnderTest, everything, fresh_url, truth
from tests.servers.bigtable import bigtable_emulator  # noqa: F401 a fixture
from tests.servers.dynamodb import dynamodb_server  # noqa: F401 a fixture
from tests.servers.postgres import postgres_server  # noqa: F401 a fixture
from tests.servers.redis import redis_server  # noqa: F401 a fixture
from waystation.base.clock import ManualClock
from waystation.pipeline.delta_table import Lake
from waystation.pipeline.job_context import Context
from waystation.pipeline.jobs import audit, purge
from waystation.push.store import PushStore
from waystation.storage.dynamodb.bulk import AWAY_MONTHS, DynamoBulk
from waystation.storage.open import open_bulk

CLIENTS = 400


@pytest.fixture
def clock() -> ManualClock:
    """Servers let rows go by their own clocks, so the jobs begin at the same moment."""
    return ManualClock(now_ms=int(time.time() * 1000))


@pytest.fixture
def ctx(lake: Lake) -> Context:
    return Context(lake.spark, lake, lake.clock)


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> StoreUnderTest:
    return StoreUnderTest(fresh_url(request.param, request), tmp_path / "place")


def keeps_orphans(store: StoreUnderTest) -> bool:
    """PostgreSQL keeps nothing for somebody of whom there is no record."""
    return not store.url.startswith("postgres")


def test_audit_and_purge_find_what_is_there_and_spare_who_came_back(
    ctx: Context, store: StoreUnderTest
) -> None:
    """Two of the stale come back, one before and one after it was confirmed; of the others, and
    of those without a record, nothing is left."""
    population = StorePopulation(CLIENTS, ctx.clock.now_ms())
    store.use(population.load)
    orphans = population.orphans if keeps_orphans(store) else 0

    found = {one.kind: one.rows for one in audit.run(ctx, store.place)}
    assert found == population.audit(orphans=keeps_orphans(store))

    stale = population.stale()
    marked = purge.mark(ctx, store.place)
    assert (marked.candidates, marked.orphans) == (len(stale), orphans)
    come_back(store, population, stale[0])
    assert isinstance(ctx.clock, ManualClock)
    ctx.clock.advance(86_401)
    confirmed = purge.confirm(ctx, store.place)
    assert (confirmed.candidates, confirmed.unchanged) == (len(stale), len(stale) - 1)
    assert confirmed.orphans == orphans
    come_back(store, population, stale[1])

    deleted = purge.delete(ctx, store.place, apply=True)
    assert (deleted.removed, deleted.orphans) == (len(stale) - 2, orphans)
    gone = set(stale[2:])
    left = [number for number in range(population.size) if number not in gone]
    assert everything(store) == truth(population, left)


def test_times_are_asked_of_the_store_itself(store: StoreUnderTest) -> None:
    now_ms = int(time.time() * 1000)
    population = StorePopulation(60, now_ms)
    store.use(population.load)
    bulk = open_bulk(store.place.place)
    try:
        bounds = {"connected_at_ms": (None, now_ms - 60 * DAY_MS)}
        seen = [
            uaid
            for part in bulk.ranges("router", 3)
            for batch in bulk.scan("router", part, now_ms=now_ms, bounds=bounds)
            for uaid in batch.column("uaid").to_pylist()
        ]
    finally:
        bulk.close()

    assert sorted(seen) == sorted(population.uaid(number) for number in population.stale())


def come_back(store: StoreUnderTest, population: StorePopulation, number: int) -> None:
    async def change(opened: PushStore) -> None:
        await population.come_back(opened, number, population.now_ms)

    store.use(change)


@pytest.mark.dynamodb
def test_the_index_of_dynamodb_leads_to_whom_a_scan_finds(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """And to them alone: who has connected since is not read."""
    store = StoreUnderTest(fresh_url("dynamodb", request), tmp_path / "place")
    now_ms = int(time.time() * 1000)
    store.use(StorePopulation(CLIENTS, now_ms).load)
    bulk = open_bulk(store.place.place)
    assert isinstance(bulk, DynamoBulk)
    calls: Counter[str] = Counter()
    read = bulk._dynamo.read

    async def counted(operation: str, **asked: Any) -> dict[str, Any]:
        calls[operation] += 1
        answer = await read(operation, **asked)
        calls["user agents"] += sum(map(len, answer.get("Responses", {}).values()))
        return answer

    bulk._dynamo.read = counted
    bounds = {"connected_at_ms": (None, now_ms - 60 * DAY_MS - 1)}

    def found(parts: list[bytes]) -> list[bytes]:
        batches = [
            b for part in parts for b in bulk.scan("router", part, now_ms=now_ms, bounds=bounds)
        ]
        return sorted(uaid for batch in batches for uaid in batch.column("uaid").to_pylist())

    try:
        scanned = found(bulk.ranges("router", 2))
        calls.clear()
        by_index = found(bulk.away_ranges(2))
    finally:
        bulk.close()

    assert by_index == scanned
    assert len(scanned) == len(StorePopulation(CLIENTS, now_ms).stale())
    assert calls["Scan"] == 0
    assert calls["Query"] >= AWAY_MONTHS * 24 * 11
    assert len(scanned) <= calls["user agents"] < CLIENTS
