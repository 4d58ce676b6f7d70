"""The sections of the page."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from waystation.pipeline.report import demand, plots
from waystation.pipeline.report.cells import Column, clock, figure, number, share, table
from waystation.pipeline.report.tables import Row, Tables
from waystation.pipeline.transforms.histogram import GROWTH
from waystation.pipeline.transforms.reliability import OUTCOMES

TONES = {
    "delivered": "c2",
    "bridged": "c6",
    "rejected": "c3",
    "errored": "c8",
    "superseded": "c7",
    "withdrawn": "c9",
    "expired": "c5",
    "in_flight": "c1",
    "lost": "c4",
}
SAID = {
    "delivered": "delivered",
    "bridged": "handed to a bridge",
    "rejected": "rejected by the user agent",
    "errored": "failed",
    "superseded": "replaced by its topic",
    "withdrawn": "withdrawn by its sender",
    "expired": "expired",
    "in_flight": "in flight",
    "lost": "lost",
}
MEASURES = {
    "e2e": "received to acked",
    "accept": "received to accepted",
    "store": "stored to fetched",
    "route": "received to sent",
    "bridge": "received to bridge",
}
MILESTONES = {
    "received": "received",
    "stored": "stored",
    "retrieved": "fetched from storage",
    "int_transmitted": "relayed to a node",
    "int_accepted": "accepted by the node",
    "bridge_transmitted": "handed to a bridge",
    "transmitted": "sent to the user agent",
    "accepted": "accepted by the user agent",
    "delivered": "acked",
    "decryption_error": "could not be decrypted",
    "not_delivered": "not shown",
    "expired": "expired",
    "errored": "failed",
    "superseded": "replaced by its topic",
    "withdrawn": "withdrawn by its sender",
}
BINS_PER_DECADE = 8
_LOG10_GROWTH = math.log10(GROWTH)


class Section(NamedTuple):
    anchor: str
    title: str
    render: Callable[[Tables], str]


def _tile(value: str, name: str, *, bad: bool = False) -> str:
    return f'<div class="tile{" bad" if bad else ""}"><b>{value}</b><span>{name}</span></div>'


def overview(tables: Tables) -> str:
    total = tables["total"][0] if tables["total"] else {}
    messages = total.get("messages", 0)
    e2e = next((row for row in tables["latency"] if row["measure"] == "e2e"), None)
    missing = sum(row["gap"] + row["missing"] for row in tables["nodes"])
    unexplained = sum(row["unexplained"] for row in tables["reconcile"])
    connected = max((row["peak"] for row in tables["connection_minutes"]), default=0)
    parties = max((row["peak"] for row in tables["party_minutes"]), default=0)
    lost = total.get("lost", 0)
    tiles = [
        _tile(number(messages), "messages"),
        _tile(share(total.get("delivered_or_bridged", 0), messages), "delivered or bridged"),
        _tile(share(total.get("success_mozilla", 0), messages), "delivered, bridged or sent"),
        _tile(number(lost), "lost", bad=lost > 0),
        _tile(plots.duration(e2e["p50_ms"]) if e2e else "–", "median time to ack"),
        _tile(plots.duration(e2e["p99_ms"]) if e2e else "–", "99 % are acked within"),
        _tile(number(connected), "peak connections"),
        _tile(number(parties), "peak party sessions"),
        _tile(number(missing), "events lost by nodes", bad=missing > 0),
        _tile(number(unexplained), "unexplained events", bad=unexplained > 0),
    ]
    return f'<div class="tiles">{"".join(tiles)}</div>'


def reliability(tables: Tables) -> str:
    days = len(tables["days"])
    hours = sorted({(row["day"], row["hour"]) for row in tables["hourly"]})
    counts = {
        (row["day"], row["hour"], row["outcome"]): row["messages"] for row in tables["hourly"]
    }
    series = [
        plots.Series(SAID[name], [counts.get((*at, name), 0) for at in hours], TONES[name])
        for name in OUTCOMES
        if any(row["outcome"] == name for row in tables["hourly"])
    ]
    ticks = [clock({"day": day, "hour": hour}, days) for day, hour in hours]
    whole = sum(row["messages"] for row in tables["outcomes"])
    by_outcome = {row["outcome"]: row["messages"] for row in tables["outcomes"]}
    outcomes = [
        plots.Bar(SAID[name], count, f"{number(count)}  ({share(count, whole)})", TONES[name])
        for name in OUTCOMES
        if (count := by_outcome.get(name))
    ]
    funnel = [
        plots.Bar(
            MILESTONES[row["milestone"]],
            row["messages"],
            f"{number(row['messages'])}  ({share(row['messages'], whole)})",
        )
        for row in tables["funnel"]
        if row["messages"]
    ]
    counts_of = (
        Column("messages", "messages"),
        Column("delivered_or_bridged", "delivered or bridged", "p"),
        Column("expired", "expired", "p"),
        Column("lost", "lost"),
        Column("gap", "incomplete"),
        Column("bytes", "payload", "b"),
    )
    return (
        "<p>A message has one outcome. Without an ack until 15 minutes after its TTL, it is"
        " expired if it was stored or sent, and lost otherwise.</p>"
        + figure("Outcomes", plots.bars("messages by outcome", outcomes))
        + figure(
            "Outcomes by the hour in which a message was received",
            plots.stacked("messages by hour and outcome", ticks, series),
            series,
        )
        + figure("Messages by last milestone", plots.bars("messages by milestone", funnel))
        + "<h3>By network and path</h3>"
        + table(
            tables["paths"], Column("via", "network", "t"), Column("path", "path", "t"), *counts_of
        )
        + "<h3>By application server</h3>"
        + table(tables["apps"], Column("app", "key", "t"), *counts_of)
    )


_QUANTILES = tuple(
    Column(f"{name}_ms", text, "d")
    for name, text in (
        ("p50", "p50"),
        ("p90", "p90"),
        ("p95", "p95"),
        ("p99", "p99"),
        ("p999", "p99.9"),
        ("max", "max"),
    )
)


def bins(buckets: Sequence[Row]) -> tuple[list[float], list[float]]:
    """Merges fine buckets to coarse bars: eight per power of ten."""
    found: dict[int, float] = {}
    for row in buckets:
        # The bucket's upper edge is g^b ms.
        at = int((row["bucket"] * _LOG10_GROWTH) * BINS_PER_DECADE)
        found[at] = found.get(at, 0) + row["n"]
    if not found:
        return [], []
    first, last = min(found), max(found)
    edges = [10 ** (at / BINS_PER_DECADE) for at in range(first, last + 2)]
    return edges, [found.get(at, 0) for at in range(first, last + 1)]


def latency(tables: Tables) -> str:
    days = len(tables["days"])
    edges, counts = bins(tables["latency_buckets"])
    e2e = next((row for row in tables["latency"] if row["measure"] == "e2e"), None)
    marks = [(name, e2e[f"{name}_ms"]) for name in ("p50", "p90", "p99")] if e2e else []
    hours = tables["latency_hours"]
    series = [
        plots.Series("p99", [row["p99_ms"] for row in hours], "c4"),
        plots.Series("p50", [row["p50_ms"] for row in hours], "c1"),
    ]
    named = [row | {"measure": MEASURES[row["measure"]]} for row in tables["latency"]]
    skewed = [row | {"measure": MEASURES[row["measure"]]} for row in tables["clamped"]]
    return (
        "<p>Values come from buckets that are 1 % wide, so the error is at most 1 %.</p>"
        + figure(
            "Messages by time from received to acked",
            plots.histogram("messages by latency", edges, counts, marks),
        )
        + figure(
            "Received to acked, by the hour",
            plots.lines(
                "latency by hour", [clock(row, days) for row in hours], series, durations=True
            ),
            series,
        )
        + table(named, Column("measure", "from, to", "t"), Column("n", "messages"), *_QUANTILES)
        + "<h3>Received to acked, by path</h3>"
        + table(
            tables["latency_paths"],
            Column("path", "path", "t"),
            Column("n", "messages"),
            *_QUANTILES,
        )
        + "<h3>Negative latencies (wrong clocks), counted as zero</h3>"
        + table(skewed, Column("measure", "from, to", "t"), Column("clamped", "messages"))
    )


def loss(tables: Tables) -> str:
    return (
        "<h3>Lost messages, by last milestone</h3>"
        + table(
            tables["losses"],
            Column("state", "last milestone", "t"),
            Column("node", "node", "t"),
            Column("peer", "meant for", "t"),
            Column("messages", "messages"),
        )
        + "<h3>Repeated events of one message</h3>"
        + table(
            tables["repeats"],
            Column("k", "event", "t"),
            Column("n", "events"),
            Column("messages", "messages"),
            Column("repeated", "again"),
        )
        + "<h3>Events per node</h3>"
        + table(
            tables["nodes"],
            Column("node", "node", "t"),
            Column("events", "events"),
            Column("received", "received"),
            Column("stored", "stored"),
            Column("transmitted", "sent"),
            Column("delivered", "delivered"),
            Column("gap", "dropped"),
            Column("missing", "missing"),
        )
        + "<h3>Counters of nodes, compared with events</h3>"
        + table(
            tables["reconcile"],
            Column("node", "node", "t"),
            Column("counted", "counted"),
            Column("found", "found"),
            Column("unexplained", "unexplained"),
        )
    )


def connections(tables: Tables) -> str:
    days = len(tables["days"])
    points = tables["connection_minutes"]
    series = [plots.Series("connections", [row["peak"] for row in points], "c1")]
    ticks = [clock(row, days) for row in points]
    return (
        figure("Peak concurrent connections", plots.lines("connections", ticks, series))
        + "<h3>How connections ended</h3>"
        + table(
            tables["connection_ends"],
            Column("status", "end", "t"),
            Column("code", "code", "c"),
            Column("connections", "connections"),
            Column("median_s", "median length", "s"),
            Column("median_away_s", "median absence before", "s"),
        )
        + "<h3>Work per node</h3>"
        + table(_spoken(tables["connection_totals"]), Column("what", "what", "t"), Column("n", "n"))
        + "<h3>Platforms</h3>"
        + table(
            tables["families"],
            Column("os", "system", "t"),
            Column("browser", "browser", "t"),
            Column("user_agents", "user agents"),
            Column("connections", "connections"),
        )
    )


def _spoken(rows: Sequence[Row]) -> list[Row]:
    return [row | {"what": row["what"].replace("_", " ")} for row in rows]


def slots(tables: Tables) -> str:
    rows = tables["slots"]
    if not rows:
        return "<p>No queue operations.</p>"
    hottest = sorted(rows, key=lambda row: (-row["ops"], row["slot"]))[:20]
    return (
        figure(
            "Operations by slot (4096 slots)",
            plots.heat_map("operations by slot", {row["slot"]: row["ops"] for row in rows}),
        )
        + "<h3>The busiest slots</h3>"
        + table(
            hottest,
            Column("slot", "slot", "c"),
            Column("ops", "operations"),
            Column("ops_minute_max", "in the busiest minute"),
            Column("bytes", "received", "b"),
            Column("stored_bytes", "stored", "b"),
        )
        + "<h3>Sends</h3>"
        + table(tables["slot_sends"], Column("result", "result", "t"), Column("n", "sends"))
        + "<h3>Plans</h3>"
        + table(
            tables["slot_plans"],
            Column("day", "day", "t"),
            Column("plan", "plan", "t"),
            Column("moves", "moves"),
            Column("bytes", "to copy", "b"),
            Column("waves", "waves"),
        )
    )


def presence(tables: Tables) -> str:
    days = len(tables["days"])
    points = tables["party_minutes"]
    if not points:
        return "<p>No party sessions.</p>"
    series = [plots.Series("sessions", [row["peak"] for row in points], "c5")]
    ticks = [clock(row, days) for row in points]
    return (
        figure("Peak concurrent sessions", plots.lines("sessions", ticks, series))
        + "<h3>How sessions ended</h3>"
        + table(
            tables["party_ends"],
            Column("status", "end", "t"),
            Column("code", "code", "c"),
            Column("sessions", "sessions"),
            Column("median_s", "median length", "s"),
            Column("resumes", "resumes"),
            Column("redelivered", "delivered again"),
            Column("unbalanced", "inconsistent"),
        )
        + "<h3>Time from first send to ack</h3>"
        + table(tables["party_latency"], Column("n", "acks"), *_QUANTILES)
        + "<h3>Messages</h3>"
        + table(_spoken(tables["party_totals"]), Column("what", "what", "t"), Column("n", "n"))
    )


def health(tables: Tables) -> str:
    return (
        "<h3>Checks</h3>"
        + table(
            tables["checks"],
            Column("table", "table", "t"),
            Column("check", "check", "t"),
            Column("level", "level", "t"),
            Column("value", "value"),
            Column("bound", "allowed"),
            Column("ok", "kept"),
        )
        + "<h3>Tables in this period</h3>"
        + table(
            tables["held"],
            Column("table", "table", "t"),
            Column("rows", "rows"),
            Column("files", "files"),
            Column("bytes", "size", "b"),
        )
    )


SECTIONS = (
    Section("overview", "Overview", overview),
    Section("reliability", "Reliability", reliability),
    Section("latency", "Latency", latency),
    Section("loss", "Loss and gaps", loss),
    Section("connections", "Connections", connections),
    Section("slots", "Queues and slots", slots),
    Section("presence", "Presence", presence),
    Section("capacity", "Capacity and forecast", demand.capacity),
    Section("usage", "Usage", demand.usage),
    Section("abuse", "Abuse", demand.abuse),
    Section("health", "Pipeline", health),
)
