"""Connections and party sessions, compared with an oracle that follows each of them."""

import datetime as dt
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.oracle import sessions as oracle
from tests.oracle.troubled_events import DAY, DAY_START_US, DAY_US, NOW_US, Row
from tests.pipeline.frames import Trouble, assert_same, duck, events_frame, frame, rows_of
from waystation.pipeline.transforms import connections, presence

NEXT_DAY = DAY + dt.timedelta(days=1)


class Visits:
    """The date of trouble, and the date after it, on which some come to an end."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        of_day = Trouble.of(spark)
        self.today, self.frame = of_day.events, of_day.frame
        self.tomorrow = [later(event) for event in self.today if is_tale(event)]
        self.next_frame = events_frame(spark, self.tomorrow).cache()
        self.connections = oracle.connections(self.today, [], DAY)
        self.parties = oracle.party_sessions(self.today, [], DAY, NOW_US)

    def open_connections(self) -> list[Row]:
        return [row for row in self.connections if row["status"] == "open"]

    def open_parties(self) -> list[Row]:
        return [row for row in self.parties if row["status"] == "open"]


def is_tale(event: Row) -> bool:
    """What may be told on the date after as well: ends, returns, and half of the nodes."""
    return event["k"] in (29, 201, 203, 207) or (event["k"] >= 300 and event["boot"] % 2 == 0)


def later(event: Row) -> Row:
    """A third of the processes has been replaced by then."""
    boot = event["boot"] + (DAY_US if event["boot"] % 3 == 0 else 0)
    return event | {"ts": event["ts"] + DAY_US, "seq": event["seq"] + 10**6, "boot": boot}


@pytest.fixture(scope="module")
def visits(spark: SparkSession) -> Visits:
    return Visits(spark)


def test_connections_are_found_whatever_was_lost_of_them(visits: Visits) -> None:
    nobody = frame(visits.spark, [], connections.CONN_SESSIONS)

    assert {row["status"] for row in visits.connections} == {"open", "closed", "crashed"}
    assert any(row["away_us"] for row in visits.connections)
    assert_same(connections.sessions(visits.frame, nobody, DAY), visits.connections)


def test_a_date_begins_with_the_connections_that_the_last_one_left_open(visits: Visits) -> None:
    left_open = visits.open_connections()
    expected = oracle.connections(visits.tomorrow, left_open, NEXT_DAY)
    carried = frame(visits.spark, left_open, connections.CONN_SESSIONS)

    assert {row["status"] for row in expected} == {"open", "closed", "crashed"}
    assert any(row["opened_at"] < DAY_START_US + DAY_US for row in expected)
    assert_same(connections.sessions(visits.next_frame, carried, NEXT_DAY), expected)


def test_connections_are_counted_for_each_minute_and_hour(visits: Visits) -> None:
    carried = oracle.connections(visits.tomorrow, visits.open_connections(), NEXT_DAY)
    rows = frame(visits.spark, carried, connections.CONN_SESSIONS)

    assert_same(connections.minutely(rows, NEXT_DAY), oracle.connection_minutes(carried, NEXT_DAY))
    assert_same(connections.hourly(visits.frame), oracle.connection_hours(visits.today, DAY))


def test_duckdb_counts_the_same_connections_in_the_same_files(
    visits: Visits, tmp_path: Path
) -> None:
    rows = frame(visits.spark, visits.connections, connections.CONN_SESSIONS)
    rows.write.parquet(str(tmp_path / "sessions"))
    found = duck(
        f"""
        with minutes as (select unnest(range(1440)) as minute)
        select minute, (
          select count(*) from read_parquet('{tmp_path}/sessions/*.parquet')
          where opened_at < {DAY_START_US} + (minute + 1) * 60000000
            and (ended_at is null or ended_at >= {DAY_START_US} + (minute + 1) * 60000000)
        ) as present from minutes"""
    )  # fmt: skip

    assert_same(connections.minutely(rows, DAY).select("minute", "present"), found)


def test_party_sessions_are_found_whatever_was_lost_of_them(visits: Visits) -> None:
    nobody = frame(visits.spark, [], presence.PARTY_SESSIONS)

    assert {row["status"] for row in visits.parties} == {"open", "left", "vanished"}
    assert Counter(row["balanced"] for row in visits.parties).keys() == {True, False, None}
    assert_same(presence.sessions(visits.frame, nobody, DAY, NOW_US), visits.parties)


def test_a_date_begins_with_the_sessions_that_the_last_one_left_open(visits: Visits) -> None:
    left_open = visits.open_parties()
    now_us = NOW_US + DAY_US
    expected = oracle.party_sessions(visits.tomorrow, left_open, NEXT_DAY, now_us)
    carried = frame(visits.spark, left_open, presence.PARTY_SESSIONS)

    assert {row["status"] for row in expected} == {"open", "left", "vanished"}
    assert_same(presence.sessions(visits.next_frame, carried, NEXT_DAY, now_us), expected)


def test_party_sessions_are_counted_for_each_minute_and_hour(visits: Visits) -> None:
    rows = frame(visits.spark, visits.parties, presence.PARTY_SESSIONS)

    assert_same(presence.minutely(rows, DAY), oracle.party_minutes(visits.parties, DAY))
    assert_same(presence.hourly(visits.frame), oracle.party_hours(visits.today, DAY))
    assert_same(presence.latency(visits.frame), oracle.party_latency(visits.today, DAY))


def test_the_peak_of_a_minute_is_seen_though_all_are_gone_at_its_end(
    visits: Visits,
) -> None:
    (like, *_) = (row for row in visits.connections if row["ended_at"] is not None)
    start = DAY_START_US + 60_000_000
    rows = [
        like | {"opened_at": start + at, "ended_at": start + at + 10_000_000, "hello_at": None}
        for at in (1_000_000, 2_000_000, 20_000_000)
    ]
    of_minute = connections.minutely(
        frame(visits.spark, rows, connections.CONN_SESSIONS), DAY
    ).where("minute = 1")

    (row,) = rows_of(of_minute)
    assert (row["present"], row["peak"]) == (0, 2)


def test_nobody_is_left_when_everybody_has_gone(visits: Visits) -> None:
    ended = [row for row in visits.connections if row["ended_at"] is not None]
    rows = frame(visits.spark, ended, connections.CONN_SESSIONS)
    minutes = rows_of(connections.minutely(rows, DAY))

    assert len(minutes) == 1440
    assert max(minutes, key=lambda row: row["minute"])["present"] == 0
