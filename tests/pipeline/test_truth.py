"""The generator's own closed form against the transforms: outcomes, gaps, codes and slots."""

from collections import Counter

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.pipeline.frames import rows_of
from waystation.pipeline import generate
from waystation.pipeline.traffic import Traffic
from waystation.pipeline.transforms import fold, reliability, slots

TRAFFIC = Traffic(seed=11, messages=4_321, days=1)
ODD = Traffic(
    seed=12,
    messages=4_321,
    days=1,
    repeats=60,
    late=50,
    disordered=70,
    endless=80,
    lossy=40,
    skew_ms=2_000,
    restarts=2,
)
LATER_US = TRAFFIC.start_us + 40 * 86_400_000_000  # every deadline has passed


@pytest.fixture(scope="module")
def events(spark: SparkSession) -> DataFrame:
    return generate.events(spark, TRAFFIC).cache()


def test_every_message_has_the_outcome_that_it_was_made_with(events: DataFrame) -> None:
    check_outcomes(events, TRAFFIC)


def test_outcomes_are_the_known_ones_whatever_befell_the_events(spark: SparkSession) -> None:
    """Told twice, late, out of order, with a clock that is off, lost, without an end."""
    check_outcomes(generate.events(spark, ODD), ODD)


def check_outcomes(events: DataFrame, traffic: Traffic) -> None:
    outcomes = reliability.outcomes(fold.fold(events), LATER_US)
    found = rows_of(
        outcomes.groupBy("outcome").agg(
            F.count(F.lit(1)).alias("n"), F.sum(F.col("gap").cast("int")).alias("gaps")
        )
    )

    assert {row["outcome"]: row["n"] for row in found} == traffic.outcomes()
    assert sum(row["gaps"] for row in found) == traffic.gaps()


def test_every_event_and_every_send_is_counted_where_it_was_made(events: DataFrame) -> None:
    codes: Counter[int] = Counter()
    for row in rows_of(reliability.by_node(events)):
        codes[row["k"]] += row["events"]
    sends = slots.minutely(events).groupBy("slot").agg(F.sum("sends_ok").alias("n"))

    assert codes == TRAFFIC.codes()
    assert {row["slot"]: row["n"] for row in rows_of(sends)} == TRAFFIC.slot_sends()
