"""Jobs over a lake: incremental runs give what one run over everything gives, and the oracle."""

import datetime as dt
import json
import random
import re
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.oracle import abuse_and_usage, load, messages, nodes, sessions
from tests.oracle.messages import quantiles as oracle_quantiles
from tests.oracle.troubled_events import DAY, DAY_START_US, DAY_US, Row, day_of_trouble
from tests.pipeline.frames import assert_same, events_frame, rows_of
from waystation.base.clock import ManualClock
from waystation.pipeline import results
from waystation.pipeline.dag import STEPS, Step, UnknownJobError, chosen, run_steps
from waystation.pipeline.delta_table import Lake
from waystation.pipeline.job_context import Context
from waystation.pipeline.jobs import rebalance, report
from waystation.pipeline.rebalance import Server
from waystation.pipeline.schema import EVENTS
from waystation.pipeline.transforms.reliability import MILESTONE_NAMES

NEXT_DAY = DAY + dt.timedelta(days=1)


def two_days(seeds: range) -> list[Row]:
    """Processes of the second day are other ones, so that some connections crash."""
    first = day_of_trouble(seeds, 14)
    second = [
        event | {"ts": event["ts"] + DAY_US, "boot": event["boot"] + DAY_US, "mid": None}
        for event in day_of_trouble(range(seeds.stop, seeds.stop + 2), 14)
        if event["k"] > 14
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
        conn = sessions.connections(today, [], DAY)
        conn_open = [row for row in conn if row["status"] == "open"]
        conn_next = sessions.connections(tomorrow, conn_open, NEXT_DAY)
        party = sessions.party_sessions(today, [], DAY, self.now_us)
        party_open = [row for row in party if row["status"] == "open"]
        party_next = sessions.party_sessions(tomorrow, party_open, NEXT_DAY, self.now_us)
        both = ((today, DAY), (tomorrow, NEXT_DAY))
        capacity = [load.capacity_minutes(rows, day, 600) for rows, day in both]
        self.by_name: dict[str, list[Row]] = {
            "rel_hourly": messages.hourly(judged),
            "rel_latency": messages.latency(judged),
            "rel_loss": messages.lost(judged, events),
            "rel_nodes": nodes.by_node(events),
            "rel_repeats": nodes.repeats(events),
            "rel_reconcile": [row for rows, day in both for row in nodes.reconciled(rows, day)],
            "rel_sequence": [row for rows, day in both for row in nodes.numbered(rows, day)],
            "conn_sessions": conn + conn_next,
            "conn_minutely": sessions.connection_minutes(conn, DAY)
            + sessions.connection_minutes(conn_next, NEXT_DAY),
            "conn_hourly": [
                row for rows, day in both for row in sessions.connection_hours(rows, day)
            ],
            "slot_minutely": [row for rows, day in both for row in load.slot_minutes(rows, day)],
            "party_sessions": party + party_next,
            "party_minutely": sessions.party_minutes(party, DAY)
            + sessions.party_minutes(party_next, NEXT_DAY),
            "party_hourly": [row for rows, day in both for row in sessions.party_hours(rows, day)],
            "party_latency": [
                row for rows, day in both for row in sessions.party_latency(rows, day)
            ],
            "cap_minutely": [row for rows in capacity for row in rows],
            "usage_daily": abuse_and_usage.usage(events),
            "cap_units": [row for rows in capacity for row in load.capacity_units(rows, 0.3)],
        }


@pytest.fixture(scope="module")
def events() -> list[Row]:
    return two_days(range(6))


class Story:
    """A lake that gets its events in two halves, in no order. Jobs run when a test first needs
    them, one at a time: on a busy machine all of them would take too long for one test."""

    FIRST = ("fold", "reliability", "slots")

    def __init__(self, spark: SparkSession, events: list[Row], folder: Path) -> None:
        self.lake = Lake(spark, str(folder), ManualClock(now_ms=1_794_100_000_000))
        self._ctx = Context(spark, self.lake, self.lake.clock)
        random.Random(3).shuffle(events)
        self.halves = events[: len(events) // 2], events[len(events) // 2 :]
        self._states: list[dict[str, str]] = []

    def state(self, half: int, job: str) -> str:
        """What became of a job after a half of the events, and of all jobs before it."""
        if half == 1:
            self.state(0, self.FIRST[-1])
        if len(self._states) == half:
            append(self.lake, self.halves[half], f"half-{half}")
            self._states.append({})
        states = self._states[half]
        for step in chosen(STEPS, only=self.FIRST if half == 0 else (), until=job):
            if step.name not in states:
                (result,) = run_steps(self._ctx, [step])
                states[step.name] = result.state
        return states[job]


@pytest.fixture(scope="module")
def story(
    spark: SparkSession, events: list[Row], tmp_path_factory: pytest.TempPathFactory
) -> Story:
    return Story(spark, events, tmp_path_factory.mktemp("jobs"))


@pytest.fixture(scope="module")
def done(story: Story) -> Lake:
    """Everything has arrived, and every job has run."""
    story.state(1, STEPS[-1].name)
    return story.lake


@pytest.fixture(scope="module")
def expected(events: list[Row]) -> dict[str, list[Row]]:
    return Expected(events).by_name


@pytest.mark.parametrize("job", Story.FIRST)
def test_half_of_the_events_is_something_to_begin_with(story: Story, job: str) -> None:
    assert story.state(0, job) == "done"


def test_half_of_the_events_give_the_slots_that_the_oracle_gives_half_of_them(
    story: Story,
) -> None:
    story.state(0, "slots")
    today = [event for event in story.halves[0] if event["ts"] < DAY_START_US + DAY_US]
    if len(story._states) == 1:  # else the other half is there already
        found = story.lake.read(results.SLOT_MINUTELY, date={DAY.isoformat()})
        assert_same(found.select(*results.SLOT_MINUTELY.data.names), load.slot_minutes(today, DAY))

    assert today


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_what_came_in_two_halves_is_computed_as_the_oracles_do(
    story: Story, step: Step, expected: dict[str, list[Row]]
) -> None:
    state = story.state(1, step.name)

    assert state == "done"
    for spec in results.RESULT_TABLES:
        if spec.name in step.tables and spec.name in expected:
            assert expected[spec.name], spec.name
            assert_same(story.lake.read(spec).select(*spec.data.names), expected[spec.name])


def test_every_table_has_an_oracle_or_a_test_of_its_own(expected: dict[str, list[Row]]) -> None:
    others = {"slot_plan", "abuse", "usage_sketches", "cap_forecast"}

    assert expected.keys() | others == {spec.name for spec in results.RESULT_TABLES}


def test_the_day_that_is_complete_gives_a_forecast(done: Lake) -> None:
    rows = rows_of(done.read(results.CAP_FORECAST))
    resources = {row["resource"] for row in rows}

    assert {"connects", "notifications", "party_joins"} <= resources
    assert {row["day"] for row in rows} == {DAY}
    assert len(rows) == 90 * len(resources)
    assert {row["model"] for row in rows} == {"mean"}


def test_a_second_run_without_new_events_commits_nothing(done: Lake, spark: SparkSession) -> None:
    ctx = Context(spark, done, done.clock)
    before = [done.table(spec).open().version for spec in results.RESULT_TABLES]

    assert {result.state for result in run_steps(ctx, STEPS)} == {"noop"}
    assert [done.table(spec).open().version for spec in results.RESULT_TABLES] == before


def test_a_day_that_is_asked_for_is_computed_anew_and_stays_the_same(
    done: Lake, spark: SparkSession
) -> None:
    ctx = Context(spark, done, done.clock)
    before = rows_of(done.read(results.CONN_SESSIONS))
    ran = list(run_steps(ctx, chosen(STEPS, only=["conn"]), NEXT_DAY))

    assert [result.state for result in ran] == ["done"]
    assert_same(done.read(results.CONN_SESSIONS), before)
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
    kept = rows_of(done.read(results.SLOT_PLAN))
    weights = {
        row["slot"]: row["weight"]
        for row in load.slot_weights(
            rows_of(done.read(results.SLOT_MINUTELY, date={DAY.isoformat()})),
            1440,
            1.0,
            0.1,
            10.0,
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
    assert max(row["peak"] for row in tables["connection_minutes"]) == max(
        row["peak"] for row in expected["conn_minutely"]
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


def test_who_vanished_late_in_a_day_is_found_when_the_next_day_has_begun(
    spark: SparkSession, tmp_path: Path
) -> None:
    """What a run sees of a day depends on how far time has gone; the next run makes it good."""
    lake = Lake(spark, str(tmp_path), ManualClock(now_ms=1_794_100_000_000))
    ctx = Context(spark, lake, lake.clock)
    steps = chosen(STEPS, only=["presence"])
    envelope: Row = {"v": 1, "boot": DAY_START_US, "seq": 0}
    start: Row = envelope | {
        "ts": DAY_START_US + 3_600_000_000, "node": "a.presence.0", "k": 200, "party": 1, "cli": 2,
        "sess": 3, "n": 1, "attrs": '{"seq": 1, "ttl_ms": 10000}',
    }  # fmt: skip
    other: Row = envelope | {"ts": start["ts"] + 125_000_000, "node": "b.presence.0", "k": 300}
    append(lake, [start, other], "first")
    list(run_steps(ctx, steps))
    before = [row["status"] for row in rows_of(lake.read(results.PARTY_SESSIONS))]
    append(lake, [other | {"ts": start["ts"] + DAY_US, "seq": 1}], "second")
    list(run_steps(ctx, steps))
    (after,) = rows_of(lake.read(results.PARTY_SESSIONS))

    assert before == ["open"]
    assert (after["status"], after["day"]) == ("vanished", DAY)
    assert after["ended_at"] == start["ts"]


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


@pytest.fixture(scope="module")
def overview(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[str, str]]:
    """The tiles of a report: three connections open and close within one minute, and the sequence
    numbers 6 and 7 of their process have no line."""
    folder = tmp_path_factory.mktemp("overview")
    lake = Lake(spark, str(folder / "lake"), ManualClock(now_ms=1_794_100_000_000))
    ctx = Context(spark, lake, lake.clock)
    process: Row = {"v": 1, "boot": DAY_START_US, "node": "a.connect.0"}
    at = DAY_START_US + 61_000_000
    opened = [process | {"ts": at + cid, "seq": cid, "k": 20, "cid": cid} for cid in range(3)]
    closed = [
        one | {"ts": one["ts"] + 10_000_000, "seq": 3 + one["cid"], "k": 29, "dur": 10_000_000}
        for one in opened
    ]
    counts = json.dumps({"counters": {"20": 3, "29": 3}})
    stats: Row = process | {"ts": at + 60_000_000, "seq": 8, "k": 302, "attrs": counts}
    append(lake, [*opened, *closed, stats], "all")
    list(run_steps(ctx, chosen(STEPS, only=["nodes", "conn"])))
    report.run(ctx, folder / "report", form="html")
    page = (folder / "report" / "report.html").read_text()
    return re.findall(r"<b>([^<]*)</b><span>([^<]*)</span>", page)


@pytest.mark.parametrize(
    "tile",
    [("3", "peak connections"), ("2", "events lost by nodes")],
    ids=["peak", "missing"],
)
def test_the_overview_has_peaks_within_minutes_and_missing_sequence_numbers(
    overview: list[tuple[str, str]], tile: tuple[str, str]
) -> None:
    assert tile in overview
