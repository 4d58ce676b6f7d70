"""Milestones into one row a message: the oracle, the laws of a semilattice, dying on the way."""

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.oracle import fold as oracle
from tests.oracle import intake as intake_oracle
from tests.pipeline.conftest import NOW_MS
from tests.pipeline.frames import events_frame
from tests.pipeline.spools import Source, odd_spool, random_mids
from waystation.pipeline.delta_table import Lake
from waystation.pipeline.job_context import Context
from waystation.pipeline.jobs import fold as fold_job
from waystation.pipeline.jobs import ingest
from waystation.pipeline.jobs import merge as merge_job
from waystation.pipeline.schema import EVENTS, FOLDED, MSG, MSG_INC
from waystation.pipeline.settings import Pipeline
from waystation.pipeline.transforms.fold import fold, merge, messages

Event = dict[str, Any]
TOLERANT = Pipeline(quarantine_share_max=1.0)
SEEDS = 200


def rows(frame: DataFrame) -> dict[str, tuple[Any, ...]]:
    found = [tuple(row) for row in frame.select(*FOLDED.names).collect()]
    assert len({row[0] for row in found}) == len(found), "a message twice"
    return {row[0]: row for row in found}


def random_events(seed: int) -> list[Event]:
    """Milestones and other events of a few messages: repeated, out of order, some missing."""
    rng = random.Random(seed)
    start_us = NOW_MS * 1000
    mids = random_mids(rng, rng.randrange(1, 8), start_us)
    source = Source(rng, "a.b.0", start_us, start_us)
    events = [source.any_event(mids) for _ in range(rng.randrange(1, 80))]
    events += rng.choices(events, k=len(events) // 10)
    rng.shuffle(events)
    return [dict.fromkeys(EVENTS.data.names) | event for event in events]


@pytest.fixture(scope="module")
def cases() -> list[list[Event]]:
    """Two hundred seeds. Their messages differ, so one frame holds them all."""
    return [random_events(seed) for seed in range(SEEDS)]


def all_of(cases: Iterable[Iterable[Event]]) -> list[Event]:
    return [event for case in cases for event in case]


def test_folding_gives_what_the_oracle_gives(spark: SparkSession, cases: list[list[Event]]) -> None:
    events = all_of(cases)

    assert rows(fold(events_frame(spark, events))) == oracle.fold(events)


def test_folding_is_a_join_of_a_semilattice(spark: SparkSession, cases: list[list[Event]]) -> None:
    """Shuffled, repeated, or split and merged: the same rows."""
    events = all_of(cases)
    truth = oracle.fold(events)
    rng = random.Random(7)
    shuffled = rng.sample(events, len(events))
    cut = [rng.random() < 0.5 for _ in events]
    first = [event for event, left in zip(events, cut, strict=True) if left]
    second = [event for event, left in zip(events, cut, strict=True) if not left]
    a, b = fold(events_frame(spark, first)), fold(events_frame(spark, second))

    assert rows(fold(events_frame(spark, shuffled + events))) == truth
    assert rows(messages(a, b)) == truth
    assert rows(messages(b.unionByName(a), a)) == truth  # in any order, and twice
    assert rows(merge(merge(a.unionByName(b)))) == truth


def test_buffers_have_a_fixed_width(spark: SparkSession, cases: list[list[Event]]) -> None:
    """Rule 2: Spark must not fall back to sorting, which costs half as much again."""
    frame = fold(events_frame(spark, cases[0]))
    java: Any = frame._jdf
    plan = java.queryExecution().executedPlan().toString()

    assert "HashAggregate" in plan
    assert "SortAggregate" not in plan
    assert "ObjectHashAggregate" not in plan


def lake_messages(ctx: Context) -> dict[str, tuple[Any, ...]]:
    return rows(messages(ctx.lake.read(MSG), ctx.lake.read(MSG_INC)))


class Killed(BaseException):
    """Not an error that anybody catches: the process is gone."""


class Death:
    """A hook that lets a job die at one point, once."""

    def __init__(self) -> None:
        self.armed: tuple[str, str] | None = None

    def __call__(self, point: str, table: str) -> None:
        if (point, table) == self.armed:
            self.armed = None
            raise Killed


POINTS = {
    "fold": (("written", "msg_inc"), ("committing", "msg_inc"), ("committed", "msg_inc")),
    "merge": (
        *(("written", "msg"), ("committing", "msg")),
        *(("committed", "msg"), ("committing", "msg_inc"), ("committed", "msg_inc")),
    ),
}


@pytest.mark.parametrize("job", POINTS)
def test_a_job_that_dies_anywhere_and_runs_again_has_done_its_work_once(
    lake: Lake, cases: list[list[Event]], job: str
) -> None:
    """Each point gets new input, dies there, and is run again; the tables then hold the truth."""
    death = Death()
    deadly = Lake(lake.spark, lake.root, lake.clock, at=death)
    ctx = Context(lake.spark, deadly, lake.clock, TOLERANT)
    run = fold_job.run if job == "fold" else merge_job.run
    taken: list[Event] = []
    for number, point in enumerate(POINTS[job]):
        # Some of what the last one had comes again, as late events of the same messages.
        taken += (new := cases[number] + cases[number - 1][::2])
        events = lake.table(EVENTS).open()
        frame = events_frame(lake.spark, new).selectExpr("*", "0L as _in")
        events.append(events.write(frame, f"{number}"), f"{number}", {})
        if job == "merge":
            fold_job.run(ctx)
        death.armed = point
        with pytest.raises(Killed):
            run(ctx)
        run(ctx)

    assert lake_messages(ctx) == oracle.fold(taken)


def test_batches_and_jobs_in_any_order_give_what_one_pass_over_everything_gives(
    lake: Lake, tmp_path: Path
) -> None:
    rng = random.Random(3)
    spool, whole = tmp_path / "spool", tmp_path / "whole"
    odd_spool(whole, 11, NOW_MS, sources=5, odd=0.0)
    ctx = Context(lake.spark, lake, lake.clock, TOLERANT)
    segments = sorted(whole.glob("*/*.jsonl"), key=lambda path: path.stat().st_mtime)
    done: list[str] = []
    while segments:
        for path in segments[:3]:
            (spool / path.parent.name).mkdir(parents=True, exist_ok=True)
            path.rename(spool / path.parent.name / path.name)
        segments = segments[3:]
        ingest.drain(ctx, spool)
        for step in rng.sample(("fold", "merge", "merge all", "fold"), k=rng.randrange(3)):
            done.append(step)
            if step == "fold":
                fold_job.run(ctx)
            else:
                merge_job.run(ctx, all_days=step == "merge all")
    fold_job.run(ctx)

    truth = oracle.fold(intake_oracle.judge(spool).events)
    assert {"fold", "merge all"} <= set(done)
    assert lake_messages(ctx) == truth
    assert rows(fold(ctx.lake.read(EVENTS))) == truth
    merge_job.run(ctx, all_days=True)
    assert ctx.lake.read(MSG_INC).count() == 0
    assert rows(ctx.lake.read(MSG)) == truth
