"""Whether the lake holds what the nodes say they wrote.

Every `node.stats` carries how many events of each code its process gave a line, up to that line.
So between two of them, the growth of a counter must be what the lake holds for that code.

Rule 1: what is compared begins with the process, or with its first `node.stats` of the date, and
        ends with its last `node.stats` of each hour. What comes after the last one waits.
Rule 2: a line that the disk refused was counted and is missing; `log.gap` tells of it. So a
        difference is explained as long as it lies between nothing and the gap.
"""

import datetime as dt

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from waystation.pipeline.schema import columns
from waystation.pipeline.transforms.declared import declared
from waystation.pipeline.transforms.time import day_starts, hour_of, weight

NODE_STATS = 302
LOG_GAP = 303

REL_RECONCILE = columns(
    "day date, node string, boot bigint, hour int, k smallint, "
    "counted bigint, found bigint, gap bigint, explained boolean"
)


@declared(REL_RECONCILE)
def reconcile(events: DataFrame, day: dt.date) -> DataFrame:
    """Counter growth against rows, for each process, hour and code. `events` are those of `day`."""
    process = Window.partitionBy("node", "boot").orderBy("seq")
    told = events.where(F.col("k") == NODE_STATS).select(
        "node", "boot", "seq", hour_of(F.col("ts")).alias("hour"), "attrs"
    )
    last = told.groupBy("node", "boot", "hour").agg(F.max("seq").alias("seq"))
    # A process that lived before this date begins with its first word of the date.
    first = told.groupBy("node", "boot").agg(F.min("seq").alias("seq"))
    older = first.where(F.col("boot") < day_starts(day)).select(
        "node", "boot", F.lit(-1).alias("hour"), "seq"
    )
    marks = last.unionByName(older).groupBy("node", "boot", "seq").agg(F.max("hour").alias("hour"))
    spans = (
        marks.select("*", F.lag("seq").over(process).alias("before"))
        # The first mark of an older process only opens the next span.
        .where((F.col("before").isNotNull()) | (F.col("boot") >= day_starts(day)))
        .select("node", "boot", "hour", "seq", F.coalesce("before", F.lit(-1)).alias("before"))
    )
    counters = told.select("node", "boot", "seq", _counters().alias("counters"))
    at_end = counters.withColumnRenamed("counters", "after")
    at_start = counters.select(
        "node", "boot", F.col("seq").alias("before"), F.col("counters").alias("start")
    )
    growth = (
        spans.join(at_end, on=["node", "boot", "seq"], how="inner")
        .join(at_start, on=["node", "boot", "before"], how="left")
        .select("node", "boot", "hour", "start", F.explode("after").alias("k", "after"))
        .select(
            "node",
            "boot",
            "hour",
            F.col("k").cast("smallint").alias("k"),
            (F.col("after") - F.coalesce(F.try_element_at("start", "k"), F.lit(0))).alias(
                "counted"
            ),
        )
    )
    gaps = events.where(F.col("k") == LOG_GAP).groupBy("node", "boot").agg(F.sum("n").alias("gap"))
    return _compared(growth, _found(events, spans), gaps).select(
        F.lit(day).alias("day"), *REL_RECONCILE.fieldNames()[1:]
    )


def _counters() -> Column:
    document = F.try_parse_json("attrs")
    return F.coalesce(
        F.try_variant_get(document, "$.counters", "map<string,bigint>"),
        F.create_map().cast("map<string,bigint>"),
    )


def _found(events: DataFrame, spans: DataFrame) -> DataFrame:
    """What the lake holds in each span; spans of a process do not overlap."""
    of_process = spans.groupBy("node", "boot").agg(
        F.collect_list(F.struct("before", "seq", "hour")).alias("spans")
    )

    def holds(span: Column) -> Column:
        return (span["before"] <= F.col("seq")) & (F.col("seq") < span["seq"])

    return (
        events.join(F.broadcast(of_process), on=["node", "boot"], how="inner")
        .select("node", "boot", "k", "w", F.get(F.filter("spans", holds), 0)["hour"].alias("hour"))
        .where("hour is not null")
        .groupBy("node", "boot", "hour", "k")
        .agg(F.sum(weight()).alias("found"))
    )


def _compared(growth: DataFrame, found: DataFrame, gaps: DataFrame) -> DataFrame:
    counted = F.coalesce("counted", F.lit(0).cast("bigint"))
    there = F.coalesce("found", F.lit(0).cast("bigint"))
    gap = F.coalesce("gap", F.lit(0).cast("bigint"))
    return (
        growth.join(found, on=["node", "boot", "hour", "k"], how="full")
        .join(F.broadcast(gaps), on=["node", "boot"], how="left")
        .select(
            "node",
            "boot",
            "hour",
            "k",
            counted.alias("counted"),
            there.alias("found"),
            gap.alias("gap"),
            (counted - there).between(F.lit(0), gap).alias("explained"),
        )
    )
