"""Abuse and usage, compared with an oracle that counts event by event."""

import datetime as dt

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.oracle import abuse_and_usage as oracle
from tests.oracle.troubled_events import DAY, DAY_US
from tests.pipeline.frames import Trouble, assert_same, events_frame, rows_of
from waystation.pipeline.transforms import abuse, usage


def test_those_who_stand_out_are_found_with_their_evidence(spark: SparkSession) -> None:
    """Floors are low, so that the usual trouble has findings of most kinds."""
    trouble = Trouble.of(spark)
    events = [event for event in trouble.events if event["k"] < 200]
    burst = [event | {"seq": 10**6 + at} for at in range(40) for event in events[:4]]
    frame = events_frame(spark, events + burst)
    hashed = frame.where("k = 26").select(
        "node", "boot", "cid", F.xxhash64("node", "boot", "cid").alias("key")
    )
    connections = {(row["node"], row["boot"], row["cid"]): row["key"] for row in rows_of(hashed)}
    expected = oracle.abuse(events + burst, 2, 0.6, connections)
    found = abuse.findings(frame, floors=dict.fromkeys(abuse.FLOORS, 2), share_min=0.6)

    assert {"hot_slot", "flood_send"} <= {row["kind"] for row in expected}
    assert any(row["first_minute"] < row["last_minute"] for row in expected) or len(expected) > 50
    assert_same(found, expected)


def test_nobody_stands_out_when_everybody_is_below_the_floor(spark: SparkSession) -> None:
    assert abuse.findings(Trouble.of(spark).frame.where("k < 100")).count() == 0


def test_usage_is_counted_for_each_date(spark: SparkSession) -> None:
    trouble = Trouble.of(spark)

    assert_same(usage.daily(trouble.frame), oracle.usage(trouble.events))


def test_any_window_unites_the_sketches_of_its_dates(spark: SparkSession) -> None:
    """Exact here, because fewer than 4096 values are exact in a sketch."""
    few = [event for event in Trouble.of(spark).events if event["k"] in (0, 8, 21)][:4000]
    older = [
        event | {"ts": event["ts"] - 3 * DAY_US, "uah": (event["uah"] or 0) + at % 2}
        for at, event in enumerate(few[:1500])
    ]
    kept = usage.sketches(events_frame(spark, few + older))
    seen = oracle.distinct(few + older)
    whats = {what for _, what in seen}

    def within(what: str, days: int) -> int:
        reach = [DAY - dt.timedelta(days=number) for number in range(days)]
        return len(set[int]().union(*(seen.get((day, what), set()) for day in reach)))

    assert max(within(what, 30) for what in whats) < 4096
    assert_same(
        usage.windows(kept),
        [
            {"days": days, "what": what, "distinct": within(what, days)}
            for days in (1, 7, 30)
            for what in whats
            if within(what, days)
        ],
    )
