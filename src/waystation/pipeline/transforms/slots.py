"""Load of the 4096 slots of the queue cluster: per minute, and as a weight for planning.

Queue events are totals of a slot over 10 s: `n` is the number of commands; a row without it counts
as one (or as its weight).
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from waystation.pipeline.schema import columns
from waystation.pipeline.transforms.output_schema import returns
from waystation.pipeline.transforms.time import date_of, minute_of, weight

NEW, SUB, SEND, DELIVER, ACK, GET, DELETE, EXPIRED = 100, 101, 103, 104, 105, 106, 107, 109
NOTIFY = 112
SLOT_LOAD = 130
SEND_RESULTS = ("ok", "auth", "quota", "large", "blocked")  # by code

SLOT_MINUTELY = columns(
    "day date, minute int, slot smallint, news bigint, subs bigint, "
    + ", ".join(f"sends_{name} bigint" for name in SEND_RESULTS)
    + ", delivers bigint, acks bigint, gets bigint, deletes bigint, expired bigint, "
    "notifies bigint, ops bigint, bytes bigint, queues bigint, stored_bytes bigint, "
    "stored_messages bigint"
)
SLOT_WEIGHT = columns(
    "slot smallint, ops_p95 double, mb_p95 double, ops bigint, bytes bigint, queues bigint, "
    "stored_bytes bigint, weight double"
)


@returns(SLOT_MINUTELY)
def minutely(events: DataFrame) -> DataFrame:
    """Operations per slot and minute, with the last `slot.load` of the minute."""
    told = events.where(F.col("k").between(NEW, SLOT_LOAD) & F.col("slot").isNotNull())
    stands_for = F.coalesce(F.col("n"), F.lit(1).cast("bigint")) * weight()

    def times(*codes: int, result: int | None = None) -> Column:
        wanted = F.col("k").isin(*codes)
        if result is not None:
            wanted = wanted & (F.coalesce(F.col("code"), F.lit(0)) == result)
        return F.coalesce(F.sum(F.when(wanted, stands_for)), F.lit(0).cast("bigint"))

    attrs = F.try_parse_json("attrs")
    load = F.max(
        F.when(
            F.col("k") == SLOT_LOAD,
            F.struct(
                "ts",
                "node",
                "boot",
                "seq",
                "n",
                "size",
                F.try_variant_get(attrs, "$.messages", "bigint").alias("messages"),
            ),
        )
    )
    operations = (NEW, SUB, SEND, DELIVER, ACK, GET, DELETE, NOTIFY)
    sent = (F.col("k") == SEND) & (F.coalesce(F.col("code"), F.lit(0)) == 0)
    return (
        told.groupBy(
            date_of(F.col("ts")).alias("day"), minute_of(F.col("ts")).alias("minute"), "slot"
        )
        .agg(
            times(NEW).alias("news"),
            times(SUB).alias("subs"),
            *(
                times(SEND, result=code).alias(f"sends_{name}")
                for code, name in enumerate(SEND_RESULTS)
            ),
            times(DELIVER).alias("delivers"),
            times(ACK).alias("acks"),
            times(GET).alias("gets"),
            times(DELETE).alias("deletes"),
            times(EXPIRED).alias("expired"),
            times(NOTIFY).alias("notifies"),
            times(*operations).alias("ops"),
            F.coalesce(F.sum(F.when(sent, F.col("size"))), F.lit(0).cast("bigint")).alias("bytes"),
            load.alias("load"),
        )
        .select(
            "*",
            F.col("load.n").alias("queues"),
            F.col("load.size").alias("stored_bytes"),
            F.col("load.messages").alias("stored_messages"),
        )
        .select(*SLOT_MINUTELY.fieldNames())
    )


@returns(SLOT_WEIGHT)
def weights(
    of_minutes: DataFrame,
    *,
    minutes: int,
    per_op: float = 1.0,
    per_stored_mb: float = 0.1,
    per_mb: float = 10.0,
) -> DataFrame:
    """The weight of each slot over a window of `minutes`, covered by `of_minutes`:
    per_op · p95(operations per minute) + per_stored_mb · stored MB + per_mb · p95(MB per minute).

    A minute without a row counts as zero. The p95 is the value at position ceil(0.95 · minutes)
    of all sorted minutes; slots without operations are left out.
    """
    # Only the busiest minutes matter: the p95 is the k-th largest of the minutes with rows.
    place = minutes - (minutes * 95 + 99) // 100 + 1
    last = F.max(
        F.when(
            F.col("stored_bytes").isNotNull(),
            F.struct("day", "minute", "queues", "stored_bytes"),
        )
    )

    def p95(column: str) -> Column:
        ordered = F.sort_array(F.collect_list(column), asc=False)
        return F.coalesce(F.get(ordered, place - 1), F.lit(0).cast("bigint"))

    sums = of_minutes.groupBy("slot").agg(
        p95("ops").cast("double").alias("ops_p95"),
        (p95("bytes") / F.lit(1e6)).alias("mb_p95"),
        F.sum("ops").alias("ops"),
        F.sum("bytes").alias("bytes"),
        last.alias("last"),
    )
    stored = F.coalesce(F.col("last.stored_bytes"), F.lit(0).cast("bigint"))
    return sums.select(
        "slot",
        "ops_p95",
        "mb_p95",
        "ops",
        "bytes",
        F.coalesce(F.col("last.queues"), F.lit(0).cast("bigint")).alias("queues"),
        stored.alias("stored_bytes"),
        (
            F.lit(per_op) * F.col("ops_p95")
            + F.lit(per_stored_mb) * (stored / F.lit(1e6))
            + F.lit(per_mb) * F.col("mb_p95")
        ).alias("weight"),
    )
