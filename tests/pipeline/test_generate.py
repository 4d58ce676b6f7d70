"""Synthetic traffic: Spark and plain Python make the same rows, and both hold the known truth."""

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from waystation.base.clock import SystemClock
from waystation.pipeline import generate
from waystation.pipeline.job import Context
from waystation.pipeline.jobs import fold, ingest
from waystation.pipeline.schema import EVENTS, MSG_INC
from waystation.pipeline.table import Lake
from waystation.pipeline.traffic import SKEWED, Traffic, draw, rows
from waystation.telemetry import contract

TRAFFIC = Traffic(seed=7, messages=2_345, days=2)
ODD = Traffic(
    seed=8,
    messages=2_345,
    repeats=50,
    late=40,
    disordered=60,
    endless=70,
    lossy=30,
    skew_ms=1_500,
    restarts=1,
)


def test_the_hash_is_the_one_of_spark(spark: SparkSession) -> None:
    numbers = [(1, 0, 0), (7, 123_456_789, 3), (2**40, 2**62, 999)]
    frame = spark.createDataFrame(numbers, "a bigint, b bigint, c bigint")
    theirs = frame.select(F.shiftrightunsigned(F.xxhash64("a", "b", "c"), 1)).collect()

    assert [row[0] for row in theirs] == [draw(*three) for three in numbers]


@pytest.mark.parametrize("traffic", [TRAFFIC, ODD], ids=["plain", "odd"])
def test_both_twins_make_the_same_rows(spark: SparkSession, traffic: Traffic) -> None:
    names = list(contract.COLUMNS)
    ours = Counter(tuple(row.get(name) for name in names) for row in rows(traffic))
    theirs = Counter(tuple(row) for row in generate.events(spark, traffic).select(*names).collect())

    assert theirs == ours


def test_a_slice_can_be_made_alone(spark: SparkSession) -> None:
    names = list(contract.COLUMNS)
    slice_ = Counter(tuple(row.get(name) for name in names) for row in rows(TRAFFIC, 900, 1100))
    part = generate.events(spark, TRAFFIC, 900, 1100).select(*names).collect()

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
    assert ODD.outcomes()["lost"] > TRAFFIC.outcomes()["lost"]


def test_counts_and_sequence_numbers_are_known_without_the_events() -> None:
    made = list(rows(TRAFFIC))
    by_node: dict[str, list[int]] = {}
    for row in made:
        by_node.setdefault(row["node"], []).append(row["seq"])

    assert Counter(row["k"] for row in made) == TRAFFIC.codes()
    assert len(made) == TRAFFIC.event_count()
    for seqs in by_node.values():
        assert sorted(seqs) == list(range(len(seqs)))
    assert sum(TRAFFIC.outcomes().values()) == TRAFFIC.messages
    for row in made:
        kind = contract.KINDS[row["k"]]
        assert set(kind.required) <= row.keys()
        assert row.keys() - set(kind.required) - set(kind.optional) <= {
            *("v", "ts", "node", "boot", "seq", "k")
        }


@pytest.fixture(scope="module")
def ctx(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Context:
    """A lake that was filled through segments, with the clock of the machine."""
    clock = SystemClock()
    lake = Lake(spark, str(tmp_path_factory.mktemp("lake")), clock)
    return Context(spark, lake, clock)


def test_generated_segments_arrive_whole_and_fold_to_the_known_outcomes(
    ctx: Context, tmp_path: Path
) -> None:
    made = generate.to_segments(ctx, TRAFFIC, tmp_path / "spool")
    taken = ingest.drain(ctx, tmp_path / "spool")
    fold.run(ctx)

    assert made.rows_out == taken.rows_out == TRAFFIC.event_count()
    assert not taken.notes, "no line is bad"
    codes = {row.k: row["count"] for row in ctx.lake.read(EVENTS).groupBy("k").count().collect()}
    assert codes == TRAFFIC.codes()
    seen = ctx.lake.read(MSG_INC).select("seen").collect()
    delivered = sum(1 for row in seen if row.seen & 1 << 8)
    assert len(seen) == TRAFFIC.messages
    assert delivered == TRAFFIC.outcomes()["delivered"]
