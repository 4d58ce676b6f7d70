"""Connections of user agents: start and end, concurrency, and time between connections.

Rule 1: a connection is (node, boot, cid). Its row is in the date of its end. The closing event has
        the duration, so nothing is joined across dates.
Rule 2: a connection that is open at the end of a date has a row of status `open` there; the next
        date starts with those rows. After `OPEN_MAX_DAYS` open connections are dropped.
Rule 3: a connection that is open when its node restarts has `crashed`, at the restart.
"""

import datetime as dt

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from waystation.pipeline.schema import columns
from waystation.pipeline.transforms.concurrency import concurrency, moment
from waystation.pipeline.transforms.output_schema import returns
from waystation.pipeline.transforms.time import DAY_US, date_of, day_starts, hour_of

OPEN, HELLO, HELLO_REJECT, PING, STORAGE_CHECK, CLOSE = 20, 21, 22, 26, 27, 29
DISPLACED, DROP_USER, UNACKED_STORED, UNACKED_DROPPED = 30, 31, 32, 33
OPEN_MAX_DAYS = 31

CONN_SESSIONS = columns(
    "day date, node string, boot bigint, cid bigint, uah bigint, iph bigint, "
    "opened_at bigint, hello_at bigint, ended_at bigint, dur bigint, code int, status string, "
    "new_uaid boolean, os string, browser string, away_us bigint"
)
CONN_MINUTELY = columns(
    "day date, minute int, opened bigint, hellos bigint, closed bigint, crashed bigint, "
    "present bigint, peak bigint"
)
CONN_HOURLY = columns(
    "day date, hour int, node string, hellos bigint, rejects bigint, pings_excessive bigint, "
    "storage_checks bigint, messages_read bigint, bytes_read bigint, unacked_stored bigint, "
    "unacked_dropped bigint, displaced bigint, dropped_users bigint"
)


@returns(CONN_SESSIONS)
def sessions(events: DataFrame, still_open: DataFrame, day: dt.date) -> DataFrame:
    """Connections that ended on `day` or were open at its end.

    `events` are those of `day`; `still_open` are the rows of status `open` of the date before.
    """
    key = ("node", "boot", "cid")
    told = events.where(F.col("k").isin(OPEN, HELLO, CLOSE) & F.col("cid").isNotNull())
    attrs = F.try_parse_json("attrs")
    hello = F.min(
        F.when(
            F.col("k") == HELLO,
            F.struct(
                F.col("ts"),
                F.col("seq"),
                F.col("uah"),
                F.col("flag"),
                F.try_variant_get(attrs, "$.os", "string").alias("os"),
                F.try_variant_get(attrs, "$.browser", "string").alias("browser"),
            ),
        )
    )
    close = F.min(
        F.when(
            F.col("k") == CLOSE, F.struct(F.col("ts"), F.col("seq"), F.col("dur"), F.col("code"))
        )
    )
    today = told.groupBy(*key).agg(
        F.min(F.when(F.col("k") == OPEN, F.col("ts"))).alias("began"),
        F.max(F.when(F.col("k") == OPEN, F.col("iph"))).alias("iph"),
        F.max("uah").alias("uah"),
        hello.alias("hello"),
        close.alias("close"),
    )
    before = still_open.select(
        *key,
        *(
            F.col(name).alias(f"old_{name}")
            for name in ("uah", "iph", "opened_at", "hello_at", "new_uaid", "os", "browser")
        ),
    )
    starts = _starts(events)
    joined = (
        today.join(before, on=[*key], how="full")
        .join(F.broadcast(starts), on="node", how="left")
        .select(
            "*",
            F.array_min(F.filter("boots", lambda boot: boot > F.col("boot"))).alias("next_boot"),
        )
    )
    closed_at = F.col("close.ts")
    ended_at = F.coalesce(closed_at, F.col("next_boot"))
    told_start = F.least(F.col("began"), F.col("hello.ts"))
    opened_at = F.coalesce(
        F.col("old_opened_at"), told_start, closed_at - F.col("close.dur"), ended_at
    )
    rows = joined.select(
        F.lit(day).alias("day"),
        *key,
        F.coalesce("old_uah", "uah").alias("uah"),
        F.coalesce("old_iph", "iph").alias("iph"),
        opened_at.alias("opened_at"),
        F.coalesce("old_hello_at", "hello.ts").alias("hello_at"),
        ended_at.alias("ended_at"),
        F.coalesce(F.col("close.dur"), ended_at - opened_at).alias("dur"),
        F.col("close.code").alias("code"),
        F.when(closed_at.isNotNull(), "closed")
        .when(F.col("next_boot").isNotNull(), "crashed")
        .otherwise("open")
        .alias("status"),
        F.coalesce("old_new_uaid", "hello.flag").alias("new_uaid"),
        F.coalesce("old_os", "hello.os").alias("os"),
        F.coalesce("old_browser", "hello.browser").alias("browser"),
    )
    forgotten = (F.col("status") == "open") & (
        F.col("opened_at") < day_starts(day) - OPEN_MAX_DAYS * DAY_US
    )
    return rows.where(~forgotten).select(*CONN_SESSIONS.fieldNames()[:-1], _away().alias("away_us"))


def _starts(events: DataFrame) -> DataFrame:
    """Start times of the nodes, from the events of the date."""
    return events.groupBy("node").agg(F.collect_set("boot").alias("boots"))


def _away() -> Column:
    """Time since the user agent's previous connection on this date, if it had one."""
    visits = Window.partitionBy("uah").orderBy("opened_at", "node", "boot", "cid")
    previous_end = F.lag("ended_at").over(visits)
    return F.when(
        F.col("uah").isNotNull() & (F.col("opened_at") >= previous_end),
        F.col("opened_at") - previous_end,
    )


@returns(CONN_MINUTELY)
def minutely(of_sessions: DataFrame, day: dt.date) -> DataFrame:
    """Number of connections per minute of `day`: at its end, and the peak."""
    arrival = F.when(F.col("opened_at") < day_starts(day), "was_there").otherwise("opened")
    moments = of_sessions.select(
        F.explode(
            F.array(
                moment(F.col("opened_at"), arrival, day),
                moment(F.col("hello_at"), F.lit("hellos"), day),
                moment(F.col("ended_at"), F.col("status"), day),
            )
        ).alias("moment")
    ).where("moment is not null")
    return concurrency(
        moments.select("moment.*"),
        comes=("opened", "was_there"),
        goes=("closed", "crashed"),
        counts=("opened", "hellos", "closed", "crashed"),
    ).select(F.lit(day).alias("day"), *CONN_MINUTELY.fieldNames()[1:])


@returns(CONN_HOURLY)
def hourly(events: DataFrame) -> DataFrame:
    """Work of the nodes for their connections, per hour."""

    def times(code: int) -> Column:
        return F.sum((F.col("k") == code).cast("bigint"))

    def total(code: int, column: str) -> Column:
        return F.coalesce(F.sum(F.when(F.col("k") == code, F.col(column))), F.lit(0).cast("bigint"))

    too_often = (F.col("k") == PING) & F.col("flag")
    return (
        events.where(F.col("k").between(OPEN, UNACKED_DROPPED))
        .groupBy(date_of(F.col("ts")).alias("day"), hour_of(F.col("ts")).alias("hour"), "node")
        .agg(
            times(HELLO).alias("hellos"),
            times(HELLO_REJECT).alias("rejects"),
            F.sum(F.coalesce(too_often, F.lit(False)).cast("bigint")).alias("pings_excessive"),
            times(STORAGE_CHECK).alias("storage_checks"),
            total(STORAGE_CHECK, "n").alias("messages_read"),
            total(STORAGE_CHECK, "size").alias("bytes_read"),
            total(UNACKED_STORED, "n").alias("unacked_stored"),
            total(UNACKED_DROPPED, "n").alias("unacked_dropped"),
            times(DISPLACED).alias("displaced"),
            times(DROP_USER).alias("dropped_users"),
        )
        .select(*CONN_HOURLY.fieldNames())
    )
