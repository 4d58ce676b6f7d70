"""Number of concurrent sessions, minute by minute.

A start adds one to its minute, an end subtracts one. Minutes are computed in parallel; only the
1440 rows of minutes are summed sequentially, so that part does not grow with the number of
sessions.

Rule 1: minute -1 stands for everything before the date.
Rule 2: `present` is the number at the end of a minute.
Rule 3: `peak` is the maximum within a minute, including its beginning. At the same microsecond,
        ends count before starts.
"""

import datetime as dt
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from waystation.pipeline.transforms.time import day_starts, minute_of

MINUTES = 1440


def moment(at: Column, what: Column, day: dt.date) -> Column:
    """One start or end: time, kind and minute of `day`; null if `at` is null."""
    minute = F.when(at < day_starts(day), F.lit(-1)).otherwise(minute_of(at))
    return F.when(
        at.isNotNull(), F.struct(minute.alias("minute"), at.alias("at"), what.alias("what"))
    )


def every_minute() -> Column:
    """Generates all minutes of a date."""
    return F.explode(F.sequence(F.lit(0), F.lit(MINUTES - 1)))


def concurrency(
    moments: DataFrame,
    *,
    comes: Sequence[str],
    goes: Sequence[str],
    counts: Sequence[str],
    by: Sequence[str] = (),
) -> DataFrame:
    """From rows of (*by, minute, at, what): a row per key and minute with the number of each of
    `counts`, `present` and `peak`. Minutes without changes have rows too."""
    what = F.col("what")
    change = F.when(what.isin(*comes), 1).when(what.isin(*goes), -1).otherwise(0).cast("bigint")
    changes = moments.withColumn("change", change)
    names = (*counts, "change", "rise")
    within = (
        Window.partitionBy(*by, "minute")
        .orderBy("at", "change")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    counted = (
        *(F.sum((what == name).cast("bigint")).alias(name) for name in counts),
        F.sum("change").alias("change"),
    )
    of_minutes = (
        changes.where("minute >= 0")
        .withColumn("rise", F.sum("change").over(within))
        .groupBy(*by, "minute")
        .agg(*counted, F.greatest(F.max("rise"), F.lit(0)).alias("rise"))
    )
    # Everything before the date is one minute, whose peak is not needed.
    before = (
        changes.where("minute < 0")
        .groupBy(*by, "minute")
        .agg(*counted, F.lit(0).cast("bigint").alias("rise"))
    )
    empty = (
        moments.select(*by)
        .distinct()
        .select(
            *by,
            every_minute().alias("minute"),
            *(F.lit(0).cast("bigint").alias(name) for name in names),
        )
    )
    upwards = (
        Window.partitionBy(*by)
        .orderBy("minute")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    present = F.sum("change").over(upwards)
    return (
        of_minutes.unionByName(before)
        .unionByName(empty)
        .groupBy(*by, "minute")
        .agg(*(F.sum(name).alias(name) for name in names))
        .select(
            *by,
            "minute",
            *counts,
            present.alias("present"),
            (present - F.col("change") + F.col("rise")).alias("peak"),
        )
        .where("minute >= 0")
    )
