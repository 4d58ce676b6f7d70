"""Usage of the platform: daily counts, and sketches of distinct ids.

Counts of dates add up. Distinct user agents, endpoints and senders do not, so each date has a theta
sketch of them, and a week or a month is the union of its dates. A sketch is exact up to 4096
distinct values; above, the error is about 2 %.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from waystation.pipeline.schema import columns
from waystation.pipeline.transforms.output_schema import returns
from waystation.pipeline.transforms.time import date_of, weight

SKETCH_LOG_ENTRIES = 12
WINDOWS_DAYS = (1, 7, 30)

USAGE_DAILY = columns("day date, what string, detail string, n bigint, bytes bigint")
USAGE_SKETCHES = columns("day date, what string, sketch binary")
USAGE_WINDOWS = columns("days int, what string, distinct bigint")

_COUNTED = {
    0: "notifications",
    1: "stored",
    2: "fetched",
    8: "acked",
    21: "hellos",
    23: "subscribes",
    24: "unsubscribes",
    40: "requests",
    70: "registrations",
    72: "registrations_gone",
    73: "bridge_subscribes",
    74: "bridge_unsubscribes",
}


def _hello(name: str) -> Column:
    return F.try_variant_get(F.try_parse_json("attrs"), f"$.{name}", "string")


@returns(USAGE_DAILY)
def daily(events: DataFrame) -> DataFrame:
    """Counts by detail: status of requests, platform of hellos, networks."""
    what = F.element_at(
        F.create_map(*(F.lit(part) for pair in _COUNTED.items() for part in pair)),
        F.col("k").cast("int"),
    )
    detail = (
        F.when(F.col("k") == 40, F.concat_ws(" ", F.col("code").cast("string"), _errno()))
        .when(F.col("k") == 21, F.concat_ws(" ", _hello("os"), _hello("browser")))
        .when(F.col("k").isin(23, 24), F.col("code").cast("string"))
        .when(F.col("k").isin(0, 70, 72, 73, 74), F.col("via"))
    )
    return (
        events.where(F.col("k").isin(*_COUNTED))
        .groupBy(date_of(F.col("ts")).alias("day"), what.alias("what"), detail.alias("detail"))
        .agg(
            F.sum(weight()).alias("n"),
            F.coalesce(F.sum(F.col("size") * weight()), F.lit(0).cast("bigint")).alias("bytes"),
        )
        .select(*USAGE_DAILY.fieldNames())
    )


def _errno() -> Column:
    return F.when(F.col("errno") != 0, F.concat(F.lit("errno "), F.col("errno").cast("string")))


@returns(USAGE_SKETCHES)
def sketches(events: DataFrame) -> DataFrame:
    """Sketches of a date: connected and reached user agents, used endpoints and senders."""
    k = F.col("k")
    seen = F.explode(
        F.array(
            *(
                F.when(
                    condition & F.col(column).isNotNull(),
                    F.struct(F.lit(what).alias("what"), F.col(column).alias("value")),
                )
                for what, column, condition in (
                    ("user_agents", "uah", k == 21),
                    ("receivers", "uah", k == 8),
                    ("recipients", "uah", k == 0),
                    ("endpoints", "chh", k == 0),
                    ("senders", "app", k == 0),
                )
            )
        )
    )
    return (
        events.where(k.isin(0, 8, 21))
        .select(date_of(F.col("ts")).alias("day"), seen.alias("seen"))
        .where("seen is not null")
        .groupBy("day", "seen.what")
        .agg(F.theta_sketch_agg("seen.value", SKETCH_LOG_ENTRIES).alias("sketch"))
        .select(*USAGE_SKETCHES.fieldNames())
    )


@returns(USAGE_WINDOWS)
def windows(of_days: DataFrame) -> DataFrame:
    """Distinct values of the last 1, 7 and 30 dates up to the newest one."""
    newest = of_days.agg(F.max("day").alias("newest"))
    aged = of_days.crossJoin(F.broadcast(newest)).select(
        "what", "sketch", F.date_diff("newest", "day").alias("age")
    )
    inside = F.explode(
        F.filter(F.array(*(F.lit(days) for days in WINDOWS_DAYS)), lambda days: F.col("age") < days)
    )
    united = F.theta_union_agg("sketch", SKETCH_LOG_ENTRIES)
    return (
        aged.select("what", "sketch", inside.alias("days"))
        .groupBy("days", "what")
        .agg(F.theta_sketch_estimate(united).cast("bigint").alias("distinct"))
        .select(*USAGE_WINDOWS.fieldNames())
    )
