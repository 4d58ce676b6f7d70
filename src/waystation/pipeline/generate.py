"""Generates synthetic events with Spark: the rows of `traffic`, in any number.

Every task computes a slice of the messages by column (`traffic_columns`); `traffic.rows` gives the
same rows one at a time.
"""

import os
from pathlib import Path

import google_crc32c
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from waystation.pipeline.job_context import Context, JobResult
from waystation.pipeline.schema import EVENTS
from waystation.pipeline.sources.traffic import load
from waystation.pipeline.traffic import Traffic
from waystation.telemetry import contract

NAME = "generate"
SEGMENT_EVENTS = 200_000
SLICE_EVENTS = 2_000_000  # that one task computes at a time, in memory


def events(
    spark: SparkSession, traffic: Traffic, first: int = 0, end: int | None = None
) -> DataFrame:
    """The contract's columns of all events of messages first … end-1."""
    return load(spark, traffic, first, traffic.messages if end is None else end, _slices(traffic))


def _slices(traffic: Traffic) -> int:
    return max(2, traffic.event_count() // SLICE_EVENTS)


def to_lake(ctx: Context, traffic: Traffic) -> JobResult:
    """Writes directly to `events`, without segments; a repeated run changes nothing."""
    handle = ctx.lake.table(EVENTS).open()
    app = f"generate/{traffic.seed}"
    if (handle.progress(app) or 0) >= traffic.messages:
        return JobResult(job=NAME, state="noop")
    run = ctx.new_run()
    where = {"root": handle.table.files.root, "folder": handle.folder(run)}
    where["in_us"] = str(ctx.clock.now_us())
    load(ctx.spark, traffic, 0, traffic.messages, _slices(traffic), **where).collect()
    staged = handle.staged(run)
    handle.append(staged, run, {app: traffic.messages})
    rows = sum(file.rows for file in staged)
    return JobResult(job=NAME, run=run, rows_in=traffic.messages, rows_out=rows, files=len(staged))


def to_segments(ctx: Context, traffic: Traffic, spool: Path) -> JobResult:
    """Writes segments as nodes do: a folder per node, sealed files, sequence numbers without
    gaps."""
    part = spool / ".making"
    names = list(contract.COLUMNS)
    lines = events(ctx.spark, traffic).select(
        "node",
        "boot",
        F.expr(f"seq div {SEGMENT_EVENTS}").alias("segno"),
        "seq",
        F.to_json(F.struct(*names)).alias("value"),
    )
    (
        lines.repartition("node", "boot", "segno")
        .sortWithinPartitions("node", "boot", "segno", "seq")
        .select("node", "boot", "segno", "value")
        .write.mode("overwrite")
        .partitionBy("node", "boot", "segno")
        .text(str(part.absolute()))
    )
    files = rows = 0
    sealed_at_s = (traffic.start_us + traffic.days * 86_400_000_000) / 1e6
    for path in sorted(part.glob("node=*/boot=*/segno=*/part-*.txt")):
        node, boot, segno = (step.partition("=")[2] for step in path.parts[-4:-1])
        text = path.read_bytes()
        crc32c = google_crc32c.value(text)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        count = text.count(b"\n")
        first = int(segno) * SEGMENT_EVENTS
        sealed = spool / node / f"{boot}.{segno}.{first}.{count}.{crc32c:08x}.jsonl"
        sealed.parent.mkdir(parents=True, exist_ok=True)
        path.rename(sealed)
        os.utime(sealed, (sealed_at_s, sealed_at_s))
        files += 1
        rows += count
    _remove(part)
    return JobResult(job=NAME, rows_in=traffic.messages, rows_out=rows, files=files)


def _remove(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()
