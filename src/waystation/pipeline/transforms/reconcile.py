"""Compares the rows of the lake with the event counters of the nodes.

Every `node.stats` has the number of events of each code that its process has written so far.
Between two of them, the growth of a counter must equal the rows in the lake for that code.

Rule 1: a span begins with the process, or with its first `node.stats` of the date, and ends with
        its last `node.stats` of each hour. Later rows belong to the next span.
Rule 2: a line that could not be written was counted and is missing; `log.gap` reports it. So a
        difference between zero and the gap is explained.
Rule 3: a process numbers its lines without gaps, and a `log.gap` has the numbers of the lines that
        it reports. A number with neither a row nor a `log.gap` is missing.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from waystation.pipeline.schema import columns
from waystation.pipeline.transforms.output_schema import returns
from waystation.pipeline.transforms.time import date_of, hour_of, weight

NODE_STATS = 302
LOG_GAP = 303
SPAN = ("day", "node", "boot", "hour")

REL_RECONCILE = columns(
    "day date, node string, boot bigint, hour int, k smallint, "
    "counted bigint, found bigint, gap bigint, explained boolean"
)
REL_SEQUENCE = columns(
    "day date, node string, boot bigint, hour int, "
    "numbers bigint, found bigint, gap bigint, missing bigint"
)


@returns(REL_RECONCILE)
def reconcile(events: DataFrame) -> DataFrame:
    """Counter growth and rows per process, hour and code; `events` are whole dates."""
    dated = _dated(events)
    spans = _spans(dated)
    growth = spans.select(*SPAN, "start", F.explode("counters").alias("code", "after")).select(
        *SPAN,
        F.col("code").cast("smallint").alias("k"),
        (F.col("after") - F.coalesce(F.try_element_at("start", "code"), F.lit(0))).alias("counted"),
    )
    found = _placed(dated, spans).groupBy(*SPAN, "k").agg(F.sum(weight()).alias("found"))
    gaps = (
        dated.where(F.col("k") == LOG_GAP)
        .groupBy("day", "node", "boot")
        .agg(F.sum("n").alias("gap"))
    )
    return _compared(growth, found, gaps).select(*REL_RECONCILE.fieldNames())


@returns(REL_SEQUENCE)
def sequence(events: DataFrame) -> DataFrame:
    """Line numbers of each process per hour, and how many of them have no row (rule 3); `events`
    are whole dates."""
    dated = _dated(events)
    spans = _spans(dated)
    none = F.lit(0).cast("bigint")
    gap = F.sum(F.when(F.col("k") == LOG_GAP, F.col("n")))
    found = (
        _placed(dated, spans)
        .groupBy(*SPAN)
        .agg(F.count(F.lit(1)).alias("found"), F.coalesce(gap, none).alias("gap"))
    )
    return (
        spans.select(*SPAN, (F.col("seq") - F.greatest("before", none)).alias("numbers"))
        .join(found, on=[*SPAN], how="left")
        .select(
            *SPAN,
            "numbers",
            F.coalesce("found", none).alias("found"),
            F.coalesce("gap", none).alias("gap"),
        )
        .withColumn("missing", F.col("numbers") - F.col("found") - F.col("gap"))
        .select(*REL_SEQUENCE.fieldNames())
    )


def _dated(events: DataFrame) -> DataFrame:
    return events.select(
        date_of(F.col("ts")).alias("day"), "ts", "node", "boot", "seq", "k", "w", "n", "attrs"
    )


def _spans(dated: DataFrame) -> DataFrame:
    """Spans between two `node.stats` of a process: `before` and `seq` are their line numbers,
    `start` and `counters` their counters (rule 1)."""
    process = Window.partitionBy("day", "node", "boot").orderBy("seq")
    told = dated.where(F.col("k") == NODE_STATS).select(
        "day",
        "node",
        "boot",
        "seq",
        hour_of(F.col("ts")).alias("hour"),
        (date_of(F.col("boot")) < F.col("day")).alias("older"),
        _counters().alias("counters"),
    )
    marks = told.select(
        "*",
        # For a process older than the date, the first span starts with its first `node.stats`.
        (F.col("older") & F.lag("seq").over(process).isNull()).alias("opens"),
        F.coalesce(F.lead("hour").over(process) != F.col("hour"), F.lit(True)).alias("closes"),
    ).where("opens or closes")
    return (
        marks.select(
            "*",
            F.lag("seq").over(process).alias("before"),
            F.lag("counters").over(process).alias("start"),
        )
        .where("not opens")
        .withColumn("before", F.coalesce("before", F.lit(-1)))
    )


def _counters() -> Column:
    document = F.try_parse_json("attrs")
    return F.coalesce(
        F.try_variant_get(document, "$.counters", "map<string,bigint>"),
        F.create_map().cast("map<string,bigint>"),
    )


def _placed(events: DataFrame, spans: DataFrame) -> DataFrame:
    """The rows of the lake with the hour of their span; spans of a process do not overlap."""
    of_process = spans.groupBy("day", "node", "boot").agg(
        F.collect_list(F.struct("before", "seq", "hour")).alias("spans")
    )

    def holds(span: Column) -> Column:
        return (span["before"] <= F.col("seq")) & (F.col("seq") < span["seq"])

    return (
        events.join(F.broadcast(of_process), on=["day", "node", "boot"], how="inner")
        .select(
            "day",
            "node",
            "boot",
            "k",
            "w",
            "n",
            F.get(F.filter("spans", holds), 0)["hour"].alias("hour"),
        )
        .where("hour is not null")
    )


def _compared(growth: DataFrame, found: DataFrame, gaps: DataFrame) -> DataFrame:
    counted = F.coalesce("counted", F.lit(0).cast("bigint"))
    there = F.coalesce("found", F.lit(0).cast("bigint"))
    gap = F.coalesce("gap", F.lit(0).cast("bigint"))
    return (
        growth.join(found, on=[*SPAN, "k"], how="full")
        .join(F.broadcast(gaps), on=["day", "node", "boot"], how="left")
        .select(
            *SPAN,
            "k",
            counted.alias("counted"),
            there.alias("found"),
            gap.alias("gap"),
            (counted - there).between(F.lit(0), gap).alias("explained"),
        )
    )
