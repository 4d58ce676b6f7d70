"""Everything of one push store into another: part by part, and under load."""

import time
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest

from tests.pipeline.load import Load
from tests.pipeline.server_actions import differences
from tests.pipeline.store_population import StorePopulation
from tests.pipeline.store_servers import StoreUnderTest, everything, fresh_url, truth
from tests.servers.bigtable import bigtable_emulator  # noqa: F401 a fixture
from tests.servers.dynamodb import dynamodb_server  # noqa: F401 a fixture
from tests.servers.postgres import postgres_server  # noqa: F401 a fixture
from tests.servers.redis import redis_server  # noqa: F401 a fixture
from waystation.base.clock import ManualClock
from waystation.pipeline.delta_table import Lake
from waystation.pipeline.job_context import Context
from waystation.pipeline.jobs import migrate
from waystation.pipeline.sources.copy import Move
from waystation.push.model import Milestone, MilestoneNote, Update
from waystation.push.store import PushStore
from waystation.storage.dual.copy import Copied, open_copier
from waystation.storage.dual.moves import MOVING, TOMBSTONE_KEPT_MS, begun, tombstone
from waystation.storage.open import open_bulk

PAIRS = [
    pytest.param(
        pair, marks=[getattr(pytest.mark, kind) for kind in pair if kind != "embedded"],
        id="-".join(pair),
    )
    for pair in (
        ("embedded", "redis"),
        ("redis", "postgres"),
        ("postgres", "bigtable"),
        ("bigtable", "dynamodb"),
        ("dynamodb", "embedded"),
    )
]  # fmt: skip


BURIED = 8  # has no messages
PHASES = ("copy records", "copy notifications", "tail records", "tail notifications")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now_ms=int(time.time() * 1000))


@pytest.fixture
def ctx(lake: Lake) -> Context:
    return Context(lake.spark, lake, lake.clock)


@pytest.fixture(params=PAIRS)
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[StoreUnderTest, StoreUnderTest]:
    source, target = (
        StoreUnderTest(fresh_url(kind, request), tmp_path / word)
        for kind, word in zip(request.param, ("source", "target"), strict=True)
    )
    return source, target


def copied(source: StoreUnderTest, target: StoreUnderTest, table: str, since_ms: int = 0) -> Copied:
    """By the code that a task of Spark runs, in this process."""
    bulk = open_bulk(source.place.place)
    parts = bulk.ranges(table, 3)
    bulk.close()
    copier = open_copier(source.place.place, target.place.place)
    try:
        return total(page for part in parts for page in copier.copy(table, part, since_ms))
    finally:
        copier.close()


def total(pages: Iterable[Copied]) -> Copied:
    whole = Copied()
    for page in pages:
        for name in ("read", "written", "present", "gone", "refused"):
            setattr(whole, name, getattr(whole, name) + getattr(page, name))
    return whole


def rows(store: StoreUnderTest, table: str) -> set[tuple[object, ...]]:
    bulk = open_bulk(store.place.place)
    now_ms = int(time.time() * 1000)
    try:
        return {
            tuple(row.values())
            for part in bulk.ranges(table, 2)
            for batch in bulk.scan(table, part, now_ms=now_ms, bounds={})
            for row in batch.to_pylist()
        }
    finally:
        bulk.close()


def alive(records: set[tuple[object, ...]], population: StorePopulation) -> set[tuple[object, ...]]:
    return {row for row in records if row[0] != population.uaid(BURIED)}


def test_a_store_is_copied_whole_and_once(stores: tuple[StoreUnderTest, StoreUnderTest]) -> None:
    """Every field arrives; who was begun by a move that was cut off is finished; who was removed
    stays removed; a second run finds everything there, and a newer record comes with the tail."""
    source, target = stores
    population = StorePopulation(120, int(time.time() * 1000), orphans=0)
    source.use(population.load)
    numbers = [number for number in range(population.size) if number != BURIED]

    async def begin_one_and_bury_another(store: PushStore) -> None:
        assert await store.add_user_agent(begun(population.member(7).record))
        stone, kept_ms = tombstone(population.uaid(BURIED)), population.now_ms + TOMBSTONE_KEPT_MS
        note = MilestoneNote(stone, bytes(32), Milestone.ERRORED, population.now_ms, kept_ms)
        await store.note_milestones([note])

    async def updates(store: PushStore) -> set[Update]:
        found = [await store.fetch_updates(population.uaid(number), limit=9) for number in numbers]
        return {update for ones in found for update in ones}

    target.use(begin_one_and_bury_another)
    records, waiting = (copied(source, target, table) for table in ("records", "notifications"))

    assert (records.read, records.written, records.present, records.gone) == (120, 119, 0, 1)
    assert (waiting.written, waiting.refused) == (waiting.read, 0)
    assert everything(target) == truth(population, numbers)
    assert target.use(updates) == {
        one for number in numbers for one in population.member(number).updates
    }
    assert everything(source) == truth(population, list(range(population.size)))
    assert rows(target, "records") == alive(rows(source, "records"), population)
    assert rows(target, "notifications") == rows(source, "notifications")

    again = copied(source, target, "records")
    assert (again.read, again.written, again.present, again.gone) == (120, 0, 119, 1)

    started_ms = int(time.time() * 1000)

    async def come_back(store: PushStore) -> None:
        await population.come_back(store, 5, started_ms + 1)

    source.use(come_back)
    assert copied(source, target, "records", since_ms=started_ms).read == 1
    assert rows(target, "records") == alive(rows(source, "records"), population)

    async def nodes(store: PushStore) -> set[str | None]:
        found = [await store.get_user_agent(population.uaid(number)) for number in numbers]
        return {one.node_id for one in found if one is not None}

    assert MOVING not in target.use(nodes)


@pytest.mark.dynamodb
@pytest.mark.bigtable
def test_dynamodb_moves_to_bigtable_under_load_and_nothing_is_lost(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Servers work on both stores as one (`dual:`) meanwhile. Then nothing of what they know is
    missing in the target alone, and nothing that was acked came again."""
    source = StoreUnderTest(fresh_url("dynamodb", request), tmp_path / "source")
    target = StoreUnderTest(fresh_url("bigtable", request), tmp_path / "target")
    population = StorePopulation(200, int(time.time() * 1000), orphans=0)
    source.use(population.load)
    load = Load(dual_url(source, target), tmp_path, population, active=40, seed=7)
    began_ms = int(time.time() * 1000)
    load.start()
    assert load.begun.wait(60)
    steps = [copied(source, target, table) for table in ("records", "notifications")]
    steps += [copied(source, target, table, began_ms) for table in ("records", "notifications")]
    load.stop()

    assert load.again == []
    assert sum(step.refused for step in steps) == 0
    assert target.use(lambda store: differences(store, load.known, load.now_ms())) == []


def dual_url(source: StoreUnderTest, target: StoreUnderTest) -> str:
    places = f"primary={quote(target.url, safe='')}&secondary={quote(source.url, safe='')}"
    return f"dual:?{places}&tombstones=1"


@pytest.mark.redis
@pytest.mark.postgres
def test_a_job_copies_goes_on_where_it_was_cut_off_and_proves_what_it_did(
    ctx: Context, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source = StoreUnderTest(fresh_url("redis", request), tmp_path / "source")
    target = StoreUnderTest(fresh_url("postgres", request), tmp_path / "target")
    population = StorePopulation(600, ctx.clock.now_ms())
    source.use(population.load)
    move = Move("waystation.storage.dual.copy:open_copier", source.place, target.place, "test")

    def cut_off(told: str) -> None:
        if told.startswith("copy notifications: 4 of 8"):
            raise CutOffError

    with pytest.raises(CutOffError):
        migrate.copy(ctx, move, parts=8, tell=cut_off)
    told: list[str] = []
    steps = {step.phase: step for step in migrate.copy(ctx, move, parts=8, tell=told.append)}
    assert told[0] == "copy notifications: 8 of 8 parts", "it began anew"
    assert [steps[phase].parts for phase in PHASES] == [8, 8, 8, 8]
    assert steps["copy records"].written == 600

    async def change_a_byte(store: PushStore) -> None:
        member = population.member(599)
        (note,) = [one for one in member.messages if one.topic is None][:1]
        await store.save(member.record.uaid, msgspec.structs.replace(note, data="A" * 192))

    async def leave_some_behind(store: PushStore) -> None:
        """One that its user agent could fetch, and one of a subscription that is gone."""
        uaid, own = population.uaid(1), population.channel(1, 0)
        for channel in (own, population.channel(1, 97)):
            await store.save(uaid, population.message(1, channel, population.now_ms, "left"))

    async def replace_a_topic(store: PushStore) -> None:
        """By one that was posted to the target a moment later."""
        number, channel = 7, population.channel(7, 0)
        note = population.message(number, channel, population.now_ms, "newer", topic="news")
        await store.save(population.uaid(number), note)

    target.use(change_a_byte)
    target.use(replace_a_topic)
    source.use(leave_some_behind)
    records, waiting = migrate.verify(ctx, move)

    assert (records.source, records.target, records.buckets, records.lost) == (600, 600, 0, 0)
    assert (waiting.missing, waiting.different) == (1, 1)  # orphans wait for nobody


class CutOffError(Exception):
    """The process ends here."""
