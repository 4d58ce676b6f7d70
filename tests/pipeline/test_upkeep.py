"""Compaction, retention, rebuilding, forgetting: the same rows, or exactly the ones asked for."""

import random
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from tests.oracle import fold as oracle
from tests.pipeline.conftest import NOW_MS
from tests.pipeline.frames import events_frame
from tests.pipeline.spools import Source, random_mids
from waystation.base.clock import ManualClock
from waystation.pipeline.delta_table import Lake, LostRaceError
from waystation.pipeline.job_context import Context
from waystation.pipeline.jobs import compact, fold, forget, merge, rebuild, vacuum
from waystation.pipeline.schema import EVENTS, MSG, MSG_INC
from waystation.pipeline.transforms.fold import messages

DAY_S = 86_400.0
Event = dict[str, Any]


@pytest.fixture
def ctx(lake: Lake) -> Context:
    return Context(lake.spark, lake, lake.clock)


def add_events(ctx: Context, seed: int) -> list[Event]:
    rng = random.Random(seed)
    start_us = NOW_MS * 1000 - 5 * 3600 * 1_000_000
    mids = random_mids(rng, 6, start_us)
    source = Source(rng, "a.b.0", start_us + seed, start_us)
    made = [dict.fromkeys(EVENTS.data.names) | source.any_event(mids) for _ in range(60)]
    handle = ctx.lake.table(EVENTS).open()
    frame = events_frame(ctx.spark, made).withColumn("_in", F.lit(0).cast("bigint"))
    handle.append(handle.write(frame, f"add{seed}"), f"add{seed}", {})
    return made


def identities(ctx: Context) -> list[tuple[Any, ...]]:
    rows = ctx.lake.read(EVENTS).select("node", "boot", "seq").collect()
    return sorted(tuple(row) for row in rows)


def folded(ctx: Context) -> dict[str, tuple[Any, ...]]:
    frame = messages(ctx.lake.read(MSG), ctx.lake.read(MSG_INC)).select(*oracle.COLUMNS)
    return {row.mid: tuple(row) for row in frame.collect()}


def on_disk(ctx: Context, name: str) -> list[Path]:
    return sorted(Path(ctx.lake.root, name, "data").rglob("*.parquet"))


def test_compaction_keeps_rows_shows_consumers_nothing_and_has_an_end(ctx: Context) -> None:
    made = [event for seed in range(3) for event in add_events(ctx, seed)]
    fold.run(ctx)
    before = len(ctx.lake.table(EVENTS).open().files())
    seen = identities(ctx)
    ctx.clock.advance(7200)  # pyright: ignore[reportAttributeAccessIssue]

    assert compact.run(ctx, [EVENTS], files_max=1).state == "done"
    assert len(ctx.lake.table(EVENTS).open().files()) < before
    assert identities(ctx) == seen
    assert fold.run(ctx).state == "noop"
    assert compact.run(ctx, [EVENTS], files_max=2).state == "noop"
    assert folded(ctx) == oracle.fold(made)


def test_a_rebuilt_day_equals_the_one_that_was_kept_up(ctx: Context) -> None:
    made = add_events(ctx, 1)
    fold.run(ctx)
    made += add_events(ctx, 2)
    fold.run(ctx)
    merge.run(ctx, all_days=True)
    truth = oracle.fold(made)
    assert folded(ctx) == truth
    days = ctx.lake.table(MSG).open().partition_values("mdate")
    lost = ctx.lake.table(MSG).open()
    lost.swap(lost.files(), [], "lost")

    rebuild.run(ctx, [date.fromisoformat(day) for day in days])

    assert folded(ctx) == truth


def test_files_leave_the_disk_after_their_time_and_not_before_they_were_read(
    ctx: Context, clock: ManualClock
) -> None:
    add_events(ctx, 1)
    fold.run(ctx)
    made = add_events(ctx, 2)
    handle = ctx.lake.table(EVENTS).open()
    handle.write(handle.read(), "died")  # nobody commits it
    clock.advance(7200)
    compact.run(ctx, [EVENTS], files_max=1)
    everything = on_disk(ctx, "events")

    assert vacuum.run(ctx, [EVENTS], apply=True)[0].files == 0  # too soon
    clock.advance(8 * DAY_S)
    dry = vacuum.run(ctx, [EVENTS], apply=False)[0]
    assert on_disk(ctx, "events") == everything
    wet = vacuum.run(ctx, [EVENTS], apply=True)[0]
    assert (wet.files, wet.bytes) == (dry.files, dry.bytes)
    # What `fold` has not read yet is still there, although it was removed from the table.
    assert fold.run(ctx).rows_in == len(made)

    vacuum.run(ctx, [EVENTS], apply=True)
    named = {file.path for file in ctx.lake.table(EVENTS).open().files()}
    root = Path(ctx.lake.root, "events")
    orphans = {str(p.relative_to(root)) for p in on_disk(ctx, "events")} - named
    assert {path.split("/")[1] for path in orphans} <= {"died"}  # young by the disk's own clock
    assert len(identities(ctx)) == 120


def test_partitions_past_their_retention_leave_the_table(ctx: Context, clock: ManualClock) -> None:
    add_events(ctx, 1)
    fold.run(ctx)
    clock.advance(63 * DAY_S)

    assert [one.partitions > 0 for one in vacuum.run(ctx, [EVENTS, MSG_INC], apply=False)] == [
        False,
        True,
    ]
    gone = {one.table: one.rows for one in vacuum.run(ctx, [EVENTS, MSG_INC], apply=True)}
    assert gone["events"] == 0
    assert gone["msg_inc"] > 0
    assert ctx.lake.read(MSG_INC).count() == 0
    clock.advance(31 * DAY_S)
    vacuum.run(ctx, [EVENTS], apply=True)
    assert ctx.lake.read(EVENTS).count() == 0


def test_forgotten_ids_are_in_no_file_any_more_and_everybody_else_is(ctx: Context) -> None:
    made = add_events(ctx, 1) + add_events(ctx, 2)
    fold.run(ctx)
    merge.run(ctx, all_days=True)
    client = next(event for event in made if event["uah"] is not None and event["mid"] is not None)
    gone = {event["mid"] for event in made if event["uah"] == client["uah"]} - {None}
    kept = [event for event in made if event["uah"] != client["uah"] and event["mid"] not in gone]

    dry = forget.run(ctx, {"uah": {client["uah"]}}, apply=False)
    assert len(identities(ctx)) == len(made)
    receipts = forget.run(ctx, {"uah": {client["uah"]}}, apply=True)

    assert [(one.table, one.rows) for one in dry] == [(one.table, one.rows) for one in receipts]
    assert sum(one.rows for one in receipts if one.table == "events") == len(made) - len(kept)
    assert identities(ctx) == sorted((e["node"], e["boot"], e["seq"]) for e in kept)
    assert folded(ctx) == oracle.fold(kept)
    for name in ("events", "msg", "msg_inc"):
        for path in on_disk(ctx, name):
            table = pq.read_table(path)
            mids = set(table.column("mid").to_pylist())
            assert not mids & gone
            if name == "events":
                assert client["uah"] not in table.column("uah").to_pylist()
    assert all(one.rows == 0 for one in forget.run(ctx, {"uah": {client["uah"]}}, apply=True))


@pytest.mark.parametrize("forget_first", [True, False])
def test_compaction_against_forgetting_never_brings_rows_back_nor_doubles_them(
    ctx: Context, *, forget_first: bool
) -> None:
    made = add_events(ctx, 1) + add_events(ctx, 2)
    uah = next(event["uah"] for event in made if event["uah"] is not None)
    raced: list[str] = []

    def rival(point: str, table: str) -> None:
        if (point, table) == ("committing", "events") and not raced:
            raced.append(table)
            if forget_first:
                forget.run(ctx, {"uah": {uah}}, apply=True)
            else:
                compact.run(ctx, [EVENTS], files_max=1)

    slow = Context(ctx.spark, Lake(ctx.spark, ctx.lake.root, ctx.clock, at=rival), ctx.clock)
    ctx.clock.advance(7200)  # pyright: ignore[reportAttributeAccessIssue]
    compaction = lambda: compact.run(slow, [EVENTS], files_max=1)  # noqa: E731 one of two
    forgetting = lambda: forget.run(slow, {"uah": {uah}}, apply=True)  # noqa: E731 as above
    late = compaction if forget_first else forgetting
    with pytest.raises(LostRaceError):
        late()
    forget.run(ctx, {"uah": {uah}}, apply=True)

    assert raced
    mids = {event["mid"] for event in made if event["uah"] == uah} - {None}
    kept = [event for event in made if event["uah"] != uah and event["mid"] not in mids]
    assert identities(ctx) == sorted((e["node"], e["boot"], e["seq"]) for e in kept)
