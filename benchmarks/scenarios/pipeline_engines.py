"""The same questions to three engines on the same files: Spark, DuckDB and Polars.

On one small machine Spark is not the fastest, and the table says by how much (P1, P14 and half of
P5 of the specification). Every engine has two threads.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks.cost import contest, size, told
from benchmarks.measurement import Bar, Measurement
from waystation.pipeline.delta_table import Handle
from waystation.pipeline.schema import contract_schema
from waystation.pipeline.transforms.fold import fold

os.environ.setdefault("POLARS_MAX_THREADS", "2")  # it looks when it is imported

import polars as pl

HOUR_US = 3_600_000_000
MINUTE_US = 60_000_000
LARGE, HUGE = 8_000_000, 40_000_000  # events from which on the bars of 10 M and 50 M hold

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
_FIRST_OF = {
    "t0": (0,),
    "t_store": (1,),
    "t_get": (2,),
    "t_fwd": (3, 5),
    "t_sent": (6,),
    "t_acc": (7,),
    "t_term": (5, 8, 9, 10, 11, 12, 13),
    "t_done": (8,),
}


def questions(handle: Handle, count: int) -> Iterator[Measurement]:
    """Fold with funnel, and slots, asked of the events of a lake."""
    paths = [handle.table.files.uri(file.path) for file in handle.files()]
    with duckdb.connect() as other:
        other.execute("set threads to 2")

        def duck(query: str) -> Callable[[], object]:
            return lambda: other.execute(query, [paths]).fetchall()

        fold_limit = 4 if count >= HUGE else 5.5 if count >= LARGE else None
        yield from _asked(
            ("fold + funnel", "P1", fold_limit),
            lambda: _fold_spark(handle),
            duck(FOLD_SQL),
            lambda: _fold_polars(paths),
            count,
        )
        yield from _asked(
            ("load of slots", "P14", 10 if count >= LARGE else None),
            lambda: _slots_spark(handle),
            duck(SLOTS_SQL),
            lambda: _slots_polars(paths),
            count,
        )


def lines(spark: SparkSession, spool: Path, count: int) -> Iterator[Measurement]:
    """Reading JSON lines as nodes seal them."""
    paths = [str(path) for path in spool.glob("*/*.jsonl")]
    columns = {field.name: field.dataType.simpleString() for field in contract_schema().fields}
    counted = ", ".join(f'count("{name}")' for name in columns)
    spelled = ", ".join(f"'{name}': '{kind}'" for name, kind in columns.items())
    query = f"select {counted} from read_json(?, format='newline_delimited', columns={{{spelled}}})"

    def ours() -> object:
        read = spark.read.schema(contract_schema()).json(paths)
        return read.agg(*(F.count(name) for name in read.columns)).collect()

    with duckdb.connect() as other:
        other.execute("set threads to 2")
        took = contest(
            {"ours": ours, "DuckDB": lambda: other.execute(query, [paths]).fetchall()}, rounds=1
        )
    name = f"pipeline: JSON lines, {size(count)}"
    yield told(f"{name}, DuckDB", count, took["DuckDB"])
    ratio = took["ours"].cpu_s / took["DuckDB"].cpu_s
    yield told(name, count, took["ours"], bars=(Bar("P5, DuckDB's CPU", ratio, 6),))


def _asked(
    what: tuple[str, str, float | None],
    ours: Callable[[], object],
    duck: Callable[[], object],
    polars: Callable[[], object],
    count: int,
) -> Iterator[Measurement]:
    job, bar, limit = what
    # A third of a second of DuckDB is easily disturbed: the least of three; large ones once.
    rounds = 3 if count < LARGE else 1
    took = contest({"ours": ours, "DuckDB": duck, "Polars": polars}, rounds)
    name = f"pipeline: {job}, {size(count)}"
    for rival in ("DuckDB", "Polars"):
        yield told(f"{name}, {rival}", count, took[rival])
    bars = (
        Bar(f"{bar}, DuckDB's CPU", took["ours"].cpu_s / took["DuckDB"].cpu_s, limit),
        Bar("Polars' CPU", took["ours"].cpu_s / took["Polars"].cpu_s),
    )
    yield told(name, count, took["ours"], bars=bars)


def _fold_spark(handle: Handle) -> object:
    latency_us = F.col("t_done") - F.col("t0")
    bucket = F.when(latency_us < 1000, 0).otherwise(F.ceil(F.ln(latency_us / 1000) / 0.02))
    return (
        fold(handle.read())
        .groupBy(F.floor(F.col("t0") / HOUR_US), "seen", bucket)
        .agg(F.count("*"), F.sum("size"), F.max("last"))
        .collect()
    )


def _fold_polars(paths: list[str]) -> object:
    k, ts = pl.col("k"), pl.col("ts")
    folded = (
        pl.scan_parquet(paths)
        .filter(k.is_between(0, 13) & pl.col("mid").is_not_null())
        .with_columns((pl.lit(2, pl.Int32).pow(k.cast(pl.UInt32))).alias("bit"))
        .group_by("mid")
        .agg(
            (ts * 32 + k).max().alias("last"),
            pl.col("bit").bitwise_or().alias("seen"),
            *(
                pl.when(k.is_in(codes)).then(ts).min().alias(name)
                for name, codes in _FIRST_OF.items()
            ),
            *(pl.col(name).max() for name in ("ttl", "size", "app", "via", "path", "flag")),
        )
    )
    latency_us = pl.col("t_done") - pl.col("t0")
    bucket = (
        pl.when(latency_us < 1000).then(0.0).otherwise(((latency_us / 1000).log() / 0.02).ceil())
    )
    return (
        folded.group_by((pl.col("t0") // HOUR_US).alias("hour"), "seen", bucket.alias("bucket"))
        .agg(pl.len(), pl.col("size").sum(), pl.col("last").max())
        .collect(engine="streaming")
    )


def _slots_spark(handle: Handle) -> object:
    return (
        handle.read()
        .where(F.col("slot").isNotNull())
        .groupBy(F.floor(F.col("ts") / MINUTE_US), "slot")
        .agg(F.count("*"), F.sum("size"))
        .collect()
    )


def _slots_polars(paths: list[str]) -> object:
    return (
        pl.scan_parquet(paths)
        .filter(pl.col("slot").is_not_null())
        .group_by((pl.col("ts") // MINUTE_US).alias("minute"), "slot")
        .agg(pl.len(), pl.col("size").sum())
        .collect(engine="streaming")
    )
