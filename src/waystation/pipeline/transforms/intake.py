"""Turns lines of segments or records of Kafka into events, and gives the reason for each bad line.

Rule 1: a line is judged by its content and its file's name (or its record's key and time), never
        by when it is read, so that a repeated run gives the same result.
Rule 2: the first reason counts. Unknown codes are no reason: they are kept.
Rule 3: one row for each (node, boot, seq).
"""

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from waystation.pipeline.schema import EVENTS, QUARANTINE, contract_schema, mid_ms
from waystation.pipeline.transforms.declared import declared
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

# Where a line is from: of a segment what its name says, of a record its key, time and place.
_PLACE = ("node", "boot", "segno", "sealed_at", "topic", "partition", "offset")
# The envelope of a file, for each of its rows.
FILE = StructType(
    [
        StructField("file_key", StringType()),
        *(QUARANTINE.data[name] for name in ("node", "boot", "segno", "sealed_at")),
        StructField("first_seq", EVENTS.data["seq"].dataType),
        StructField("seen_seq", EVENTS.data["seq"].dataType),
    ]
)
# The greatest sequence number of a process that the lake has.
SEEN = StructType([EVENTS.data[name] for name in IDENTITY])
_JSON = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": BAD,
    "allowSingleQuotes": "false",
}


def read_lines(spark: SparkSession, paths: list[str], files: DataFrame) -> DataFrame:
    """The contract's columns of every line, `_bad` with the text of those that do not parse, and
    `file` with what is known of the file. `files` has the columns of FILE, one row a file."""
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
    """As `read_lines`, of records of Kafka. `seen` has the columns of SEEN, one row a process of
    which the lake has sequence numbers that come again here; None: there is none."""
    text = F.make_valid_utf8(F.coalesce(F.col("value"), F.lit(b"")).cast("string"))
    whole = F.is_valid_utf8(F.col("value").cast("string"))
    read = records.select(
        F.make_valid_utf8(F.col("key").cast("string")).alias("_key"),
        F.col("at").alias("_at"),
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
        text.alias("_text"),
        # What is no text is not read, so that it comes out as bad.
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
    """One struct for both kinds of places; what one kind does not have is null."""
    types = {field.name: field.dataType for field in (*FILE.fields, *QUARANTINE.data.fields)}
    return F.struct(
        *(
            known.get(name, F.lit(None)).cast(types[name]).alias(name)
            for name in (*_PLACE, "first_seq", "seen_seq")
        )
    )


def judged(lines: DataFrame, *, late_max_us: int, early_max_us: int) -> DataFrame:
    """With `reason`: null for an event, else why the line is none."""
    known = lines.withColumns({"_needs": _needs(), "_mid_ms": mid_ms()})
    needs = F.col("_needs")
    envelope = [F.col(name).isNull() for name in ("v", "ts", "node", "boot", "seq", "k")]
    sealed_at = F.col("file.sealed_at")
    # Of a record only the node is known, and one without a key is nobody's.
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
    """The columns that an event's code demands, a bit for each; negative for an unknown code. One
    look into a constant: asking column by column which codes want it takes far more CPU."""
    masks = [_UNKNOWN] * (max(contract.KINDS) + 1)
    for kind in contract.KINDS.values():
        masks[kind.code] = sum(1 << _BITS[name] for name in kind.required)
    listed = F.split(F.lit(",".join(map(str, masks))), ",").cast("array<int>")
    return F.coalesce(F.get(listed, F.col("k").cast("int")), F.lit(_UNKNOWN))


def _absent() -> Column:
    """The columns that are null, a bit for each."""
    bits = (F.when(F.col(name).isNull(), 1 << bit).otherwise(0) for name, bit in _BITS.items())
    return reduce(lambda a, b: a.bitwiseOR(b), bits)


def _malformed() -> list[Column]:
    ms = F.call_function("div", F.col("ts"), F.lit(1000).cast("bigint"))
    mid = F.col("mid")
    return [
        # Cheaper than a pattern, and every message has one.
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


@declared(EVENTS.data)
def accepted(verdicts: DataFrame, batch: int) -> DataFrame:
    return (
        verdicts.where(F.col("reason").isNull())
        .withColumn("_in", F.lit(batch).cast("bigint"))
        .select(*EVENTS.data.names)
    )


@declared(QUARANTINE.data)
def rejected(verdicts: DataFrame) -> DataFrame:
    """Bad lines with their source. What did parse is written again, in the contract's order."""
    text = F.coalesce(F.col(BAD), F.to_json(F.struct(*contract.COLUMNS)))
    return verdicts.where(F.col("reason").isNotNull()).select(
        *(F.col(f"file.{name}").alias(name) for name in ("node", "boot", "segno", "sealed_at")),
        "reason",
        F.substring(text, 1, LINE_CHARACTERS_MAX).alias("line"),
        *(F.col(f"file.{name}").alias(name) for name in ("topic", "partition", "offset")),
    )


def per_source(events: DataFrame) -> DataFrame:
    """For each (node, boot): rows, how many of them differ, their range, gaps, the newest time."""
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


@declared(EVENTS.data)
def deduplicated(events: DataFrame) -> DataFrame:
    """Rule 3. Of rows that differ the same one is always kept, whatever their order."""
    same = Window.partitionBy(*IDENTITY).orderBy(F.xxhash64(*EVENTS.data.names))
    return (
        events.withColumn("_row", F.row_number().over(same))
        .where(F.col("_row") == 1)
        .select(*EVENTS.data.names)
    )


def _any(conditions: list[Column]) -> Column:
    """At least one holds; one about an absent column does not."""
    return reduce(lambda a, b: a | b, (F.coalesce(one, F.lit(False)) for one in conditions))
