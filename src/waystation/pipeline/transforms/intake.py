"""Turns lines of segments or records of Kafka into events, and gives the reason for each bad line.

Rule 1: the check of a line uses its content and its file's name (or its record's key and time), not
        the time of reading, so that a repeated run gives the same result.
Rule 2: the first reason counts. Events with unknown codes are kept.
Rule 3: one row per (node, boot, seq).
"""

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from waystation.pipeline.schema import EVENTS, QUARANTINE, contract_schema, mid_ms
from waystation.pipeline.transforms.output_schema import returns
from waystation.queue.model import SLOTS
from waystation.telemetry import contract

BAD = "_bad"
IDENTITY = ("node", "boot", "seq")
LINE_CHARACTERS_MAX = 4096
MID_AGE_MAX_MS = 60 * 86_400_000
MID_AHEAD_MAX_MS = 86_400_000

# What an `attrs` text must not contain: UUIDs, addresses, URLs, keys (design, promise 4).
PRIVATE = (
    r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
    r"|\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b"
    r"|\b(?:[0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{1,4}\b"
    r"|[a-z]+://"
    r"|\bB[A-P][A-Za-z0-9_-]{85}\b"
)

_UNKNOWN = -1
_BITS = {
    name: bit
    for bit, name in enumerate(
        sorted({name for kind in contract.KINDS.values() for name in kind.required})
    )
}

# The source of a line: fields of the segment's name, or key, time and position of the record.
_PLACE = ("node", "boot", "segno", "sealed_at", "topic", "partition", "offset")
# The fields of a file's name, added to each of its rows.
FILE = StructType(
    [
        StructField("file_key", StringType()),
        *(QUARANTINE.data[name] for name in ("node", "boot", "segno", "sealed_at")),
        StructField("first_seq", EVENTS.data["seq"].dataType),
        StructField("seen_seq", EVENTS.data["seq"].dataType),
    ]
)
# The greatest sequence number of a process in the lake.
SEEN = StructType([EVENTS.data[name] for name in IDENTITY])
_JSON = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": BAD,
    "allowSingleQuotes": "false",
}


def read_lines(spark: SparkSession, paths: list[str], files: DataFrame) -> DataFrame:
    """The contract's columns of every line, `_bad` with the text of unparsable lines, and `file`
    with the fields of the file. `files` has the columns of FILE, one row per file."""
    lines = (
        spark.read.schema(_line_schema())
        .options(**_JSON, lineSep="\n")
        .json(paths)
        .select("*", F.substring_index("_metadata.file_path", "/", -2).alias("file_key"))
    )
    known = files.select(
        "file_key", _place({name: F.col(name) for name in FILE.names[1:]}).alias("file")
    )
    return lines.join(F.broadcast(known), on="file_key", how="inner").drop("file_key")


def read_records(records: DataFrame, topic: str, seen: DataFrame | None) -> DataFrame:
    """Like `read_lines`, for Kafka records. `seen` has the columns of SEEN, one row per process
    whose known sequence numbers are repeated here; None if there is none."""
    text = F.make_valid_utf8(F.coalesce(F.col("value"), F.lit(b"")).cast("string"))
    whole = F.is_valid_utf8(F.col("value").cast("string"))
    read = records.select(
        F.make_valid_utf8(F.col("key").cast("string")).alias("_key"),
        F.col("at").alias("_at"),
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
        text.alias("_text"),
        # Invalid UTF-8 is not parsed, so it becomes a bad line.
        F.from_json(F.when(whole, text), _line_schema(), _JSON).alias("_row"),
    )
    row = F.col("_row")
    lines = read.select(
        "*",
        *(row[name].alias(name) for name in contract.COLUMNS),
        F.when(row.isNull(), F.col("_text")).otherwise(row[BAD]).alias(BAD),
    )
    place = {
        "node": F.col("_key"),
        "sealed_at": F.col("_at"),
        "topic": F.lit(topic),
        "partition": F.col("_partition"),
        "offset": F.col("_offset"),
        "first_seq": F.lit(0),
    }
    if seen is not None:
        known = seen.withColumnRenamed("seq", "_seen")
        lines = lines.join(F.broadcast(known), on=["node", "boot"], how="left")
        place["seen_seq"] = F.col("_seen")
    return lines.select(*contract.COLUMNS, BAD, _place(place).alias("file"))


def _line_schema() -> StructType:
    return StructType([*contract_schema().fields, StructField(BAD, StringType())])


def _place(known: Mapping[str, Column]) -> Column:
    """One struct for both kinds of sources; fields of the other kind are null."""
    types = {field.name: field.dataType for field in (*FILE.fields, *QUARANTINE.data.fields)}
    return F.struct(
        *(
            known.get(name, F.lit(None)).cast(types[name]).alias(name)
            for name in (*_PLACE, "first_seq", "seen_seq")
        )
    )


def judged(lines: DataFrame, *, late_max_us: int, early_max_us: int) -> DataFrame:
    """Adds `reason`: null for an event, otherwise why the line is bad."""
    known = lines.withColumns({"_needs": _needs(), "_mid_ms": mid_ms()})
    needs = F.col("_needs")
    envelope = [F.col(name).isNull() for name in ("v", "ts", "node", "boot", "seq", "k")]
    sealed_at = F.col("file.sealed_at")
    # A record's key is the node; a record without a key has no source.
    same_node = F.col("node").eqNullSafe(F.col("file.node"))
    foreign = ~same_node | (F.col("boot") != F.col("file.boot"))
    reason = (
        F.when(F.col(BAD) == "", "blank")
        .when(F.col(BAD).isNotNull(), "unreadable")
        .when(_any(envelope), "no_envelope")
        .when(F.col("v") > contract.CONTRACT_VERSION, "newer_contract")
        .when(foreign, "foreign")
        .when(F.col("seq") < F.col("file.first_seq"), "seq_before_file")
        .when(F.col("seq") <= F.col("file.seen_seq"), "seq_seen")
        .when(F.col("ts") < sealed_at - late_max_us, "too_late")
        .when(F.col("ts") > sealed_at + early_max_us, "too_early")
        .when((needs > 0) & (needs.bitwiseAND(_absent()) != 0), "missing_columns")
        .when(_any(_malformed()), "bad_value")
    )
    return known.withColumn("reason", reason)


def _needs() -> Column:
    """The required columns of an event's code as bits; negative for an unknown code. One look-up in
    a constant takes far less CPU than a check per column."""
    masks = [_UNKNOWN] * (max(contract.KINDS) + 1)
    for kind in contract.KINDS.values():
        masks[kind.code] = sum(1 << _BITS[name] for name in kind.required)
    listed = F.split(F.lit(",".join(map(str, masks))), ",").cast("array<int>")
    return F.coalesce(F.get(listed, F.col("k").cast("int")), F.lit(_UNKNOWN))


def _absent() -> Column:
    """The null columns as bits."""
    bits = (F.when(F.col(name).isNull(), 1 << bit).otherwise(0) for name, bit in _BITS.items())
    return reduce(lambda a, b: a.bitwiseOR(b), bits)


def _malformed() -> list[Column]:
    ms = F.call_function("div", F.col("ts"), F.lit(1000).cast("bigint"))
    mid = F.col("mid")
    return [
        # Cheaper than a regular expression, and every message has one.
        mid.isNotNull() & ((F.length(mid) != 32) | F.unhex(mid).isNull() | (F.lower(mid) != mid)),
        F.col("_mid_ms") < ms - MID_AGE_MAX_MS,
        F.col("_mid_ms") > ms + MID_AHEAD_MAX_MS,
        ~F.col("slot").between(0, SLOTS - 1),
        ~F.col("peer").rlike(f"^{contract.NODE_PATTERN}$"),
        ~(F.col("via").isin("webpush", "fcm") | F.col("via").rlike("^[a-z0-9_-]{1,16}$")),
        F.length("attrs") > contract.ATTRS_BYTES_MAX,
        F.col("w") < 1,
        F.col("n") < 0,
    ]


def is_private() -> Column:
    return F.col("attrs").rlike(PRIVATE)


def is_unknown() -> Column:
    return F.col("_needs") == _UNKNOWN


@returns(EVENTS.data)
def accepted(verdicts: DataFrame, batch: int) -> DataFrame:
    return (
        verdicts.where(F.col("reason").isNull())
        .withColumn("_in", F.lit(batch).cast("bigint"))
        .select(*EVENTS.data.names)
    )


@returns(QUARANTINE.data)
def rejected(verdicts: DataFrame) -> DataFrame:
    """Bad lines with their source. Parsed lines are formatted again in the contract's order."""
    text = F.coalesce(F.col(BAD), F.to_json(F.struct(*contract.COLUMNS)))
    return verdicts.where(F.col("reason").isNotNull()).select(
        *(F.col(f"file.{name}").alias(name) for name in ("node", "boot", "segno", "sealed_at")),
        "reason",
        F.substring(text, 1, LINE_CHARACTERS_MAX).alias("line"),
        *(F.col(f"file.{name}").alias(name) for name in ("topic", "partition", "offset")),
    )


def per_source(events: DataFrame) -> DataFrame:
    """Per (node, boot): rows, distinct rows, their range, gaps, the newest time."""
    gap = F.when(F.col("k") == contract.CODES["log.gap"], F.col("n"))
    return (
        events.groupBy(*IDENTITY)
        .agg(F.count("*").alias("times"), F.max(gap).alias("gap"), F.max("ts").alias("ts"))
        .groupBy("node", "boot")
        .agg(
            F.sum("times").alias("rows"),
            F.count("*").alias("distinct"),
            F.min("seq").alias("least"),
            F.max("seq").alias("greatest"),
            F.coalesce(F.sum("gap"), F.lit(0)).alias("gaps"),
            F.max("ts").alias("newest_ts"),
        )
    )


@returns(EVENTS.data)
def deduplicated(events: DataFrame) -> DataFrame:
    """Rule 3. Of different rows the same one is always kept, independent of order."""
    same = Window.partitionBy(*IDENTITY).orderBy(F.xxhash64(*EVENTS.data.names))
    return (
        events.withColumn("_row", F.row_number().over(same))
        .where(F.col("_row") == 1)
        .select(*EVENTS.data.names)
    )


def _any(conditions: list[Column]) -> Column:
    """True if at least one condition is true; null counts as false."""
    return reduce(lambda a, b: a | b, (F.coalesce(one, F.lit(False)) for one in conditions))
