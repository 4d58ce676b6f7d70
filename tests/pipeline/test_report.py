"""The report is one page of bytes that depend on its tables alone, and says what they say."""

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from waystation.pipeline.jobs import report
from waystation.pipeline.report import cells, plots, sections
from waystation.pipeline.report.page import csv, page
from waystation.pipeline.report.rollups import rollups
from waystation.pipeline.report.tables import Tables

GOLDEN = Path(__file__).parents[1] / "vectors" / "report.html"
QUANTILES = ("p50_ms", "p90_ms", "p95_ms", "p99_ms", "p999_ms", "max_ms")


def sums(messages: int, **more: Any) -> dict[str, Any]:
    good = messages * 9 // 10
    counts = {"messages": messages, "delivered_or_bridged": good, "success_mozilla": good + 1}
    return more | counts | {"lost": 3, "expired": 5, "gap": 2, "bytes": messages * 1234}


def quantile_row(**more: Any) -> dict[str, Any]:
    values = {name: 12.5 * (at + 1) ** 3 for at, name in enumerate(QUANTILES)}
    return more | {"n": 4321} | values


def small_tables() -> Tables:
    """Two days in numbers that do not occur twice."""
    days = ("2026-11-05", "2026-11-06")
    hours = [(day, hour) for day in days for hour in range(0, 24, 3)]
    outcomes = ("delivered", "bridged", "expired", "in_flight", "lost")
    hourly = [
        {"day": day, "hour": hour, "outcome": outcome, "messages": 1000 // (at + 1) + hour}
        for day, hour in hours
        for at, outcome in enumerate(outcomes)
    ]
    totals = {
        outcome: sum(row["messages"] for row in hourly if row["outcome"] == outcome)
        for outcome in outcomes
    }
    whole = sum(totals.values())
    minutes = [(day, minute) for day in days for minute in range(0, 1440, 240)]
    return {
        "days": [{"day": day} for day in days],
        "total": [sums(whole)],
        "outcomes": [{"outcome": name, "messages": count} for name, count in totals.items()],
        "hourly": hourly,
        "funnel": [
            {"milestone": "received", "messages": whole},
            {"milestone": "delivered", "messages": whole - 9_001},
        ],
        "apps": [sums(70_123, app="00ff00ff00ff00ff"), sums(40_864, app="other (7)")],
        "paths": [
            sums(61_111, via="webpush", path="direct"),
            sums(49_876, via="fcm", path="bridge"),
        ],
        "latency": [quantile_row(measure="e2e"), quantile_row(measure="route")],
        "latency_paths": [quantile_row(path="direct")],
        "latency_hours": [quantile_row(day=day, hour=hour) for day, hour in hours],
        "latency_buckets": [{"bucket": 100 + at * 9, "n": 77 * at + 5} for at in range(40)],
        "clamped": [{"measure": "e2e", "clamped": 17}],
        "losses": [
            {"state": "push.transmitted", "node": "a.connect.0", "peer": None, "messages": 3}
        ],
        "repeats": [{"k": "push.transmitted", "n": 98, "messages": 91, "repeated": 7}],
        "nodes": [
            {
                "node": "a.connect.0",
                "events": 555_555,
                "received": 1,
                "stored": 2,
                "transmitted": 3,
                "delivered": 4,
                "gap": 6,
                "missing": 3,
            }
        ],
        "reconcile": [{"node": "a.connect.0", "counted": 888, "found": 887, "unexplained": 1}],
        "connection_minutes": [
            {"day": day, "minute": at, "peak": at % 700, "opened": 3} for day, at in minutes
        ],
        "connection_ends": [
            {
                "status": "closed",
                "code": 1001,
                "connections": 6_001,
                "median_s": 812.5,
                "median_away_s": None,
            }
        ],
        "families": [
            {"os": "linux", "browser": "<firefox> & co", "user_agents": 44, "connections": 66}
        ],
        "connection_totals": [{"what": "storage_checks", "n": 333}],
        "slots": [
            {
                "slot": slot,
                "ops": (slot * 37) % 900,
                "bytes": slot,
                "ops_minute_max": 4,
                "stored_bytes": None,
            }
            for slot in range(0, 4096, 201)
        ],
        "slot_sends": [{"result": "ok", "n": 12_000}],
        "slot_plans": [
            {"day": days[0], "plan": "abcdef012345", "moves": 19, "bytes": 2_000_000, "waves": 2}
        ],
        "party_minutes": [
            {"day": day, "minute": at, "peak": 5 + at % 9, "joined": 1} for day, at in minutes
        ],
        "party_ends": [
            {
                "status": "left",
                "code": 0,
                "sessions": 3_003,
                "median_s": 61.5,
                "resumes": 8,
                "redelivered": 9,
                "unbalanced": 0,
            }
        ],
        "party_latency": [quantile_row(measure="ack")],
        "party_totals": [{"what": "acked", "n": 4_242}],
        "capacity_units": [
            {
                "day": days[0],
                "resource": "router_read",
                "busiest_hour": 13,
                "units": 999,
                "rate_p99": 3.25,
                "provision": 4.225,
                "driver": "notifications",
                "driver_per_unit": 1.0,
            }
        ],
        "capacity_minutes": [
            {"day": day, "minute": at, "resource": name, "busiest_minute": at % 50}
            for day, at in minutes
            for name in ("connects", "notifications")
        ],
        "forecast": [
            {
                "day": days[1],
                "resource": name,
                "target": f"2026-11-{7 + at:02}",
                "p10": 900.5 + at,
                "p50": 1000.25 + at,
                "p90": 1100.75 + at,
                "model": "trend",
                "mape": 0.0625,
                "naive_mape": 0.125,
                "growth_per_day": 0.01,
            }
            for name in ("notifications", "party_joins")
            for at in range(6)
        ],
        "abuse": [
            {
                "day": days[1],
                "kind": "hot_slot",
                "class": "slot",
                "key": "7",
                "first_minute": 61,
                "last_minute": 63,
                "n": 4_004,
                "peak": 2_002,
                "baseline": 11.5,
                "score": 81.25,
                "share": 0.5,
                "nodes": "a.queue.0",
            }
        ],
        "usage": [{"what": "requests", "detail": "201", "n": 110_986, "bytes": 987_654}],
        "usage_windows": [
            {"days": span, "what": "user_agents", "distinct": 70 + span} for span in (1, 7, 30)
        ],
        "checks": [
            {
                "table": "rel_hourly",
                "check": "gap_rate",
                "level": "warn",
                "value": 0.0042,
                "bound": 0.001,
                "ok": False,
            }
        ],
        "held": [{"table": "events", "rows": 303_600, "files": 23, "bytes": 7_654_321}],
    }


class Cells(HTMLParser):
    """The raw values that table cells carry, and whether every tag is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[float] = []
        self.open: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if found.get("data-v") is not None:
            self.values.append(float(found["data-v"] or ""))
        self.loaded += [found[name] or "" for name in ("src", "href") if name in found]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def numbers_in(tables: Tables) -> set[float]:
    return {
        float(f"{float(value):.12g}")
        for rows in tables.values()
        for row in rows
        for value in row.values()
        if isinstance(value, int | float)
    }


def test_the_page_is_the_golden_one() -> None:
    """REPORT_GOLDEN=write writes it anew; look at it in a browser before it is committed."""
    made = page(small_tables())
    if os.environ.get("REPORT_GOLDEN") == "write":
        GOLDEN.write_text(made, encoding="utf-8")

    assert made == GOLDEN.read_text(encoding="utf-8")


def test_every_number_in_a_cell_is_found_in_the_tables() -> None:
    tables = small_tables()
    found = Cells()
    found.feed(page(tables))

    assert len(found.values) > 150
    assert set(found.values) <= numbers_in(tables)
    assert found.open == []


def test_the_page_loads_nothing_and_carries_its_tables() -> None:
    tables = small_tables()
    made = page(tables)
    found = Cells()
    found.feed(made)
    data = re.search(r'<script type="application/json" id="tables">(.*?)</script>', made, re.DOTALL)

    assert data
    assert json.loads(data[1]) == tables
    assert all(link.startswith("#") for link in found.loaded)
    assert "url(" not in made
    assert "&lt;firefox&gt; &amp; co" in made


def test_a_page_over_nothing_is_still_a_page() -> None:
    empty: Tables = {name: [] for name in small_tables()}
    found = Cells()
    found.feed(page(empty))

    assert found.open == []
    assert found.values == []


@pytest.mark.parametrize("form", ["html", "json", "csv", "parquet"])
def test_tables_are_written_in_every_form(form: report.Form, tmp_path: Path) -> None:
    tables = small_tables()
    written = report.write(tables, tmp_path, form)

    assert all(path.stat().st_size > 0 for path in written)
    if form == "json":
        assert json.loads(written[0].read_text()) == tables
    if form in ("csv", "parquet"):
        assert {path.stem for path in written} == set(tables)


def test_a_table_for_spreadsheets_quotes_what_it_must() -> None:
    assert csv([{"a": 1, "b": 'x,"y'}, {"a": None, "b": "z"}]) == 'a,b\n1,"x,""y"\n,z\n'
    assert csv([]) == ""


class TestNumbers:
    @pytest.mark.parametrize(
        "most, steps",
        [
            (0, [0, 1]),
            (1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
            (7, [0, 2, 4, 6, 8]),
            (87, [0, 20, 40, 60, 80, 100]),
        ],
    )
    def test_axes_have_round_steps(self, most: float, steps: list[float]) -> None:
        assert plots.nice_steps(most) == steps

    def test_spans_are_written_as_people_say_them(self) -> None:
        spans = (0.5, 73, 1500, 90_000, 7_200_000, 345_600_000)

        assert [plots.duration(ms) for ms in spans] == [
            "0.5 ms", "73 ms", "1.5 s", "1.5 min", "2 h", "4 d",
        ]  # fmt: skip

    def test_a_share_is_a_hundred_only_if_nothing_is_missing(self) -> None:
        assert cells.share(5, 5) == "100.00 %"
        assert cells.share(999_999, 1_000_000) == "99.99 %"
        assert cells.share(0, 0) == "–"

    def test_coarse_bars_hold_everything_that_fine_buckets_do(self) -> None:
        buckets = small_tables()["latency_buckets"]
        edges, counts = sections.bins(buckets)

        assert sum(counts) == sum(row["n"] for row in buckets)
        assert len(edges) == len(counts) + 1


def test_groupings_asked_together_are_those_asked_one_by_one(spark: SparkSession) -> None:
    """A key that is not there is a group of its own, not the sum over all."""
    rows = [("b", 1, 1), ("a", 1, 2), (None, 2, 4), ("a", None, 8)]
    frame = spark.createDataFrame(rows, "name string, hour int, n int")
    sets = {"total": (), "hours": ("hour",), "both": ("hour", "name")}

    found = rollups(frame, sets, F.sum("n").alias("n"))

    assert found == {
        "total": [{"n": 15}],
        "hours": [{"hour": 1, "n": 3}, {"hour": 2, "n": 4}, {"hour": None, "n": 8}],
        "both": [
            {"hour": 1, "name": "a", "n": 2},
            {"hour": 1, "name": "b", "n": 1},
            {"hour": 2, "name": None, "n": 4},
            {"hour": None, "name": "a", "n": 8},
        ],
    }
    assert rollups(frame.where("n > 99"), sets, F.sum("n").alias("n")) == {
        "total": [],
        "hours": [],
        "both": [],
    }
