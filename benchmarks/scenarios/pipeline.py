"""The pipeline on synthetic events, with DuckDB beside it on the same files in the same run.

CPU is that of the whole process tree, the JVM included; DuckDB works inside this process. On one
small machine Spark is not the fastest engine, and the table says by how much; bars are those of
docs/pipeline.md.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
from pyspark.sql import functions as F

from benchmarks.measurement import Measurement
from waystation.base.clock import SystemClock
from waystation.pipeline import generate, session
from waystation.pipeline.dag import STEPS
from waystation.pipeline.job import Context, cpu_seconds
from waystation.pipeline.jobs import ingest, report
from waystation.pipeline.schema import EVENTS, contract_schema
from waystation.pipeline.table import Handle, Lake
from waystation.pipeline.traffic import Traffic
from waystation.pipeline.transforms.fold import fold

EVENTS_DEFAULT = 1_000_000
EVENTS_A_MESSAGE = 5.06
WARM_MESSAGES = 20_000
LINES_MAX = 20_000_000  # events; segments are ten times as large as the table
HOUR_US = 3_600_000_000
MINUTE_US = 60_000_000

# What the fold, the funnel by hour and the latency histogram are in SQL; all columns of the fold.
FOLD_SQL = """
with folded as (
    select mid, max(ts * 32 + k) as last, bit_or(1 << k) as seen,
        min(case when k = 0 then ts end) as t0, min(case when k = 1 then ts end) as t_store,
        min(case when k = 2 then ts end) as t_get, min(case when k in (3, 5) then ts end) as t_fwd,
        min(case when k = 6 then ts end) as t_sent, min(case when k = 7 then ts end) as t_acc,
        min(case when k in (5, 8, 9, 10, 11, 12, 13) then ts end) as t_term,
        min(case when k = 8 then ts end) as t_done,
        max(ttl) as ttl, max(size) as size, max(app) as app, max(via) as via, max(path) as path,
        max(flag) as topic
    from read_parquet(?) where k between 0 and 13 and mid is not null group by mid
)
select t0 // 3600000000 as hour, seen,
    case when t_done - t0 < 1000 then 0
         else ceil(ln((t_done - t0) / 1000) / ln(1.02020202)) end as bucket,
    count(*) as n, sum(size) as bytes, max(last) as last
from folded group by all
"""
SLOTS_SQL = """
select ts // 60000000 as minute, slot, count(*) as n, sum(size) as bytes
from read_parquet(?) where slot is not null group by all
"""


def run(events: int) -> list[Measurement]:
    """All measurements for one number of events."""
    folder = Path(tempfile.mkdtemp(prefix="waystation-bench-"))
    spark = session.build("embedded")
    clock = SystemClock()
    ctx = Context(spark, Lake(spark, str(folder / "lake"), clock), clock)
    try:
        _warm(ctx, folder / "warm")
        return list(_measured(ctx, folder, Traffic(messages=int(events / EVENTS_A_MESSAGE))))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _warm(ctx: Context, folder: Path) -> None:
    """Everything once on a little: classes loaded, code compiled."""
    small = Context(ctx.spark, Lake(ctx.spark, str(folder / "lake"), ctx.clock), ctx.clock)
    traffic = Traffic(messages=WARM_MESSAGES)
    generate.to_segments(small, traffic, folder / "spool")
    ingest.drain(small, folder / "spool")
    generate.to_lake(small, traffic)
    for step in STEPS:
        step.run(small, None)


def _measured(ctx: Context, folder: Path, traffic: Traffic) -> Iterator[Measurement]:
    count = traffic.event_count()
    size = _size(count)
    made = Lake(ctx.spark, str(folder / "made"), ctx.clock)
    direct = Context(ctx.spark, made, ctx.clock)
    yield _timed(f"pipeline: generate, {size}", count, lambda: generate.to_lake(direct, traffic),
                 notes="bar: 0.5 M a CPU second")  # fmt: skip
    handle = made.table(EVENTS).open()
    paths = [handle.table.files.uri(file.path) for file in handle.files()]
    with duckdb.connect() as other:
        other.execute("set threads to 2")
        yield from _against_duckdb(handle, paths, other, count)
        yield from _jobs(direct, folder / "report", count)
        if count <= LINES_MAX:
            generate.to_segments(ctx, traffic, folder / "spool")
            yield from _lines(ctx, folder / "spool", other, count)
            spool = folder / "spool"
            yield _timed(f"pipeline: ingest, {size}", count, lambda: ingest.drain(ctx, spool))


def _jobs(ctx: Context, out: Path, count: int) -> Iterator[Measurement]:
    """Every job of `waystation pipeline run` after `ingest`, then all of them without input."""
    size = _size(count)
    for step in STEPS:
        yield _timed(f"pipeline: {step.name}, {size}", count, lambda step=step: step.run(ctx, None))
    yield _timed(f"pipeline: report, {size}", count, lambda: report.run(ctx, out),
                 notes="bar: 10 s for 30 days")  # fmt: skip
    yield _timed(
        f"pipeline: {len(STEPS)} jobs without input, {size}",
        len(STEPS),
        lambda: [step.run(ctx, None) for step in STEPS],
        notes="bar: under 1 s each",
    )


def _against_duckdb(
    handle: Handle, paths: list[str], other: Any, count: int
) -> Iterator[Measurement]:
    latency_us = F.col("t_done") - F.col("t0")
    bucket = F.when(latency_us < 1000, 0).otherwise(F.ceil(F.ln(latency_us / 1000) / 0.02))

    def folded() -> object:
        return (
            fold(handle.read())
            .groupBy(F.floor(F.col("t0") / HOUR_US), "seen", bucket)
            .agg(F.count("*"), F.sum("size"), F.max("last"))
            .collect()
        )

    def slots() -> object:
        return (
            handle.read()
            .where(F.col("slot").isNotNull())
            .groupBy(F.floor(F.col("ts") / MINUTE_US), "slot")
            .agg(F.count("*"), F.sum("size"))
            .collect()
        )

    for job, ours, query, bar in (
        ("fold + funnel", folded, FOLD_SQL, "5.5 × DuckDB's CPU at 10 M events, 4 × at 50 M"),
        ("slots", slots, SLOTS_SQL, "10 × DuckDB's CPU at 10 M events"),
    ):
        ours()  # warm: classes loaded, code compiled
        name = f"pipeline: {job}, {_size(count)}"
        rival = f"{name}, DuckDB"
        yield _timed(rival, count, lambda query=query: other.execute(query, [paths]).fetchall())
        yield _timed(name, count, ours, against=rival, notes=f"bar: {bar}")


def _lines(ctx: Context, spool: Path, other: Any, count: int) -> Iterator[Measurement]:
    paths = [str(path) for path in spool.glob("*/*.jsonl")]
    name = f"pipeline: JSON lines, {_size(count)}"
    rival = f"{name}, DuckDB"

    def spark() -> None:
        lines = ctx.spark.read.schema(contract_schema()).json(paths)
        lines.agg(*(F.count(name) for name in lines.columns)).collect()

    def duck() -> object:
        columns = {field.name: field.dataType.simpleString() for field in contract_schema().fields}
        counted = ", ".join(f'count("{name}")' for name in columns)
        spelled = ", ".join(f"'{name}': '{kind}'" for name, kind in columns.items())
        return other.execute(
            f"select {counted} from read_json(?, format='newline_delimited',"
            f" columns={{{spelled}}})",
            [paths],
        ).fetchall()

    spark()
    yield _timed(rival, count, duck)
    yield _timed(name, count, spark, against=rival, notes="bar: 6 × DuckDB's CPU")


def _timed(
    scenario: str,
    operations: int,
    work: Callable[[], object],
    *,
    against: str = "",
    notes: str = "",
) -> Measurement:
    wall, cpu = time.perf_counter(), cpu_seconds()
    work()
    took_s, cpu_s = time.perf_counter() - wall, cpu_seconds() - cpu
    # At once: a run over many events takes long, and may be given up.
    print(f"{scenario}: {took_s:.1f} s, {cpu_s:.1f} s of CPU", file=sys.stderr, flush=True)
    return Measurement(
        scenario=scenario,
        operation="event",
        operations=operations,
        seconds=took_s,
        cpu_us=cpu_s * 1e6 / operations,
        against=against,
        notes=notes,
    )


def _size(count: int) -> str:
    return f"{count / 1e6:.3g} M events"
