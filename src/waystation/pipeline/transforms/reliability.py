"""Outcome, milestones, latency and loss of every message.

The input is the frame `messages`: one row per message, as written by `fold`.

Rule 1: `now` comes from the events, never from a wall clock.
Rule 2: unknown values do not count as loss: without `push.received` the tracking id gives the time,
        and the TTL counts as the maximum.
Rule 3: a message that was stored or sent and never acked expires at its deadline. It is lost only
        if a required event is missing: it was received or relayed without any later event.
Rule 4: a message with milestones that no legal transitions reach is a gap: an event was lost, or a
        node has a bug. It still has an outcome.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from waystation.pipeline.schema import columns, mid_ms
from waystation.pipeline.transforms.histogram import bucket_of
from waystation.pipeline.transforms.output_schema import returns
from waystation.pipeline.transforms.time import date_of, hour_of, weight
from waystation.telemetry.contract import (
    ACCEPTED,
    BRIDGE_TRANSMITTED,
    DECRYPTION_ERROR,
    DELIVERED,
    ERRORED,
    EXPIRED,
    KINDS,
    MILESTONES,
    NOT_DELIVERED,
    RECEIVED,
    RETRIEVED,
    STORED,
    SUPERSEDED,
    TRANSITIONS,
    TRANSMITTED,
    TTL_MAX_S,
    WITHDRAWN,
)

GRACE_S = 900
BRIDGE_PATH = 2
LOG_GAP = 303

OUTCOMES = (
    "delivered",
    "bridged",
    "rejected",
    "errored",
    "superseded",
    "withdrawn",
    "expired",
    "in_flight",
    "lost",
)
MILESTONE_NAMES = tuple(KINDS[code].name.removeprefix("push.") for code in MILESTONES)
MEASURES = ("e2e", "accept", "store", "route", "bridge")

OUTCOME = columns(
    "mid string, day date, hour int, app bigint, via smallint, path tinyint, outcome string, "
    "gap boolean, seen int, state int, last_at bigint, deadline bigint, size bigint, "
    + ", ".join(f"{measure} bigint" for measure in MEASURES)
)
REL_HOURLY = columns(
    "day date, hour int, app bigint, via smallint, path tinyint, outcome string, "
    "messages bigint, bytes bigint, gap bigint, next_deadline bigint, "
    + ", ".join(f"reached_{name} bigint" for name in MILESTONE_NAMES)
)
REL_LATENCY = columns(
    "day date, hour int, app bigint, path tinyint, measure string, bucket smallint, "
    "n bigint, clamped bigint, max_us bigint"
)
REL_LOSS = columns(
    "day date, hour int, mid string, app bigint, via smallint, path tinyint, state int, "
    "last_at bigint, deadline bigint, gap boolean, node string, peer string"
)
REL_NODES = columns("day date, hour int, node string, k smallint, n bigint, events bigint")
REL_REPEATS = columns("day date, hour int, k smallint, n bigint, messages bigint, repeated bigint")


def legal_masks() -> frozenset[int]:
    """Every set of milestones that legal transitions can reach."""
    todo: list[tuple[int, int]] = [(1 << RECEIVED, RECEIVED)]
    reached = set(todo)
    while todo:
        mask, state = todo.pop()
        for following in TRANSITIONS.get(state, ()):
            step = (mask | 1 << following, following)
            if step not in reached:
                reached.add(step)
                todo.append(step)
    return frozenset(mask for mask, _ in reached)


LEGAL_MASKS = legal_masks()


def has(*codes: int) -> Column:
    """Whether the message has passed one of these milestones."""
    mask = sum(1 << code for code in codes)
    return F.col("seen").bitwiseAND(F.lit(mask)) != 0


@returns(OUTCOME)
def outcomes(messages: DataFrame, now_us: int) -> DataFrame:
    """One row per message: outcome at `now_us`, gap, latencies."""
    born = mid_ms() * 1000
    ttl_s = F.coalesce(F.col("ttl"), F.lit(TTL_MAX_S)).cast("bigint")
    deadline = F.coalesce(F.col("t0"), born) + (ttl_s + GRACE_S) * 1_000_000
    known = messages.select(
        "*",
        (F.col("last") % 32).cast("int").alias("state"),
        F.floor(F.col("last") / 32).alias("last_at"),
        deadline.alias("deadline"),
        born.alias("born"),
    )
    overdue = F.lit(now_us) >= F.col("deadline")
    never_sent = (F.col("ttl") == 0) & ~has(TRANSMITTED)
    ran_out = has(EXPIRED) | (overdue & (F.coalesce(never_sent, F.lit(False)) | _waits()))
    outcome = (
        F.when(has(DELIVERED), "delivered")
        .when(has(BRIDGE_TRANSMITTED), "bridged")
        .when(has(DECRYPTION_ERROR, NOT_DELIVERED), "rejected")
        .when(has(ERRORED), "errored")
        .when(has(SUPERSEDED), "superseded")
        .when(has(WITHDRAWN), "withdrawn")
        .when(ran_out, "expired")
        .when(~overdue, "in_flight")
        .otherwise("lost")
    )
    path = F.when(has(BRIDGE_TRANSMITTED), F.lit(BRIDGE_PATH)).otherwise(F.col("path"))
    latencies = {
        "e2e": F.col("t_done") - F.col("t0"),
        "accept": F.col("t_acc") - F.col("t0"),
        "store": F.col("t_get") - F.col("t_store"),
        "route": F.col("t_sent") - F.col("t0"),
        "bridge": F.when(has(BRIDGE_TRANSMITTED), F.col("t_fwd") - F.col("t0")),
    }
    return known.select(
        "mid",
        date_of(F.col("born")).alias("day"),
        hour_of(F.col("born")).alias("hour"),
        "app",
        "via",
        path.cast("tinyint").alias("path"),
        outcome.alias("outcome"),
        (~F.col("seen").isin(*sorted(LEGAL_MASKS))).alias("gap"),
        "seen",
        "state",
        "last_at",
        "deadline",
        "size",
        *(latencies[measure].alias(measure) for measure in MEASURES),
    )


def _waits() -> Column:
    """Whether the message waits for a connection or an ack. Decided by the set of milestones, not
    by the latest one, because clocks of nodes differ."""
    return has(STORED, RETRIEVED, TRANSMITTED, ACCEPTED)


@returns(REL_HOURLY)
def hourly(of_messages: DataFrame) -> DataFrame:
    """Counts per hour, sender, network, path and outcome. At `next_deadline` the first message in
    flight becomes overdue: the hour must then be computed again."""
    counts = {
        "messages": F.count(F.lit(1)),
        "bytes": F.sum(F.coalesce(F.col("size"), F.lit(0))),
        "gap": F.sum(F.col("gap").cast("bigint")),
        "next_deadline": F.min(F.when(F.col("outcome") == "in_flight", F.col("deadline"))),
    } | {
        f"reached_{name}": F.sum(has(code).cast("bigint"))
        for code, name in zip(MILESTONES, MILESTONE_NAMES, strict=True)
    }
    return (
        of_messages.groupBy("day", "hour", "app", "via", "path", "outcome")
        .agg(*(column.alias(name) for name, column in counts.items()))
        .select(*REL_HOURLY.fieldNames())
    )


@returns(REL_LATENCY)
def latency(of_messages: DataFrame) -> DataFrame:
    """Latency histograms of messages."""
    measured = F.explode(
        F.array(
            *(F.struct(F.lit(name).alias("measure"), F.col(name).alias("us")) for name in MEASURES)
        )
    )
    return (
        of_messages.select("day", "hour", "app", "path", measured.alias("m"))
        .where("m.us is not null")
        .groupBy(
            "day",
            "hour",
            "app",
            "path",
            F.col("m.measure").alias("measure"),
            bucket_of(F.col("m.us")).alias("bucket"),
        )
        .agg(
            F.count(F.lit(1)).alias("n"),
            F.sum((F.col("m.us") < 0).cast("bigint")).alias("clamped"),
            F.max(F.greatest(F.col("m.us"), F.lit(0))).alias("max_us"),
        )
        .select(*REL_LATENCY.fieldNames())
    )


@returns(REL_LOSS)
def loss(of_messages: DataFrame, events: DataFrame) -> DataFrame:
    """Every lost message with the node of its last event, and the peer of that event.

    `events` is read for lost ids only; mids are unique in `of_messages`.
    """
    lost = of_messages.where(F.col("outcome") == "lost")
    order = F.col("ts") * 32 + F.col("k")
    last_seen = (
        events.where(F.col("k").between(MILESTONES[0], MILESTONES[-1]))
        .join(F.broadcast(lost.select("mid")), on="mid", how="left_semi")
        .groupBy("mid")
        .agg(
            F.max(F.struct(order.alias("at"), F.col("node"))).alias("newest"),
            F.max(
                F.when(F.col("peer").isNotNull(), F.struct(order.alias("at"), F.col("peer")))
            ).alias("meant"),
        )
        .select("mid", F.col("newest.node").alias("node"), F.col("meant.peer").alias("peer"))
    )
    return lost.join(last_seen, on="mid", how="left").select(*REL_LOSS.fieldNames())


@returns(REL_NODES)
def by_node(events: DataFrame) -> DataFrame:
    """Events per node, hour and code; `n` sums the weights of rows."""
    stands_for = F.when(F.col("k") == LOG_GAP, F.col("n")).otherwise(weight())
    return (
        events.groupBy(
            date_of(F.col("ts")).alias("day"), hour_of(F.col("ts")).alias("hour"), "node", "k"
        )
        .agg(F.sum(stands_for).alias("n"), F.count(F.lit(1)).alias("events"))
        .select(*REL_NODES.fieldNames())
    )


@returns(REL_REPEATS)
def repeats(events: DataFrame) -> DataFrame:
    """Repeated sends and acks of a message on one date, in the hour of the first."""
    once = (
        events.where(F.col("k").isin(TRANSMITTED, DELIVERED))
        .groupBy(date_of(F.col("ts")).alias("day"), "k", "mid")
        .agg(F.count(F.lit(1)).alias("times"), hour_of(F.min("ts")).alias("hour"))
    )
    return (
        once.groupBy("day", "hour", "k")
        .agg(
            F.sum("times").alias("n"),
            F.count(F.lit(1)).alias("messages"),
            F.sum(F.col("times") - 1).alias("repeated"),
        )
        .select(*REL_REPEATS.fieldNames())
    )
