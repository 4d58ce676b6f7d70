"""Sections about load: capacity, forecast, usage, abuse."""

from collections.abc import Sequence

from waystation.pipeline.report import plots
from waystation.pipeline.report.cells import Column, clock, figure, table
from waystation.pipeline.report.tables import Row, Tables

MODELS = {"trend": "trend and week", "mean": "daily mean", "week_ago": "same as a week ago"}


def capacity(tables: Tables) -> str:
    days = len(tables["days"])
    points = sorted({(row["day"], row["minute"]) for row in tables["capacity_minutes"]})
    found = {
        (row["day"], row["minute"], row["resource"]): row["busiest_minute"]
        for row in tables["capacity_minutes"]
    }
    names = sorted({row["resource"] for row in tables["capacity_minutes"]})
    series = [
        plots.Series(name.replace("_", " "), [found.get((*at, name), 0) for at in points], tone)
        for name, tone in zip(names, ("c1", "c2", "c3"), strict=False)
    ]
    ticks = [clock({"day": day, "minute": minute}, days) for day, minute in points]
    units = [
        row | {"resource": row["resource"].replace("_", " ")} for row in tables["capacity_units"]
    ]
    return (
        figure("Highest demand per minute", plots.lines("load", ticks, series), series)
        + "<h3>Required store capacity</h3>"
        + "<p>Units per second in the busiest minute of the busiest hour, and with headroom."
        " The last column is the amount of the driver that one unit carries.</p>"
        + table(
            units,
            Column("day", "day", "t"),
            Column("resource", "units", "t"),
            Column("busiest_hour", "busiest hour", "c"),
            Column("units", "total units"),
            Column("rate_p99", "a second"),
            Column("provision", "to provide"),
            Column("driver", "driven by", "t"),
            Column("driver_per_unit", "driver per unit"),
        )
        + "<h3>Forecast</h3>"
        + _forecast(tables["forecast"])
    )


def _forecast(rows: Sequence[Row]) -> str:
    """The next three months of notifications, and a table for all resources."""
    if not rows:
        return "<p>A forecast needs at least one whole day of events.</p>"
    drawn = [row for row in rows if row["resource"] == "notifications"]
    series = [
        plots.Series("90 % quantile", [row["p90"] for row in drawn], "c3"),
        plots.Series("median", [row["p50"] for row in drawn], "c1"),
        plots.Series("10 % quantile", [row["p10"] for row in drawn], "c2"),
    ]
    ticks = [row["target"][5:] for row in drawn]
    last: dict[str, Row] = {row["resource"]: row for row in rows}
    listed = [
        row
        | {
            "resource": name.replace("_", " "),
            "model": MODELS[row["model"]],
        }
        for name, row in sorted(last.items())
    ]
    return (
        (
            figure("Notifications per day", plots.lines("forecast", ticks, series), series)
            if drawn
            else ""
        )
        + "<p>Forecast for the day three months from now. The error is that of a forecast of the"
        " last week from the weeks before it.</p>"
        + table(
            listed,
            Column("resource", "asked for", "t"),
            Column("target", "day", "t"),
            Column("p10", "10 %"),
            Column("p50", "50 %"),
            Column("p90", "90 %"),
            Column("model", "model", "t"),
            Column("mape", "error"),
            Column("naive_mape", "error of a week-ago model"),
        )
    )


def usage(tables: Tables) -> str:
    windows: dict[str, Row] = {}
    for row in tables["usage_windows"]:
        entry = windows.setdefault(row["what"], {"what": row["what"].replace("_", " ")})
        entry[f"d{row['days']}"] = row["distinct"]
    counted = [row | {"what": row["what"].replace("_", " ")} for row in tables["usage"]]
    return (
        "<h3>Distinct ids, up to the last day</h3>"
        + table(
            list(windows.values()),
            Column("what", "who", "t"),
            Column("d1", "1 day"),
            Column("d7", "7 days"),
            Column("d30", "30 days"),
        )
        + "<h3>Activity</h3>"
        + table(
            counted,
            Column("what", "what", "t"),
            Column("detail", "in detail", "t"),
            Column("n", "n"),
            Column("bytes", "bytes", "b"),
        )
    )


def abuse(tables: Tables) -> str:
    found = [
        row
        | {
            "kind": row["kind"].replace("_", " "),
            "who": f"{row['class']} {row['key']}",
            "first": f"{row['day']} {row['first_minute'] // 60:02}:{row['first_minute'] % 60:02}",
            "minutes": row["last_minute"] - row["first_minute"] + 1,
        }
        for row in tables["abuse"]
    ]
    if not found:
        return "<p>No findings.</p>"
    return (
        "<p>Senders and slots far above the hour before. A finding is a hint, not proof.</p>"
        + table(
            found,
            Column("kind", "kind", "t"),
            Column("who", "who", "t"),
            Column("first", "from", "t"),
            Column("n", "n"),
            Column("peak", "peak per minute"),
            Column("baseline", "usual"),
            Column("score", "score"),
            Column("share", "share"),
            Column("nodes", "nodes", "t"),
        )
    )
