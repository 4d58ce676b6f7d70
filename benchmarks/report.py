"""How the numbers are shown: a table for people, JSON for programs, Markdown for documents."""

import sys
from collections.abc import Sequence

import msgspec

from .environment import Environment
from .measurement import Measurement, Summary

COLUMNS = (
    "scenario",
    "per second",
    "CPU µs",
    "× F",
    "p50 ms",
    "p99 ms",
    "frame ms",
    "round trips",
    "loaded",
    "lost",
    "notes",
)

TABLE_COLUMNS = 110  # a pipe has no width of its own, and half a number is worse than a long line


class Report(msgspec.Struct, frozen=True):
    environment: Environment
    summaries: list[Summary]
    rounds: list[list[Measurement]]


def rows(summaries: Sequence[Summary]) -> list[tuple[str, ...]]:
    return [
        (
            summary.scenario,
            f"{summary.rate:,.0f}",
            _number(summary.cpu_us, 1),
            _number(summary.floors, 2),
            _number(summary.p50_ms, 2),
            _number(summary.p99_ms, 2),
            _number(summary.frame_ms, 2),
            _number(summary.round_trips, 0),
            _number(summary.round_trips_loaded, 2),
            "" if summary.lost is None else str(summary.lost),
            "; ".join(
                part
                for part in (
                    f"{summary.kib:.2f} KiB per connection" if summary.kib is not None else "",
                    summary.notes,
                )
                if part
            ),
        )
        for summary in summaries
    ]


def table(summaries: Sequence[Summary]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, without the columns in which nothing stands: no scenario fills them all."""
    cells = rows(summaries)
    filled = [number for number in range(len(COLUMNS) - 1) if any(row[number] for row in cells)]
    shown = [*filled, len(COLUMNS) - 1]
    return (
        [COLUMNS[number] for number in shown],
        [[row[number] for number in shown] for row in cells],
    )


def to_terminal(report: Report) -> None:
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        print(to_markdown(report))
        return
    columns, cells = table(report.summaries)
    shown = Table(title="CPU per operation, medians of the rounds")
    for number, column in enumerate(columns[:-1]):
        shown.add_column(column, justify="right" if number else "left", no_wrap=True)
    for row in cells:
        shown.add_row(*row[:-1])
    width = None if sys.stdout.isatty() else TABLE_COLUMNS
    console = Console(highlight=False, soft_wrap=True, width=width)
    console.print(shown)
    for row in cells:
        if row[-1]:
            console.print(f"{row[0]}: {row[-1]}")
    console.print(f"{report.environment.machine}; commit {report.environment.commit}")


def to_json(report: Report) -> bytes:
    return msgspec.json.format(msgspec.json.encode(report)) + b"\n"


def to_markdown(report: Report) -> str:
    where = report.environment
    packages = ", ".join(f"{name} {version}" for name, version in where.packages.items())
    columns, cells = table(report.summaries)
    lines = [
        f"| {' | '.join(columns)} |",
        f"|---|{'---:|' * (len(columns) - 2)}---|",
        *(f"| {' | '.join(row)} |" for row in cells),
        "",
        f"Measured {where.measured_at} on {where.machine}; {where.python}, {packages}; commit"
        f" {where.commit}; `{where.command}`; medians of {len(report.rounds)} interleaved rounds.",
    ]
    return "\n".join(lines)


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"
