"""Jobs over stores with a hundred thousand user agents on real servers; how fast they are."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from tests.pipeline.load import Load
from tests.pipeline.server_actions import differences
from tests.pipeline.store_population import StorePopulation
from tests.pipeline.store_servers import KINDS, StoreUnderTest, everything, fresh_url, truth
from tests.pipeline.test_moving_stores import dual_url
from tests.servers.bigtable import bigtable_emulator  # noqa: F401 a fixture
from tests.servers.dynamodb import dynamodb_server  # noqa: F401 a fixture
from tests.servers.postgres import postgres_server  # noqa: F401 a fixture
from tests.servers.redis import redis_server  # noqa: F401 a fixture
from waystation.base.clock import ManualClock
from waystation.pipeline.delta_table import Lake
from waystation.pipeline.job_context import Context
from waystation.pipeline.jobs import audit, migrate, purge
from waystation.pipeline.sources.copy import Move

pytestmark = pytest.mark.soak

CLIENTS = int(os.environ.get("WAYSTATION_SOAK_CLIENTS", "100000"))
COPIER = "waystation.storage.dual.copy:open_copier"

T = TypeVar("T")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now_ms=int(time.time() * 1000))


@pytest.fixture
def ctx(lake: Lake) -> Context:
    return Context(lake.spark, lake, lake.clock)


def timed(what: str, work: Callable[[], T], rows: int = CLIENTS) -> T:
    began = time.monotonic()
    result = work()
    seconds = time.monotonic() - began
    load = os.getloadavg()[0]
    print(f"\n{what}: {rows:,} in {seconds:.1f} s, {rows / seconds:,.0f}/s (load {load:.0f})")
    return result


@pytest.mark.parametrize("kind", KINDS)
def test_audit_and_purge_of_a_hundred_thousand(
    kind: str, ctx: Context, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    store = StoreUnderTest(fresh_url(kind, request), tmp_path / "place")
    population = StorePopulation(CLIENTS, ctx.clock.now_ms())
    timed(f"{kind} load", lambda: store.use(population.load))
    keeps = kind != "postgres"

    found = timed(f"{kind} audit", lambda: audit.run(ctx, store.place))
    assert {one.kind: one.rows for one in found} == population.audit(orphans=keeps)
    stale = population.stale()
    marked = timed(f"{kind} purge mark", lambda: purge.mark(ctx, store.place))
    assert marked.candidates == len(stale)
    store.use(lambda opened: population.come_back(opened, stale[0], population.now_ms))
    assert isinstance(ctx.clock, ManualClock)
    ctx.clock.advance(86_401)
    assert timed(f"{kind} purge confirm", lambda: purge.confirm(ctx, store.place)).unchanged == (
        len(stale) - 1
    )
    deleted = timed(
        f"{kind} purge delete", lambda: purge.delete(ctx, store.place, apply=True), len(stale) - 1
    )
    assert deleted.removed == len(stale) - 1
    gone = set(stale[1:])
    left = [number for number in range(population.size) if number not in gone]
    assert everything(store) == truth(population, left)


@pytest.mark.parametrize(
    "source_kind, target_kind",
    [
        pytest.param("dynamodb", "bigtable", marks=[pytest.mark.dynamodb, pytest.mark.bigtable]),
        pytest.param("postgres", "redis", marks=[pytest.mark.postgres, pytest.mark.redis]),
        pytest.param("redis", "postgres", marks=[pytest.mark.postgres, pytest.mark.redis]),
        pytest.param("bigtable", "dynamodb", marks=[pytest.mark.dynamodb, pytest.mark.bigtable]),
    ],
)
def test_a_hundred_thousand_move_under_load(
    source_kind: str,
    target_kind: str,
    ctx: Context,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    """Servers work on both stores as one (`dual:`) while Spark copies and compares."""
    source = StoreUnderTest(fresh_url(source_kind, request), tmp_path / "source")
    target = StoreUnderTest(fresh_url(target_kind, request), tmp_path / "target")
    population = StorePopulation(CLIENTS, ctx.clock.now_ms(), orphans=0)
    source.use(population.load)
    load = Load(dual_url(source, target), tmp_path, population, active=CLIENTS // 100, seed=7)
    move = Move(COPIER, source.place, target.place, "soak")
    load.start()
    assert load.begun.wait(60)
    name = f"{source_kind} to {target_kind}"

    def tell(text: str) -> None:
        print(f"\n{name}: {text}")

    steps = timed(f"{name} copy and tail", lambda: migrate.copy(ctx, move, tell=tell))
    live = timed(f"{name} verify under load", lambda: migrate.verify(ctx, move))
    load.stop()
    print(f"\n{name}: {steps}\n{live}\nload: {load.done}")

    assert load.again == []
    assert [one.lost for one in live] == [0, 0]
    assert sum(step.refused for step in steps) == 0
    assert target.use(lambda store: differences(store, load.known, load.now_ms())) == []
