"""Outcome, funnel, latency and loss of messages, compared with an oracle that looks at each."""

import math
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.oracle import messages as oracle
from tests.oracle import nodes
from tests.oracle.troubled_events import DAY, NOW_US, Row
from tests.pipeline.frames import Trouble, assert_same, duck, frame, rows_of
from waystation.pipeline.schema import FOLDED
from waystation.pipeline.transforms import reliability
from waystation.pipeline.transforms.histogram import quantiles
from waystation.pipeline.transforms.reconcile import reconcile, sequence


class Judged:
    """Messages of two hundred cases of trouble, and what the oracle makes of them."""

    def __init__(self, spark: SparkSession) -> None:
        of_day = Trouble.of(spark)
        self.events = of_day.events
        self.messages = oracle.folded(self.events)
        self.judged = oracle.judged(self.messages, NOW_US)
        self.events_frame = of_day.frame
        messages = frame(spark, self.messages, FOLDED)
        self.outcomes: DataFrame = reliability.outcomes(messages, NOW_US).cache()


@pytest.fixture(scope="module")
def trouble(spark: SparkSession) -> Judged:
    return Judged(spark)


def test_every_message_has_the_outcome_that_the_oracle_gives_it(trouble: Judged) -> None:
    assert {row["outcome"] for row in trouble.judged} == set(reliability.OUTCOMES)
    assert {row["gap"] for row in trouble.judged} == {True, False}
    assert_same(trouble.outcomes, trouble.judged)


def test_the_funnel_counts_milestones_and_outcomes(trouble: Judged) -> None:
    assert_same(reliability.hourly(trouble.outcomes), oracle.hourly(trouble.judged))


def test_latencies_fall_into_the_oracles_buckets(trouble: Judged) -> None:
    expected = oracle.latency(trouble.judged)

    assert any(row["clamped"] for row in expected)
    assert_same(reliability.latency(trouble.outcomes), expected)


def test_any_roll_up_of_buckets_gives_the_same_quantiles(trouble: Judged) -> None:
    buckets = reliability.latency(trouble.outcomes)
    by_path = oracle.quantiles(oracle.latency(trouble.judged), ("measure", "path"))

    assert_same(quantiles(buckets, ["measure", "path"]), by_path)
    assert_same(
        quantiles(buckets, ["measure"]),
        oracle.quantiles(oracle.latency(trouble.judged), ("measure",)),
    )


def test_quantiles_lie_within_a_hundredth_of_the_true_ones(trouble: Judged) -> None:
    found = {row["measure"]: row for row in rows_of(quantiles(
        reliability.latency(trouble.outcomes), ["measure"]
    ))}  # fmt: skip
    for measure in reliability.MEASURES:
        values = sorted(max(row[measure], 0) for row in trouble.judged if row[measure] is not None)
        for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            true_ms = values[math.ceil(share * len(values)) - 1] / 1000

            assert found[measure][f"{name}_ms"] == pytest.approx(true_ms, rel=0.0101, abs=1.0)


def test_a_lost_message_names_who_saw_it_last(trouble: Judged) -> None:
    expected = oracle.lost(trouble.judged, trouble.events)

    assert len(expected) > 20
    assert_same(reliability.loss(trouble.outcomes, trouble.events_frame), expected)


def test_nodes_and_repeats_are_counted(trouble: Judged) -> None:
    assert_same(reliability.by_node(trouble.events_frame), nodes.by_node(trouble.events))
    assert_same(reliability.repeats(trouble.events_frame), nodes.repeats(trouble.events))


def test_counters_of_nodes_agree_with_the_lake_or_a_gap_explains_it(trouble: Judged) -> None:
    expected = nodes.reconciled(trouble.events, DAY)

    assert {row["explained"] for row in expected} == {True, False}
    assert_same(reconcile(trouble.events_frame), expected)


def test_numbers_that_no_line_has_are_missing(trouble: Judged) -> None:
    expected = nodes.numbered(trouble.events, DAY)

    assert sum(row["missing"] for row in expected) > 0
    assert all(row["missing"] >= 0 for row in expected)
    assert_same(sequence(trouble.events_frame), expected)


def test_duckdb_finds_the_same_funnel_in_the_same_files(
    trouble: Judged, spark: SparkSession, tmp_path: Path
) -> None:
    frame(spark, trouble.messages, FOLDED).write.parquet(str(tmp_path / "messages"))
    legal = ",".join(map(str, reliability.LEGAL_MASKS))
    files = f"{tmp_path}/messages/*.parquet"
    found = duck(
        f"""
        with known as (
          select *, coalesce(t0, ('0x' || mid[1:12])::bigint * 1000)
              + (coalesce(ttl, 2592000)::bigint + 900) * 1000000 <= {NOW_US} as late
          from read_parquet('{files}')
        ), judged as (
          select *, case
            when seen & 256 != 0 then 'delivered' when seen & 32 != 0 then 'bridged'
            when seen & 1536 != 0 then 'rejected' when seen & 4096 != 0 then 'errored'
            when seen & 8192 != 0 then 'superseded'
            when seen & 16384 != 0 then 'withdrawn'
            when seen & 2048 != 0 or late and (seen & 198 != 0
              or coalesce(ttl = 0, false) and seen & 64 = 0) then 'expired'
            when late then 'lost' else 'in_flight' end as outcome
          from known
        )
        select outcome, count(*) as messages, sum(coalesce(size, 0))::bigint as bytes,
          sum((seen not in ({legal}))::int)::bigint as gap,
          sum((seen & 64 != 0)::int)::bigint as reached_transmitted
        from judged group by outcome"""
    )
    names = ("messages", "bytes", "gap", "reached_transmitted")
    ours = reliability.hourly(trouble.outcomes).groupBy("outcome").agg(dict.fromkeys(names, "sum"))
    renamed = ours.select("outcome", *(ours[f"sum({name})"].alias(name) for name in names))

    assert_same(renamed, found)


def test_the_legal_sets_of_milestones_are_those_that_legal_steps_lead_through() -> None:
    sets = {sum(1 << code for code in passed) for passed in oracle.legal_sets()}

    assert sets == reliability.LEGAL_MASKS
    assert 50 < len(sets) < 32768 / 50


def rows_of_message(mid: str, *steps: tuple[int, int], **columns: object) -> list[Row]:
    blank = dict.fromkeys(("via", "path", "flag", "size", "app", "ttl", "peer"))
    return [blank | columns | {"mid": mid, "k": k, "ts": ts} for k, ts in steps]


def test_a_stored_message_is_in_flight_until_its_deadline_and_expired_from_then_on(
    spark: SparkSession,
) -> None:
    born_us = 1_793_000_000_000_000
    mid = f"{born_us // 1000:012x}" + "0" * 20
    events = rows_of_message(mid, (0, born_us), (1, born_us + 5), ttl=60)
    messages = frame(spark, oracle.folded(events), FOLDED)
    deadline = born_us + (60 + 900) * 1_000_000

    def outcome_at(now_us: int) -> str:
        return rows_of(reliability.outcomes(messages, now_us))[0]["outcome"]

    assert outcome_at(deadline - 1) == "in_flight"
    assert outcome_at(deadline) == "expired"
