"""Latency histograms whose buckets add up: any aggregation gives the same quantile.

Rule 1: bucket 0 has values up to one millisecond; bucket b has values above g^(b-1) and up to g^b
        milliseconds, so the error of a bucket's value is at most 1 %.
Rule 2: the quantile q of n values is the smallest bucket whose cumulative count reaches
        ceil(q * n); quantiles are integers per mille, to avoid rounding.
"""

import math
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

GROWTH = 1.02020202
QUANTILES = {"p50": 500, "p90": 900, "p95": 950, "p99": 990, "p999": 999}


def bucket_of(micros: Column) -> Column:
    """The bucket of a duration; negative ones (wrong clocks) count as zero."""
    millis = F.greatest(micros, F.lit(0)) / F.lit(1000.0)
    index = F.ceil(F.ln(millis) / F.lit(math.log(GROWTH)))
    return F.when(millis < 1.0, F.lit(0)).otherwise(index).cast("smallint")


def millis_of(bucket: Column) -> Column:
    """The value of a bucket in milliseconds."""
    return F.pow(F.lit(GROWTH), bucket.cast("double")) * F.lit(2.0 / (GROWTH + 1.0))


def quantiles(buckets: DataFrame, by: Sequence[str]) -> DataFrame:
    """From rows of (*by, bucket, n, max_us): one row per key with n, p50 … p999 and max in
    milliseconds."""
    added = buckets.groupBy(*by, "bucket").agg(
        F.sum("n").alias("n"), F.max("max_us").alias("max_us")
    )
    keys = Window.partitionBy(*by)
    upwards = keys.orderBy("bucket").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    everything = keys.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    running = added.select(
        *by,
        "bucket",
        "max_us",
        F.sum("n").over(upwards).alias("below"),
        F.sum("n").over(everything).alias("total"),
    )
    return running.groupBy(*by).agg(
        F.max("total").alias("n"),
        *(
            millis_of(F.min(F.when(_reached(thousandths), F.col("bucket")))).alias(f"{name}_ms")
            for name, thousandths in QUANTILES.items()
        ),
        (F.max("max_us") / F.lit(1000.0)).alias("max_ms"),
    )


def _reached(thousandths: int) -> Column:
    return F.col("below") * 1000 >= F.col("total") * thousandths
