"""Medians, ratios within a round, and the tables made of them."""

import json
from typing import Any

from benchmarks.environment import environment
from benchmarks.measurement import Bar, Measurement, percentile, summarise
from benchmarks.report import Report, table, to_json, to_markdown


def one(scenario: str, cpu_us: float | None, **more: Any) -> Measurement:
    return Measurement(
        scenario=scenario, operation="op", operations=100, seconds=2.0, cpu_us=cpu_us, **more
    )


def test_a_ratio_is_taken_within_its_round() -> None:
    """A slow round slows both rows, so the ratio stays."""
    rounds = [
        [one("floor", 10.0), one("direct", 50.0)],
        [one("floor", 20.0), one("direct", 100.0)],
        [one("floor", 40.0), one("direct", 200.0), one("idle", None, kib=0.5)],
    ]

    floor, direct, idle = summarise(rounds, "floor")

    assert (floor.cpu_us, floor.floors) == (20.0, 1.0)
    assert (direct.cpu_us, direct.floors, direct.rounds) == (100.0, 5.0, 3)
    assert (idle.cpu_us, idle.floors, idle.kib, idle.rounds) == (None, None, 0.5, 1)
    assert direct.rate == 50.0


def test_a_broadcast_is_compared_with_nchan_where_there_is_one() -> None:
    (broadcast, _) = summarise([[one("broadcast", 9.0), one("nchan", 6.0)]], "floor")

    assert broadcast.notes == "1.50 × nchan"


def test_a_rival_of_the_same_round_is_named_with_how_much_more_it_needs() -> None:
    ours = one("fan-out: ours", 10.0, against="fan-out: bare")
    (_, native) = summarise([[one("fan-out: bare", 40.0), ours]], "floor")

    assert native.notes == "4.00 × as many per CPU second as bare"


def test_a_bar_is_held_against_the_median_of_its_rounds() -> None:
    rounds = [
        [one("fold", 1.0, bars=(Bar("P1", value, 5.5), Bar("P12", value, 5.5, "M/s", least=True)))]
        for value in (5.0, 7.0, 5.25)
    ]

    (fold,) = summarise(rounds, "floor")

    assert fold.notes == "P1: 5.25 × (bar ≤ 5.5: kept); P12: 5.25 M/s (bar ≥ 5.5: MISSED)"


def test_what_was_lost_is_summed_over_all_rounds() -> None:
    rounds = [[one("stored", 1.0, lost=0)], [one("stored", 1.0, lost=2)]]

    (stored,) = summarise(rounds, "floor")

    assert stored.lost == 2


def test_percentiles_of_nothing_and_of_much() -> None:
    assert percentile([], 0.5) is None
    assert percentile([3.0], 0.99) == 3.0
    assert percentile([float(n) for n in range(100)], 0.99) == 99.0
    assert percentile([float(n) for n in range(100)], 0.5) == 50.0


def test_columns_in_which_nothing_stands_are_left_out() -> None:
    summaries = summarise([[one("redis: hello", 30.0, round_trips=3, round_trips_loaded=0.06)]], "")

    columns, rows = table(summaries)

    assert columns == ["scenario", "per second", "CPU µs", "round trips", "loaded", "notes"]
    assert rows == [["redis: hello", "50", "30.0", "3", "0.06", ""]]


def test_a_report_becomes_json_and_markdown() -> None:
    rounds = [[one("floor", 10.0), one("idle", None, kib=0.57)]]
    report = Report(environment(), summarise(rounds, "floor"), rounds)

    markdown = to_markdown(report).splitlines()

    assert len({line.count("|") for line in markdown[:4]}) == 1
    assert "0.57 KiB per connection" in markdown[3]
    assert "python -m benchmarks" in markdown[-1]
    assert json.loads(to_json(report))["summaries"][0]["cpu_us"] == 10.0
