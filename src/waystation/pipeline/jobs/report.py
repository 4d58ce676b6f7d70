"""Job `report`: writes one HTML page over some days, or its tables as files.

Input: result tables. Output: files in a folder; the lake is not changed.
Progress: none; the same tables give the same bytes.
Cost: about two dozen small queries, independent of the number of events.
"""

import datetime as dt
import json
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]

from waystation.pipeline.job_context import Context, JobResult
from waystation.pipeline.report.page import csv, page
from waystation.pipeline.report.tables import Tables, collect
from waystation.pipeline.results import REL_HOURLY, REL_NODES

NAME = "report"
Form = Literal["html", "json", "csv", "parquet"]


def days_known(ctx: Context) -> list[dt.date]:
    """Every day with rows in a result table."""
    found = ctx.lake.table(REL_NODES).open().partition_values("date")
    found |= ctx.lake.table(REL_HOURLY).open().partition_values("mdate")
    return sorted(dt.date.fromisoformat(day) for day in found)


def run(
    ctx: Context, out: Path, days: list[dt.date] | None = None, form: Form = "html"
) -> JobResult:
    """Without `days`, those of the last month."""
    chosen = days if days is not None else days_known(ctx)[-30:]
    tables = collect(ctx, chosen)
    out.mkdir(parents=True, exist_ok=True)
    written = write(tables, out, form)
    return JobResult(
        job=NAME,
        rows_out=sum(map(len, tables.values())),
        files=len(written),
        notes={"days": len(chosen), "first": str(written[0])},
    )


def write(tables: Tables, out: Path, form: Form) -> list[Path]:
    match form:
        case "html":
            target = out / "report.html"
            target.write_text(page(tables), encoding="utf-8")
            return [target]
        case "json":
            target = out / "report.json"
            text = json.dumps(tables, sort_keys=True, indent=1) + "\n"
            target.write_text(text, encoding="utf-8")
            return [target]
        case "csv":
            targets = [out / f"{name}.csv" for name in tables]
            for target, rows in zip(targets, tables.values(), strict=True):
                target.write_text(csv(rows), encoding="utf-8")
            return targets
        case "parquet":
            targets = [out / f"{name}.parquet" for name, rows in tables.items() if rows]
            arrow: Any = pa  # these have no types
            parquet: Any = pq
            for target in targets:
                parquet.write_table(arrow.Table.from_pylist(tables[target.stem]), target)
            return targets
