"""Parts of the page: formatted numbers, tables, figures."""

from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

from waystation.base.numbers import significant
from waystation.pipeline.report import plots
from waystation.pipeline.report.tables import Row


class Column(NamedTuple):
    key: str
    head: str
    # n number, c code, d duration in ms, s seconds, p share of `messages`, b bytes, t text
    form: str = "n"


def number(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return significant(value, 4) if abs(value) < 1e5 else f"{value:,.0f}"


def size(value: float) -> str:
    for limit, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= limit:
            return f"{significant(value / limit, 3)} {unit}"
    return f"{value:,.0f} B"


def share(part: float, whole: float) -> str:
    if not whole:
        return "–"
    text = f"{100 * part / whole:.2f}"
    if text == "100.00" and part < whole:
        text = "99.99"  # 100 is shown only for exactly 100 %
    return f"{text} %"


def _cell(row: Row, column: Column) -> str:
    value = row.get(column.key)
    if value is None:
        return '<td class="n">–</td>' if column.form != "t" else "<td>–</td>"
    raw = f' data-v="{float(value):.12g}"' if isinstance(value, int | float) else ""
    if column.form == "t" or isinstance(value, str):
        return f"<td>{escape(str(value))}</td>"
    bad = " bad" if column.key in ("lost", "unexplained", "gap", "missing") and value else ""
    match column.form:
        case "d":
            text = plots.duration(value)
        case "s":
            text = plots.duration(value * 1000)
        case "p":
            text = share(value, row["messages"])
        case "b":
            text = size(value)
        case "c":
            text = str(value)
        case _:
            text = number(value)
    return f'<td class="n{bad}"{raw}>{escape(text)}</td>'


def table(rows: Sequence[Row], *columns: Column) -> str:
    if not rows:
        return "<p>No events of this kind.</p>"
    heads = "".join(
        f"<th{'' if column.form == 't' else ' class=n'}>{escape(column.head)}</th>"
        for column in columns
    )
    body = "".join(
        "<tr>" + "".join(_cell(row, column) for column in columns) + "</tr>" for row in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody>'
        "</table></div>"
    )


def figure(caption: str, drawing: str, series: Sequence[plots.Series] = ()) -> str:
    legend = "".join(f'<li><i class="{one.tone}"></i>{escape(one.name)}</li>' for one in series)
    return (
        f"<figure><figcaption>{escape(caption)}</figcaption>{drawing}"
        + (f'<ul class="legend">{legend}</ul>' if len(series) > 1 else "")
        + "</figure>"
    )


def clock(row: Row, days: int) -> str:
    """Label of a point in time; with the date if the report has several days."""
    minute = row["minute"] if "minute" in row else row["hour"] * 60
    time = f"{minute // 60:02}:{minute % 60:02}"
    return time if days == 1 else f"{row['day'][5:]} {time}"
