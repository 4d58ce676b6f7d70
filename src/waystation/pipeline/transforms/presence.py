"""Sessions in parties: durations, delivery totals, concurrency.

Rule 1: a session is (party, sess). Its row is in the date of its leave, which has its duration and
        totals. A session without a leave has a row of status `open` in each date; the next date
        starts with those rows.
Rule 2: a session has `vanished` if the process that held it ended more than its TTL and
        `VANISH_GRACE_S` ago without a resume elsewhere. A process ends with its `node.stop`, with
        the next start of its node, or after `SILENCE_S` without events: it writes totals every
        10 s.
Rule 3: a session's numbers balance: out = acked + dropped + superseded + outstanding, outstanding
        is not negative, and a leave is after its start.
"""

import datetime as dt

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from waystation.pipeline.schema import columns
from waystation.pipeline.transforms.concurrency import concurrency, moment
from waystation.pipeline.transforms.histogram import bucket_of
from waystation.pipeline.transforms.output_schema import returns
from waystation.pipeline.transforms.time import date_of, day_starts, hour_of, weight

STARTED, LEFT, DETACHED, RESUMED, MOVED = 200, 201, 202, 203, 204
SENT, RETRIED, ACKED, TOTALS, DROPPED, REFUSED = 205, 206, 207, 208, 209, 210
NODE_STOP = 301
TTL_DEFAULT_MS = 120_000
VANISH_GRACE_S = 70
SILENCE_S = 180
CLASSES = ((1, "1"), (4, "2-4"), (16, "5-16"), (64, "17-64"))
CLASS_LARGEST = "65+"

PARTY_SESSIONS = columns(
    "day date, party bigint, sess bigint, cli bigint, node string, boot bigint, "
    "started_at bigint, ended_at bigint, dur bigint, code int, status string, ttl_ms bigint, "
    "size int, detaches bigint, resumes bigint, away_us bigint, redelivered bigint, "
    "outgoing bigint, acked bigint, retried bigint, dropped bigint, superseded bigint, "
    "outstanding bigint, start_seq bigint, leave_seq bigint, starts bigint, leaves bigint, "
    "balanced boolean, held_at bigint, holder_stopped_at bigint"
)
PARTY_MINUTELY = columns(
    "day date, minute int, class string, joined bigint, left bigint, vanished bigint, "
    "present bigint, peak bigint, peak_of_all bigint"
)
PARTY_HOURLY = columns(
    "day date, hour int, node string, sent bigint, recipients bigint, outgoing bigint, "
    "acked bigint, retried bigint, dropped bigint, superseded bigint, redelivered bigint, "
    "refused bigint, acks_again bigint"
)
PARTY_LATENCY = columns("day date, hour int, bucket smallint, n bigint, max_us bigint")


# Attributes of starts, leaves and totals; missing ones are null.
_SAID = ", ".join(
    f"{name} bigint"
    for name in (
        "seq", "ttl_ms", "out", "acked", "retried", "dropped", "superseded", "redelivered",
    )
)  # fmt: skip


def _when(code: int, column: Column) -> Column:
    return F.when(F.col("k") == code, column)


@returns(PARTY_SESSIONS)
def sessions(events: DataFrame, still_open: DataFrame, day: dt.date, now_us: int) -> DataFrame:
    """Sessions that ended on `day` or were open at its end, which is `now_us` at the latest.

    `events` are those of `day`; `still_open` the rows of status `open` of the date before.
    """
    key = ("party", "sess")
    told = events.where(F.col("k").between(STARTED, MOVED) & F.col("sess").isNotNull()).select(
        *key, "ts", "node", "boot", "seq", "k", "cli", "code", "dur", "n",
        F.from_json("attrs", _SAID).alias("said"),
    )  # fmt: skip
    order = ("ts", "node", "boot", "seq")
    tale = F.struct(*order, "cli", "dur", "code", "said")
    today = told.groupBy(*key).agg(
        F.min(_when(STARTED, tale)).alias("start"),
        F.min(_when(LEFT, tale)).alias("leave"),
        # The holder is the process of the last event; the holder also writes a leave.
        F.max(F.struct(*order)).alias("holder"),
        F.min("ts").alias("first_at"),
        F.max(_when(STARTED, F.col("n"))).alias("size"),
        _count(STARTED).alias("starts"),
        _count(LEFT).alias("leaves"),
        _count(DETACHED).alias("detaches"),
        _count(RESUMED).alias("resumes"),
        F.coalesce(F.sum(_when(RESUMED, F.col("dur"))), _zero()).alias("away_us"),
        F.coalesce(F.sum(_when(RESUMED, F.col("n"))), _zero()).alias("redelivered"),
    )
    carried = (
        "cli", "node", "boot", "started_at", "ttl_ms", "size", "detaches", "resumes", "away_us",
        "redelivered", "start_seq", "starts", "leaves", "held_at", "holder_stopped_at",
    )  # fmt: skip
    before = still_open.select(*key, *(F.col(name).alias(f"old_{name}") for name in carried))
    joined = today.join(before, on=[*key], how="full").select(
        *key,
        "start",
        "leave",
        "old_held_at",
        # Of the process at that time; another one may hold the session now.
        F.when(F.col("holder").isNull(), F.col("old_holder_stopped_at")).alias("old_stopped_at"),
        F.coalesce("old_cli", "start.cli", "leave.cli").alias("cli"),
        F.coalesce("holder.node", "old_node").alias("node"),
        F.coalesce("holder.boot", "old_boot").alias("boot"),
        F.coalesce(
            "old_started_at", "start.ts", F.col("leave.ts") - F.col("leave.dur"), "first_at"
        ).alias("started_at"),
        F.coalesce("old_ttl_ms", "start.said.ttl_ms").alias("ttl_ms"),
        F.greatest("old_size", F.col("size").cast("int")).alias("size"),
        F.coalesce("old_start_seq", "start.said.seq").alias("start_seq"),
        *(_sum(name).alias(name) for name in ("starts", "leaves", "detaches", "resumes")),
        *(_sum(name).alias(name) for name in ("away_us", "redelivered")),
    )
    held = (
        joined.join(F.broadcast(_processes(events)), on=["node", "boot"], how="left")
        .join(F.broadcast(_newest_boots(events)), on="node", how="left")
        .select(
            "*",
            F.coalesce("last_at", "old_held_at").alias("held_at"),
            F.coalesce("stopped_at", "old_stopped_at").alias("holder_stopped_at"),
        )
    )
    horizon = min(now_us, day_starts(day + dt.timedelta(days=1)))
    return _judged(held, horizon).select(F.lit(day).alias("day"), *PARTY_SESSIONS.fieldNames()[1:])


def _judged(held: DataFrame, horizon_us: int) -> DataFrame:
    """Status of each session, as known at `horizon_us`."""
    replaced = F.coalesce(F.col("boot") < F.col("newest_boot"), F.lit(False))
    silent = F.col("held_at") < horizon_us - SILENCE_S * 1_000_000
    holder_ended_at = F.coalesce("holder_stopped_at", F.when(replaced | silent, F.col("held_at")))
    ttl_us = F.coalesce(F.col("ttl_ms"), F.lit(TTL_DEFAULT_MS)) * 1000
    too_long_ago = holder_ended_at + ttl_us + VANISH_GRACE_S * 1_000_000 < horizon_us
    vanished = F.col("leave").isNull() & F.coalesce(too_long_ago, F.lit(False))
    ended_at = F.coalesce(F.col("leave.ts"), F.when(vanished, holder_ended_at))
    outstanding = F.col("leave.said.out") - (
        F.col("leave.said.acked") + F.col("leave.said.dropped") + F.col("leave.said.superseded")
    )
    in_order = F.coalesce(F.col("leave.said.seq") > F.col("start_seq"), F.lit(True))
    adds_up = F.coalesce(outstanding >= 0, F.lit(False))
    balanced = adds_up & in_order & (F.col("leaves") == 1) & (F.col("starts") <= 1)
    derived = {
        "ended_at": ended_at,
        "dur": F.coalesce(F.col("leave.dur"), ended_at - F.col("started_at")),
        "code": F.col("leave.code"),
        "status": F.when(F.col("leave").isNotNull(), "left")
        .when(vanished, "vanished")
        .otherwise("open"),
        "outgoing": F.col("leave.said.out"),
        "acked": F.col("leave.said.acked"),
        "retried": F.col("leave.said.retried"),
        "dropped": F.col("leave.said.dropped"),
        "superseded": F.col("leave.said.superseded"),
        "outstanding": outstanding,
        "leave_seq": F.col("leave.said.seq"),
        "balanced": F.when(F.col("leave").isNotNull(), balanced),
    }
    return held.select(
        *(
            derived[name].alias(name) if name in derived else F.col(name)
            for name in PARTY_SESSIONS.fieldNames()[1:]
        )
    )


def _processes(events: DataFrame) -> DataFrame:
    """Last event and end of each process; (node, boot) is unique."""
    return events.groupBy("node", "boot").agg(
        F.max("ts").alias("last_at"), F.min(_when(NODE_STOP, F.col("ts"))).alias("stopped_at")
    )


def _newest_boots(events: DataFrame) -> DataFrame:
    return events.groupBy("node").agg(F.max("boot").alias("newest_boot"))


@returns(PARTY_MINUTELY)
def minutely(of_sessions: DataFrame, day: dt.date) -> DataFrame:
    """Sessions per minute of `day` and size class of the party: at its end, and the peak;
    `peak_of_all` is the peak of all classes together, on each row of the minute."""
    largest = of_sessions.groupBy("party").agg(F.max("size").alias("largest"))
    arrival = F.when(F.col("started_at") < day_starts(day), "was_there").otherwise("joined")
    moments = (
        of_sessions.join(largest, on="party", how="inner")
        .select(
            _class_of(F.coalesce(F.col("largest"), F.lit(1))).alias("class"),
            F.explode(
                F.array(
                    moment(F.col("started_at"), arrival, day),
                    moment(F.col("ended_at"), F.col("status"), day),
                )
            ).alias("moment"),
        )
        .where("moment is not null")
        .select("class", "moment.*")
    )
    comes, goes = ("joined", "was_there"), ("left", "vanished")
    of_all = concurrency(moments.drop("class"), comes=comes, goes=goes, counts=()).select(
        "minute", F.col("peak").alias("peak_of_all")
    )
    return (
        concurrency(
            moments,
            comes=comes,
            goes=goes,
            counts=("joined", "left", "vanished"),
            by=("class",),
        )
        .join(F.broadcast(of_all), on="minute", how="inner")
        .select(F.lit(day).alias("day"), *PARTY_MINUTELY.fieldNames()[1:])
    )


def _class_of(size: Column) -> Column:
    chosen = F.lit(CLASS_LARGEST)
    for most, name in reversed(CLASSES):
        chosen = F.when(size <= most, name).otherwise(chosen)
    return chosen


@returns(PARTY_HOURLY)
def hourly(events: DataFrame) -> DataFrame:
    """Deliveries per node and hour: exact, from running totals."""
    at = (date_of(F.col("ts")).alias("day"), hour_of(F.col("ts")).alias("hour"))
    counted = events.where(F.col("k").isin(SENT, ACKED, REFUSED))
    said = counted.groupBy(*at, "node").agg(
        F.coalesce(F.sum(_when(SENT, weight())), _zero()).alias("sent"),
        F.coalesce(F.sum(_when(SENT, F.col("n") * weight())), _zero()).alias("recipients"),
        F.coalesce(F.sum(_when(REFUSED, weight())), _zero()).alias("refused"),
        (
            _count(ACKED)
            - F.count_distinct(
                _when(ACKED, F.col("party")),
                _when(ACKED, F.col("sess")),
                _when(ACKED, F.col("msg")),
            )
        ).alias("acks_again"),
    )
    return said.join(_growth(events), on=["day", "hour", "node"], how="full").select(
        *(
            F.col(name)
            if name in ("day", "hour", "node")
            else F.coalesce(name, _zero()).alias(name)
            for name in PARTY_HOURLY.fieldNames()
        ),
    )


_TOTALS = {
    "outgoing": "out",
    "acked": "acked",
    "retried": "retried",
    "dropped": "dropped",
    "superseded": "superseded",
    "redelivered": "redelivered",
}


def _growth(events: DataFrame) -> DataFrame:
    """Growth of totals per hour. Totals count from the start of their process; for a process older
    than the date, growth before its first event of the date is not counted."""
    totals = F.struct("seq", F.from_json("attrs", _SAID).alias("said"))
    of_hours = (
        events.where(F.col("k") == TOTALS)
        .select(
            date_of(F.col("ts")).alias("day"),
            hour_of(F.col("ts")).alias("hour"),
            "node",
            "boot",
            totals.alias("totals"),
        )
        .groupBy("day", "hour", "node", "boot")
        .agg(F.max("totals").alias("last"), F.min("totals").alias("first"))
    )
    process = Window.partitionBy("day", "node", "boot").orderBy("hour")
    born_today = date_of(F.col("boot")) >= F.col("day")
    start = F.coalesce(F.lag("last").over(process), F.when(~born_today, F.col("first")))
    return (
        of_hours.select("day", "hour", "node", "last", start.alias("start"))
        .groupBy("day", "hour", "node")
        .agg(
            *(
                F.sum(
                    F.col(f"last.said.{name}") - F.coalesce(F.col(f"start.said.{name}"), _zero())
                ).alias(mine)
                for mine, name in _TOTALS.items()
            )
        )
    )


@returns(PARTY_LATENCY)
def latency(events: DataFrame) -> DataFrame:
    """Time from first send to ack, in buckets; acks are sampled by weight."""
    return (
        events.where((F.col("k") == ACKED) & F.col("dur").isNotNull())
        .groupBy(
            date_of(F.col("ts")).alias("day"),
            hour_of(F.col("ts")).alias("hour"),
            bucket_of(F.col("dur")).alias("bucket"),
        )
        .agg(
            F.sum(weight()).alias("n"),
            F.max(F.greatest(F.col("dur"), F.lit(0))).alias("max_us"),
        )
        .select(*PARTY_LATENCY.fieldNames())
    )


def _zero() -> Column:
    return F.lit(0).cast("bigint")


def _count(code: int) -> Column:
    return F.sum((F.col("k") == code).cast("bigint"))


def _sum(name: str) -> Column:
    """Carried-over value plus the value of the date."""
    return F.coalesce(F.col(name), _zero()) + F.coalesce(F.col(f"old_{name}"), _zero())
