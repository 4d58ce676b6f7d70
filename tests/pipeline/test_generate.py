"""Synthetic traffic in a frame, in the lake and in segments; the truth about it is known."""

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.samples import ODD, USUAL
from waystation.base.clock import SystemClock
from waystation.pipeline import generate
from waystation.pipeline.delta_table import Lake
from waystation.pipeline.job_context import Context
from waystation.pipeline.jobs import fold, ingest
from waystation.pipeline.schema import EVENTS, MSG_INC
from waystation.pipeline.traffic import SKEWED, rows
from waystation.telemetry import contract


def test_a_frame_of_a_slice_has_its_rows(spark: SparkSession) -> None:
    names = list(contract.COLUMNS)
    slice_ = Counter(tuple(row.get(name) for name in names) for row in rows(ODD, 900, 1100))
    part = generate.events(spark, ODD, 900, 1100).select(*names).collect()

    assert Counter(tuple(row) for row in part) == slice_


def test_oddities_are_there_and_known() -> None:
    made = list(rows(ODD))
    numbers: dict[tuple[str, int], set[int]] = {}
    told: Counter[tuple[str, int]] = Counter()
    for row in made:
        numbers.setdefault((row["node"], row["boot"]), set()).add(row["seq"])
        if "mid" in row:
            told[row["mid"], row["k"]] += 1
    skewed = [row for row in made if row["node"] == SKEWED and row["k"] == 6]
    began = {row["mid"]: row["ts"] for row in made if row["k"] == 0}

    assert Counter(row["k"] for row in made) == ODD.codes()
    assert len(numbers) == 8 * 2, "every node has two lives"
    assert sum(max(seqs) + 1 - len(seqs) for seqs in numbers.values()) == ODD.lost_lines() > 0
    assert sum(count > 1 for count in told.values()) == ODD.repeated() > 0
    assert any(row["ts"] < began[row["mid"]] for row in skewed if row["mid"] in began)
    assert any(row["ts"] < ODD.start_us - 86_400_000_000 for row in made), "nothing is late"
    assert ODD.codes()[20] - ODD.codes()[29] == ODD.unclosed() > 0
    assert ODD.outcomes()["expired"] > USUAL.outcomes()["expired"]


def test_counts_and_sequence_numbers_are_known_without_the_events() -> None:
    made = list(rows(USUAL))
    by_node: dict[str, list[int]] = {}
    for row in made:
        by_node.setdefault(row["node"], []).append(row["seq"])

    assert Counter(row["k"] for row in made) == USUAL.codes()
    assert len(made) == USUAL.event_count()
    for seqs in by_node.values():
        assert sorted(seqs) == list(range(len(seqs)))
    assert sum(USUAL.outcomes().values()) == USUAL.messages
    for row in made:
        kind = contract.KINDS[row["k"]]
        assert set(kind.required) <= row.keys()
        assert row.keys() - set(kind.required) - set(kind.optional) <= {
            *("v", "ts", "node", "boot", "seq", "k")
        }


def test_files_in_the_lake_are_as_readers_expect_them(lake: Lake) -> None:
    """The tasks write them, not Spark: rows, statistics and partitions are right nevertheless, and
    a second run adds nothing."""
    ctx = Context(lake.spark, lake, lake.clock)
    made = generate.to_lake(ctx, ODD)
    again = generate.to_lake(ctx, ODD)
    handle = lake.table(EVENTS).open()
    files = handle.files()
    read = handle.read().select("date", "hour", "ts", "seq", "mid", "_in").collect()
    hours: dict[tuple[str, str], list[int]] = {}
    for row in read:
        hours.setdefault((str(row.date), str(row.hour)), []).append(row.ts)

    assert again.state == "noop"
    assert made.rows_out == sum(file.rows for file in files) == len(read) == ODD.event_count()
    assert {(file.partition["date"], file.partition["hour"]) for file in files} == hours.keys()
    for date_and_hour, times in hours.items():
        theirs = [file for file in files if tuple(file.partition.values()) == date_and_hour]
        assert min(int(file.least or 0) for file in theirs) == min(times)
        assert max(int(file.greatest or 0) for file in theirs) == max(times)
    assert {row["_in"] for row in read} == {lake.clock.now_us()}
    assert Counter((row.ts, row.seq, row.mid) for row in read) == Counter(
        (row["ts"], row["seq"], row.get("mid")) for row in rows(ODD)
    )


@pytest.fixture(scope="module")
def ctx(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Context:
    """A lake that was filled through segments, with the clock of the machine."""
    clock = SystemClock()
    lake = Lake(spark, str(tmp_path_factory.mktemp("lake")), clock)
    return Context(spark, lake, clock)


def test_generated_segments_arrive_whole_and_fold_to_the_known_outcomes(
    ctx: Context, tmp_path: Path
) -> None:
    made = generate.to_segments(ctx, USUAL, tmp_path / "spool")
    taken = ingest.drain(ctx, tmp_path / "spool")
    fold.run(ctx)

    assert made.rows_out == taken.rows_out == USUAL.event_count()
    assert not taken.notes, "no line is bad"
    codes = {row.k: row["count"] for row in ctx.lake.read(EVENTS).groupBy("k").count().collect()}
    assert codes == USUAL.codes()
    seen = ctx.lake.read(MSG_INC).select("seen").collect()
    delivered = sum(1 for row in seen if row.seen & 1 << 8)
    assert len(seen) == USUAL.messages
    assert delivered == USUAL.outcomes()["delivered"]
