"""Load of slots and stores, compared with an oracle that adds up event by event."""

from pathlib import Path

from pyspark.sql import SparkSession

from tests.oracle import load as oracle
from tests.oracle.troubled_events import DAY
from tests.pipeline.frames import Trouble, assert_same, duck, frame
from waystation.pipeline.transforms import capacity, slots


def test_slots_are_counted_for_each_minute(spark: SparkSession) -> None:
    trouble = Trouble.of(spark)
    expected = oracle.slot_minutes(trouble.events, DAY)

    assert any(row["stored_bytes"] for row in expected)
    assert_same(slots.minutely(trouble.frame), expected)


def test_a_slot_weighs_what_its_busy_minutes_and_its_bytes_cost(spark: SparkSession) -> None:
    minutes = oracle.slot_minutes(Trouble.of(spark).events, DAY)
    rows = frame(spark, minutes, slots.SLOT_MINUTELY)

    for window in (1440, 60, 20):  # with few minutes, the ones with rows decide
        expected = oracle.slot_weights(minutes, window, 1.0, 0.1, 10.0)

        assert any(row["ops_p95"] for row in expected) is (window < 1440)
        assert_same(slots.weights(rows, minutes=window), expected)


def test_duckdb_finds_the_same_load_of_slots_in_the_same_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    trouble = Trouble.of(spark)
    trouble.frame.write.parquet(str(tmp_path / "events"))
    found = duck(
        f"""
        select (ts % 86400000000 // 60000000)::int as minute, slot,
          sum(case when k in (100, 101, 103, 104, 105, 106, 107, 112)
              then coalesce(n, 1) * coalesce(w, 1) else 0 end)::bigint as ops,
          sum(case when k = 103 and code = 0 then size else 0 end)::bigint as bytes
        from read_parquet('{tmp_path}/events/*.parquet')
        where k between 100 and 130 and slot is not null group by all"""
    )

    assert_same(slots.minutely(trouble.frame).select("minute", "slot", "ops", "bytes"), found)


def test_what_was_asked_of_stores_is_counted_in_units(spark: SparkSession) -> None:
    trouble = Trouble.of(spark)
    expected = oracle.capacity_minutes(trouble.events, DAY, 1500)
    minutes = capacity.minutely(trouble.frame, router_item_bytes=1500)

    assert {"connects", "message_write", "store:router:read"} <= {
        row["resource"] for row in expected
    }
    assert_same(minutes, expected)
    assert_same(
        capacity.units(frame(spark, expected, capacity.CAP_MINUTELY), headroom=0.3),
        oracle.capacity_units(expected, 0.3),
    )
