"""Synthetic events by Spark: the rows of `traffic`, as many as a disk holds.

The plan of a block (some thousand rows) is joined to a range of message numbers; everything else is
an expression over the number. `traffic.rows` gives the same rows one at a time.
"""

import os
from pathlib import Path

import google_crc32c
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from waystation.pipeline.job import Context, JobResult
from waystation.pipeline.schema import EVENTS, columns, contract_schema
from waystation.pipeline.table import local_frame
from waystation.pipeline.traffic import BLOCK, COLUMNS_OF, Traffic, attrs_of
from waystation.telemetry import contract

NAME = "generate"
SEGMENT_EVENTS = 200_000
PLAN = columns(
    "place int, number bigint, k smallint, node string, peer string, at_us bigint,"
    " spread_us bigint, offset bigint, per_block bigint, fate string"
)


def events(
    spark: SparkSession, traffic: Traffic, first: int = 0, end: int | None = None
) -> DataFrame:
    """The contract's columns of all events of messages first … end-1."""
    seed = traffic.seed
    message = F.col("message")

    def lot(number: int | Column) -> Column:
        return _draw(seed, message, number)

    t0 = (
        F.lit(traffic.start_us)
        + message * traffic.spacing_us
        + lot(100) % F.lit(traffic.spacing_us)
    )
    drawn = spark.range(first, traffic.messages if end is None else end).select(
        F.col("id").alias("message"), (F.col("id") % BLOCK).cast("int").alias("place")
    )
    plan = local_frame(
        spark,
        [
            (p.place, p.number, p.k, p.node, p.peer, p.at_us, p.spread_us, p.offset, p.per_block,
             traffic.fate(p.place).name)
            for p in traffic.plan
        ],
        PLAN,
    )  # fmt: skip
    known = drawn.join(F.broadcast(plan), on="place", how="inner").withColumns(
        {
            "t0": t0,
            "client": lot(101) % traffic.client_count,
            "app_number": lot(102) % traffic.apps,
            "after": F.col("at_us") + lot(F.col("number")) % F.col("spread_us"),
        }
    )
    values = _values(traffic) | {
        "v": F.lit(1),
        "ts": F.col("t0") + F.col("after"),
        "node": F.col("node"),
        "boot": F.lit(traffic.start_us),
        "seq": F.floor(message / BLOCK) * F.col("per_block") + F.col("offset"),
        "k": F.col("k"),
    }
    return known.select(
        *(
            values.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name)
            for field in contract_schema().fields
        )
    )


def _values(traffic: Traffic) -> dict[str, Column]:
    """The columns besides the envelope, each null where the code does not have it."""
    seed, message = traffic.seed, F.col("message")

    def lot(number: int) -> Column:
        return _draw(seed, message, number)

    def hashed(of: Column, number: int) -> Column:
        return _draw(seed, of, number) - F.lit(1 << 62)

    client, app = F.col("client"), F.col("app_number")
    second_ms = F.floor(F.col("t0") / 1_000_000) * 1000
    share = lot(105) % traffic.slots
    k, fate = F.col("k"), F.col("fate")
    ttls = F.array(*(F.lit(ttl) for ttl in (0, 60, 3600, 3600, 86_400)))
    everything = {
        "mid": F.concat(
            _hex(second_ms, 12), *(_hex(lot(number) % (1 << 40), 10) for number in (103, 104))
        ),
        "uah": hashed(client, 201),
        "chh": hashed(client * traffic.apps + app, 202),
        "app": hashed(app, 203),
        "cid": message,
        "via": F.when(fate == "bridged", "fcm").otherwise("webpush"),
        "path": F.when(F.col("at_us") >= 3_000_000_000, 1).otherwise(0),
        "slot": F.floor(share * share / traffic.slots),
        "party": hashed(lot(106) % (traffic.messages // 200 + 1), 204),
        "cli": hashed(client, 205),
        "sess": lot(107) - F.lit(1 << 62),
        "peer": F.col("peer"),
        "iph": hashed(client % 251, 206),
        "code": F.when(k == 5, 201).when(k == 9, 301).when(k == 29, 1001).otherwise(0),
        "errno": F.lit(201),
        "size": lot(108) % 3994 + 1,
        "ttl": F.when(fate.isin("stored", "expired", "superseded"), 3600).otherwise(
            F.get(ttls, (lot(109) % 5).cast("int"))
        ),
        "dur": F.col("after"),
        "n": F.lit(1),
        "flag": lot(110) % 4 == 0,
        "attrs": _attrs(lot(111) % 4),
    }  # fmt: skip
    return {
        name: F.when(k.isin(*(code for code, has in COLUMNS_OF.items() if name in has)), value)
        for name, value in everything.items()
    }


def _attrs(variety: Column) -> Column:
    chosen = F.when(F.lit(False), F.lit(None))
    for k, names in COLUMNS_OF.items():
        if "attrs" in names:
            texts = F.array(*(F.lit(attrs_of(k, number)) for number in range(4)))
            chosen = chosen.when(F.col("k") == k, F.get(texts, variety.cast("int")))
    return chosen


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
    made = events(ctx.spark, traffic).withColumn("_in", F.lit(ctx.clock.now_us()))
    staged = handle.write(made, run)
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
        F.floor(F.col("seq") / SEGMENT_EVENTS).alias("segno"),
        "seq",
        F.to_json(F.struct(*names)).alias("value"),
    )
    (
        lines.repartition("node", "segno")
        .sortWithinPartitions("node", "segno", "seq")
        .select("node", "segno", "value")
        .write.mode("overwrite")
        .partitionBy("node", "segno")
        .text(str(part.absolute()))
    )
    files = rows = 0
    sealed_at_s = (traffic.start_us + traffic.days * 86_400_000_000) / 1e6
    for path in sorted(part.glob("node=*/segno=*/part-*.txt")):
        node, segno = (step.partition("=")[2] for step in path.parts[-3:-1])
        text = path.read_bytes()
        crc32c = google_crc32c.value(text)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        count = text.count(b"\n")
        first = int(segno) * SEGMENT_EVENTS
        sealed = spool / node / f"{traffic.start_us}.{segno}.{first}.{count}.{crc32c:08x}.jsonl"
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
