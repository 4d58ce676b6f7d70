"""Jobs over a lake: incremental runs give what one run over everything gives, and the oracle."""

import datetime as dt
import json
import random
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.oracle import habits, load, messages, nodes, visits
from tests.oracle.messages import quantiles as oracle_quantiles
from tests.oracle.oddities import DAY, DAY_START_US, DAY_US, Row, day_of_trouble
from tests.pipeline.frames import assert_same, events_frame, rows_of
from waystation.base.clock import ManualClock
from waystation.pipeline import gold
from waystation.pipeline.dag import STEPS, UnknownJobError, chosen, run_steps
from waystation.pipeline.job import Context
from waystation.pipeline.jobs import rebalance, report
from waystation.pipeline.rebalance import Server
from waystation.pipeline.schema import EVENTS
from waystation.pipeline.table import Lake
from waystation.pipeline.transforms.reliability import MILESTONE_NAMES

NEXT_DAY = DAY + dt.timedelta(days=1)


def two_days(seeds: range) -> list[Row]:
    """Processes of the second day are other ones, so that some connections crash."""
    first = day_of_trouble(seeds, 14)
    second = [
        event | {"ts": event["ts"] + DAY_US, "boot": event["boot"] + DAY_US, "mid": None}
        for event in day_of_trouble(range(seeds.stop, seeds.stop + 2), 14)
        if event["k"] > 13
    ]
    restarts = [
        event | {"ts": event["ts"] + DAY_US, "boot": event["boot"] + DAY_US}
        for event in first
        if event["k"] == 300
    ]
    return first + second + restarts


def append(lake: Lake, rows: list[Row], run: str) -> None:
    handle = lake.table(EVENTS).open()
    frame = events_frame(lake.spark, rows).withColumn("_in", F.lit(0).cast("bigint"))
    handle.append(handle.write(frame, run), run, {})


class Expected:
    """What the oracles say of two days."""

    def __init__(self, events: list[Row]) -> None:
        self.now_us = max(event["ts"] for event in events) - 120_000_000
        today = [event for event in events if event["ts"] < DAY_START_US + DAY_US]
        tomorrow = [event for event in events if event["ts"] >= DAY_START_US + DAY_US]
        judged = messages.judged(messages.folded(events), self.now_us)
        conn = visits.connections(today, [], DAY)
        conn_open = [row for row in conn if row["status"] == "open"]
        conn_next = visits.connections(tomorrow, conn_open, NEXT_DAY)
        party = visits.party_sessions(today, [], DAY, self.now_us)
        party_open = [row for row in party if row["status"] == "open"]
        party_next = visits.party_sessions(tomorrow, party_open, NEXT_DAY, self.now_us)
        both = ((today, DAY), (tomorrow, NEXT_DAY))
        capacity = [load.capacity_minutes(rows, day, 600) for rows, day in both]
        self.by_name: dict[str, list[Row]] = {
            "rel_hourly": messages.hourly(judged),
            "rel_latency": messages.latency(judged),
            "rel_loss": messages.lost(judged, events),
            "rel_nodes": nodes.by_node(events),
            "rel_repeats": nodes.repeats(events),
            "rel_reconcile": [row for rows, day in both for row in nodes.reconciled(rows, day)],
            "conn_sessions": conn + conn_next,
            "conn_minutely": visits.connection_minutes(conn, DAY)
            + visits.connection_minutes(conn_next, NEXT_DAY),
            "conn_hourly": [
                row for rows, day in both for row in visits.connection_hours(rows, day)
            ],
            "slot_minutely": [row for rows, day in both for row in load.slot_minutes(rows, day)],
            "party_sessions": party + party_next,
            "party_minutely": visits.party_minutes(party, DAY)
            + visits.party_minutes(party_next, NEXT_DAY),
            "party_hourly": [row for rows, day in both for row in visits.party_hours(rows, day)],
            "party_latency": [row for rows, day in both for row in visits.party_latency(rows, day)],
            "cap_minutely": [row for rows in capacity for row in rows],
            "usage_daily": habits.usage(events),
            "cap_units": [row for rows in capacity for row in load.capacity_units(rows, 0.3)],
        }


def tables(lake: Lake) -> dict[str, list[Row]]:
    """What oracles know; plans, findings, sketches and forecasts have tests of their own."""
    others = {"slot_plan", "abuse", "usage_sketches", "cap_forecast"}
    wanted = [spec for spec in gold.GOLD if spec.name not in others]
    return {spec.name: rows_of(lake.read(spec).select(*spec.data.names)) for spec in wanted}


@pytest.fixture(scope="module")
def events() -> list[Row]:
    return two_days(range(300, 306))


@pytest.fixture(scope="module")
def begun(spark: SparkSession, events: list[Row], tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Half of the events, in no order, and some of the jobs."""
    lake = Lake(spark, str(tmp_path_factory.mktemp("jobs")), ManualClock(now_ms=1_794_100_000_000))
    random.Random(3).shuffle(events)
    append(lake, events[: len(events) // 2], "first")
    steps = chosen(STEPS, only=["fold", "reliability", "slots"])
    assert {result.state for result in run_steps(Context(spark, lake, lake.clock), steps)} == {
        "done"
    }
    return lake


@pytest.fixture(scope="module")
def done(begun: Lake, spark: SparkSession, events: list[Row]) -> Lake:
    """The other half, and all jobs."""
    append(begun, events[len(events) // 2 :], "second")
    results = run_steps(Context(spark, begun, begun.clock), STEPS)
    assert "noop" not in [result.state for result in results]
    return begun


def test_half_of_the_events_give_the_slots_that_the_oracle_gives_half_of_them(
    begun: Lake, events: list[Row]
) -> None:
    half = events[: len(events) // 2]
    today = [event for event in half if event["ts"] < DAY_START_US + DAY_US]
    found = begun.read(gold.SLOT_MINUTELY, date={DAY.isoformat()})

    assert_same(found.select(*gold.SLOT_MINUTELY.data.names), load.slot_minutes(today, DAY))


def test_what_came_in_two_batches_is_computed_as_the_oracles_do(
    done: Lake, events: list[Row]
) -> None:
    expected = Expected(events).by_name
    found = tables(done)

    assert found.keys() == expected.keys()
    for name, rows in expected.items():
        assert rows, name
        assert_same(found[name], rows)


def test_the_day_that_is_complete_gives_a_forecast(done: Lake) -> None:
    rows = rows_of(done.read(gold.CAP_FORECAST))
    resources = {row["resource"] for row in rows}

    assert {"connects", "notifications", "party_joins"} <= resources
    assert {row["day"] for row in rows} == {DAY}
    assert len(rows) == 90 * len(resources)
    assert {row["model"] for row in rows} == {"mean"}


def test_a_second_run_without_new_events_commits_nothing(done: Lake, spark: SparkSession) -> None:
    ctx = Context(spark, done, done.clock)
    before = [done.table(spec).open().version for spec in gold.GOLD]

    assert {result.state for result in run_steps(ctx, STEPS)} == {"noop"}
    assert [done.table(spec).open().version for spec in gold.GOLD] == before


def test_a_day_that_is_asked_for_is_computed_anew_and_stays_the_same(
    done: Lake, spark: SparkSession
) -> None:
    ctx = Context(spark, done, done.clock)
    before = tables(done)
    results = list(run_steps(ctx, chosen(STEPS, only=["conn"]), NEXT_DAY))

    assert [result.state for result in results] == ["done"]
    after = tables(done)
    for name in ("conn_sessions", "conn_minutely"):
        assert_same(after[name], before[name])
    assert next(run_steps(ctx, chosen(STEPS, only=["conn"]))).state == "noop"


def test_a_plan_evens_out_the_load_that_was_measured(
    done: Lake, spark: SparkSession, tmp_path: Path
) -> None:
    ctx = Context(spark, done, done.clock)
    cluster = rebalance.read_nodes(
        b'{"epoch": 7, "nodes": [{"node": 1, "slots": [[0, 3000]]}, {"node": 2, "slots": []},'
        b' {"node": 3, "capacity": 0, "slots": [[3001, 4095]]}]}'
    )
    plan = rebalance.run(ctx, cluster, until=DAY, window_days=1)
    again = rebalance.run(ctx, cluster, until=DAY, window_days=1)
    kept = rows_of(done.read(gold.SLOT_PLAN))
    weights = {
        row["slot"]: row["weight"]
        for row in load.slot_weights(
            rows_of(done.read(gold.SLOT_MINUTELY, date={DAY.isoformat()})), 1440, 1.0, 0.1, 10.0
        )
    }

    assert plan == again
    assert cluster.servers[2] == Server(3, 0.0)
    assert (plan.form, plan.epoch) == ("waystation-plan/1", 7)
    assert {move.slot for move in plan.moves} >= set(range(3001, 4096))
    assert sum(load.before for load in plan.servers) == pytest.approx(sum(weights.values()))
    assert len(kept) == len(plan.moves)
    assert {row["plan"] for row in kept} == {plan.plan}


def test_the_report_says_what_the_oracles_count(
    done: Lake, spark: SparkSession, events: list[Row], tmp_path: Path
) -> None:
    ctx = Context(spark, done, done.clock)
    result = report.run(ctx, tmp_path / "a", form="json")
    tables = json.loads((tmp_path / "a" / "report.json").read_text())
    judged = messages.judged(messages.folded(events), Expected(events).now_us)
    expected = Expected(events).by_name

    assert result.rows_out > 100
    assert {row["outcome"]: row["messages"] for row in tables["outcomes"]} == Counter(
        row["outcome"] for row in judged
    )
    assert {row["milestone"]: row["messages"] for row in tables["funnel"]} == {
        name: sum(row["seen"] >> code & 1 for row in judged)
        for code, name in enumerate(MILESTONE_NAMES)
    }
    whole = oracle_quantiles(expected["rel_latency"], ("measure",))
    assert {row["measure"]: row["n"] for row in tables["latency"]} == {
        row["measure"]: row["n"] for row in whole
    }
    assert sum(row["messages"] for row in tables["losses"]) == len(expected["rel_loss"])
    assert max(row["present"] for row in tables["connection_minutes"]) == max(
        row["present"] for row in expected["conn_minutely"]
    )
    assert sum(row["ops"] for row in tables["slots"]) == sum(
        row["ops"] for row in expected["slot_minutely"]
    )
    assert sum(row["sessions"] for row in tables["party_ends"]) == len(expected["party_sessions"])
    assert sum(row["unexplained"] for row in tables["reconcile"]) == sum(
        abs(row["counted"] - row["found"])
        for row in expected["rel_reconcile"]
        if not row["explained"]
    )


@pytest.mark.parametrize(
    "text, why",
    [
        (b"{}", "nodes"),
        (b'[{"node": "x"}]', "nodes: Expected `int`"),
        (b'[{"node": 1, "slots": [[0, 2], [2, 3]]}]', "two owners"),
    ],
)
def test_a_file_that_does_not_say_who_owns_the_slots_is_refused(text: bytes, why: str) -> None:
    with pytest.raises(rebalance.BadNodesError, match=why):
        rebalance.read_nodes(text)


def test_steps_are_chosen_by_job_and_by_table() -> None:
    assert [step.name for step in chosen(STEPS, until="rel_loss")] == [
        "fold",
        "merge",
        "reliability",
    ]
    assert [step.name for step in chosen(STEPS, only=["slots", "fold"])] == ["fold", "slots"]
    with pytest.raises(UnknownJobError, match="no job 'nothing'"):
        chosen(STEPS, only=["nothing"])
    with pytest.raises(UnknownJobError, match="no table 'nothing'"):
        chosen(STEPS, until="nothing")
