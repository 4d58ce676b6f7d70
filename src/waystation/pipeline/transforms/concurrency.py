"""How many were there at the same time, minute by minute.

Everybody who comes adds one to a minute, everybody who goes takes one away. These sums are made in
parallel; only the rows of minutes, 1440 a date, are added up one after the other, so the work in
one place does not grow with the number of those who come and go.

Rule 1: minute -1 stands for everything before the date: what is carried over it opens the day.
Rule 2: `present` is the number at the end of a minute.
"""

import datetime as dt
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from waystation.pipeline.transforms.time import day_starts, minute_of

MINUTES = 1440


def moment(at: Column, what: Column, day: dt.date) -> Column:
    """One coming or going: what happened in which minute of `day`; null if `at` is null."""
    minute = F.when(at < day_starts(day), F.lit(-1)).otherwise(minute_of(at))
    return F.when(at.isNotNull(), F.struct(minute.alias("minute"), what.alias("what")))


def every_minute() -> Column:
    """A generator of all minutes of a date."""
    return F.explode(F.sequence(F.lit(0), F.lit(MINUTES - 1)))


def concurrency(
    moments: DataFrame,
    *,
    comes: Sequence[str],
    goes: Sequence[str],
    counts: Sequence[str],
    by: Sequence[str] = (),
) -> DataFrame:
    """From rows of (*by, minute, what): a row for each key and minute with each of `counts`, how
    often it happened, and `present`. Minutes in which nothing happened have rows as well."""
    what = F.col("what")
    change = F.when(what.isin(*comes), 1).when(what.isin(*goes), -1).otherwise(0).cast("bigint")
    names = (*counts, "change")
    sums = moments.groupBy(*by, "minute").agg(
        *(F.sum((what == name).cast("bigint")).alias(name) for name in counts),
        F.sum(change).alias("change"),
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
    return (
        sums.unionByName(empty)
        .groupBy(*by, "minute")
        .agg(*(F.sum(name).alias(name) for name in names))
        .select(*by, "minute", *counts, F.sum("change").over(upwards).alias("present"))
        .where("minute >= 0")
    )
