"""What presence tells the pipeline."""

from pathlib import Path

import msgspec

from tests.unit.presence.broker_harness import BrokerHarness, kinds
from waystation.presence.reports import LATENCIES_MAX, TIMES_MAX
from waystation.telemetry.contract import KINDS
from waystation.telemetry.eventlog import EventLines, EventLog
from waystation.telemetry.events import PartyDeliveryTotals


def test_a_full_event_log_disturbs_no_session_and_is_counted(
    harness: BrokerHarness, tmp_path: Path
) -> None:
    """P-133"""
    log = EventLog(tmp_path, "node.presence.0", 1, harness.clock, buffered_max=3)
    harness.broker.reports._sink = log

    members = [harness.member(client) for client in range(1, 11)]
    members[0].leave()

    assert kinds(members[0].take())[-1] == "ACK"
    members[1].ping()
    members[1].take()
    assert members[1].status is None
    assert log.lost_total > 10


def test_every_event_line_matches_the_contract(harness: BrokerHarness) -> None:
    """P-132: required columns are there, and nothing that the contract does not know."""
    a, b = harness.member(1, auto=False), harness.member(2)
    harness.pass_time(6)
    b.ping()
    b.cut()
    b.resume()
    b.take()
    harness.pass_time(120)
    harness.broker.reports.totals()
    a.take()

    lines = EventLines("node.presence.0", 1)
    seen: set[int] = set()
    for event in harness.events.events:
        row = msgspec.json.decode(lines.line(1, event, 1))
        kind = KINDS[event.k]
        own = set(row) - {"v", "ts", "node", "boot", "seq", "k", "w"}
        assert set(kind.required) <= own, kind.name
        assert own <= {*kind.required, *kind.optional}, kind.name
        if "attrs" in row:
            assert set(msgspec.json.decode(row["attrs"])) <= set(kind.attrs), kind.name
        seen.add(event.k)
    assert {200, 201, 202, 203, 205, 206, 208, 211} <= seen


def test_times_kept_until_the_next_tick_are_bounded(harness: BrokerHarness) -> None:
    """A tick that is late keeps the newest."""
    told = harness.broker.reports
    told.totals()
    for number in range(TIMES_MAX + 10):
        told.latencies_s.append(float(number))
    assert (len(told.latencies_s), told.latencies_s[0]) == (TIMES_MAX, 10.0)

    told.totals()

    assert not told.latencies_s
    total = [one for one in harness.events.events if isinstance(one, PartyDeliveryTotals)][-1]
    assert total.attrs is not None
    assert total.attrs.latency_us == {
        "p50": (10 + LATENCIES_MAX // 2) * 10**6,
        "p95": (10 + round((LATENCIES_MAX - 1) * 0.95)) * 10**6,
        "p99": (10 + round((LATENCIES_MAX - 1) * 0.99)) * 10**6,
    }
