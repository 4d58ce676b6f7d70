"""Synthetic events by Spark: the rows of `traffic`, as many as a disk holds.

The plan of a block (some thousand rows) is joined to a range of message numbers; everything else is
an expression over the number. `traffic.rows` gives the same rows one at a time.
"""

import os
from pathlib import Path
from typing import Any

import google_crc32c
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from waystation.pipeline.job import Context, JobResult
from waystation.pipeline.schema import EVENTS, columns, contract_schema
from waystation.pipeline.table import local_frame
from waystation.pipeline.traffic import (
    BLOCK,
    CODES_OF,
    COLUMNS_OF,
    ERRNO,
    KEPT,
    KEPT_TTL_S,
    LATE_US,
    ODD_STARTS,
    ODD_STRIDE,
    TTLS,
    Planned,
    Traffic,
    attrs_of,
    path_of,
    via_of,
)
from waystation.telemetry import contract

NAME = "generate"
SEGMENT_EVENTS = 200_000
SLICE_EVENTS = 2_000_000  # what one task makes and sorts at a time
DRAWN = (
    *("mid", "uah", "chh", "app", "cid", "slot", "party", "cli", "sess", "iph", "size", "ttl"),
    *("dur", "flag"),
)
# An event of the block: what is the same for every message at its place stands here, and `has` says
# with a bit for each of DRAWN what else its code has.
PLAN = StructType(
    [
        *columns(
            "place int, number bigint, k smallint, node string, at_us bigint, spread_us bigint,"
            " shift_us bigint, offset bigint, per_block bigint, has int, peer string, via string,"
            " code int, errno int, n bigint, path tinyint, kept_ttl int"
        ).fields,
        StructField("attrs", ArrayType(StringType())),
    ]
)


def events(
    spark: SparkSession,
    traffic: Traffic,
    first: int = 0,
    end: int | None = None,
    slices: int | None = None,
) -> DataFrame:
    """The contract's columns of all events of messages first … end-1, message after message."""
    message = F.col("message")
    # Once a message what most of its events have, and only then the events.
    numbered = spark.range(
        first, traffic.messages if end is None else end, numPartitions=slices
    ).select(F.col("id").alias("message"), (F.col("id") % BLOCK).cast("int").alias("place"))
    timed = numbered.select(
        "*",
        _began(traffic).alias("t0"),
        (_draw(traffic.seed, message, 101) % traffic.client_count).alias("client"),
        (_draw(traffic.seed, message, 102) % traffic.apps).alias("app_number"),
    )
    random_part = (_draw(traffic.seed, message, number) % (1 << 40) for number in (103, 104))
    named = timed.select(
        "*",
        F.concat(
            _hex(_div(F.col("t0"), 1_000_000) * 1000, 12), *(_hex(part, 10) for part in random_part)
        ).alias("mid"),
        _hashed(traffic.seed, F.col("client"), 201).alias("uah"),
    )
    plan = local_frame(spark, [_planned(traffic, one) for one in traffic.plan], PLAN)
    known = named.join(F.broadcast(plan), on="place", how="inner").withColumn(
        "after",
        F.col("at_us") + _draw(traffic.seed, message, F.col("number")) % F.col("spread_us"),
    )
    values = _values(traffic)
    return known.select(
        *(
            values.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name)
            for field in contract_schema().fields
        )
    )


def _began(traffic: Traffic) -> Column:
    message = F.col("message")
    drawn = _draw(traffic.seed, message, 100) % F.lit(traffic.spacing_us)
    began = F.lit(traffic.start_us) + message * traffic.spacing_us + drawn
    if not traffic.late:
        return began
    turn = (F.col("place") * ODD_STRIDE + ODD_STARTS["late"]) % BLOCK
    return began - F.when(turn < traffic.late, F.lit(LATE_US)).otherwise(F.lit(0))


def _planned(traffic: Traffic, one: Planned) -> tuple[Any, ...]:
    has = COLUMNS_OF[one.k]
    fate = traffic.fate(one.place).name
    same = {
        "peer": one.peer,
        "via": via_of(fate),
        "code": CODES_OF.get(one.k, 0),
        "errno": ERRNO,
        "n": 1,
        "path": path_of(one),
    }
    return (
        *(one.place, one.number, one.k, one.node, one.at_us, one.spread_us, one.shift_us),
        *(one.offset, one.per_block),
        sum(1 << bit for bit, name in enumerate(DRAWN) if name in has),
        *(value if name in has else None for name, value in same.items()),
        KEPT_TTL_S if fate in KEPT else None,
        [attrs_of(one.k, variety) for variety in range(4)] if "attrs" in has else None,
    )


def _values(traffic: Traffic) -> dict[str, Column]:
    """The columns, each null where the code does not have it."""
    seed, message = traffic.seed, F.col("message")

    def lot(number: int) -> Column:
        return _draw(seed, message, number)

    client, app = F.col("client"), F.col("app_number")
    share = lot(105) % traffic.slots
    ttls = F.array(*(F.lit(ttl) for ttl in TTLS))
    block = _div(message, BLOCK)
    life = _div(block, traffic.blocks_a_life)
    drawn = {
        "mid": F.col("mid"),
        "uah": F.col("uah"),
        "chh": _hashed(seed, client * traffic.apps + app, 202),
        "app": _hashed(seed, app, 203),
        "cid": message,
        "slot": _div(share * share, traffic.slots),
        "party": _hashed(seed, lot(106) % (traffic.messages // 200 + 1), 204),
        "cli": _hashed(seed, client, 205),
        "sess": lot(107) - F.lit(1 << 62),
        "iph": _hashed(seed, client % 251, 206),
        "size": lot(108) % 3994 + 1,
        "ttl": F.coalesce(
            F.col("kept_ttl"), F.get(ttls, (lot(109) % len(TTLS)).cast("int"))
        ),
        "dur": F.col("after"),
        "flag": lot(110) % 4 == 0,
    }  # fmt: skip
    return {
        "v": F.lit(1),
        "ts": F.col("t0") + F.col("after") + F.col("shift_us"),
        "boot": F.lit(traffic.start_us) + life * traffic.life_us,
        "seq": (block - life * traffic.blocks_a_life) * F.col("per_block") + F.col("offset"),
        **{
            name: F.col(name) for name in ("k", "node", "peer", "via", "code", "errno", "n", "path")
        },
        **{
            name: F.when(F.col("has").bitwiseAND(1 << bit) != 0, drawn[name])
            for bit, name in enumerate(DRAWN)
        },
        "attrs": F.get("attrs", (lot(111) % 4).cast("int")),
    }


def _hashed(seed: int, of: Column, number: int) -> Column:
    return _draw(seed, of, number) - F.lit(1 << 62)


def _div(value: Column, by: int) -> Column:
    """Whole numbers all the way: a division of doubles would cost more, and round."""
    return F.call_function("div", value, F.lit(by).cast("bigint"))


def _draw(seed: int, message: Column, number: int | Column) -> Column:
    third = F.lit(number).cast("bigint") if isinstance(number, int) else number
    return F.shiftrightunsigned(F.xxhash64(F.lit(seed).cast("bigint"), message, third), 1)


def _hex(value: Column, digits: int) -> Column:
    return F.lpad(F.lower(F.hex(value.cast("bigint"))), digits, "0")


def to_lake(ctx: Context, traffic: Traffic) -> JobResult:
    """Straight into `events`, without segments; a second time changes nothing."""
    handle = ctx.lake.table(EVENTS).open()
    app = f"generate/{traffic.seed}"
    if (handle.progress(app) or 0) >= traffic.messages:
        return JobResult(job=NAME, state="noop")
    run = ctx.new_run()
    slices = max(2, traffic.event_count() // SLICE_EVENTS)
    made = events(ctx.spark, traffic, slices=slices).withColumn("_in", F.lit(ctx.clock.now_us()))
    # A slice of messages is a stretch of time already, so nothing needs to be shuffled.
    staged = handle.write(made, run, spread=False)
    handle.append(staged, run, {app: traffic.messages})
    rows = sum(file.rows for file in staged)
    return JobResult(job=NAME, run=run, rows_in=traffic.messages, rows_out=rows, files=len(staged))


def to_segments(ctx: Context, traffic: Traffic, spool: Path) -> JobResult:
    """As the nodes would have written them: a folder a node, sealed files, sequence numbers
    without gaps."""
    part = spool / ".making"
    names = list(contract.COLUMNS)
    lines = events(ctx.spark, traffic).select(
        "node",
        "boot",
        _div(F.col("seq"), SEGMENT_EVENTS).alias("segno"),
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
