"""Converts times of events (microseconds since the epoch) to dates, hours and minutes."""

import datetime as dt

from pyspark.sql import Column
from pyspark.sql import functions as F

MINUTE_US = 60_000_000
HOUR_US = 3_600_000_000
DAY_US = 86_400_000_000


def date_of(micros: Column) -> Column:
    """In UTC, which is the session's time zone."""
    return F.to_date(F.timestamp_micros(micros))


def hour_of(micros: Column) -> Column:
    """0 to 23."""
    return F.floor(F.pmod(micros, F.lit(DAY_US)) / HOUR_US).cast("int")


def minute_of(micros: Column) -> Column:
    """0 to 1439, within the date."""
    return F.floor(F.pmod(micros, F.lit(DAY_US)) / MINUTE_US).cast("int")


def day_starts(day: dt.date) -> int:
    """The first microsecond of a date."""
    return (day - dt.date(1970, 1, 1)).days * DAY_US


def weight() -> Column:
    """The number of events that a row represents."""
    return F.coalesce(F.col("w"), F.lit(1)).cast("bigint")
