"""Job `audit`: counts inconsistent rows of a push store by class, with samples.

Inputs: all rows of a push store; `events`, for user agents that the store should have. Output:
`store_audit`, one row per class. Progress: none; each run reads everything.
Idempotence: the job only reads the store. Rows change during a run: in a busy store a class with
few rows may be clients that were just connecting or leaving.
Cost: one pass over each of the store's tables, six joins, one count of topics.
"""

from collections.abc import Mapping, Sequence
from functools import reduce

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from waystation.pipeline.job_context import Context
from waystation.pipeline.schema import EVENTS
from waystation.pipeline.sources.store import StoreHandle
from waystation.pipeline.store_job_tables import STORE_AUDIT

SAMPLES_MAX = 100
DAY_MS = 86_400_000
AHEAD_MS = 600_000
INDEX_LAG_MS = 60_000
HELLO = 21
ROUTER_TYPES = ("webpush", "simplepush", "fcm", "apns", "adm", "stub", "gcm")


class Found(msgspec.Struct, frozen=True):
    kind: str
    rows: int
    samples: list[str]


class Tables(msgspec.Struct, frozen=True):
    """The store's tables, and `hellos`: `uah` and `last_ms` from events."""

    router: DataFrame
    channels: DataFrame
    messages: DataFrame
    hellos: DataFrame


def classes(
    tables: Tables, now_ms: int, nodes: Sequence[str] | None = None
) -> Mapping[str, DataFrame]:
    """Class -> the hashes (`uah`) of its rows. The class of unknown nodes needs `nodes`."""
    router, channels, messages = tables.router, tables.channels, tables.messages
    known = router.select("uah")
    subscribed = channels.select("uah", "chh")
    reachable = messages.join(known, on="uah", how="left_semi")
    later = router.join(tables.hellos, on="uah", how="inner").where(
        F.col("last_ms") > F.col("connected_at_ms") + INDEX_LAG_MS
    )
    topics = messages.where(F.col("topic_key").isNotNull()).groupBy("uah", "topic_key")
    homes = router.select("uah", F.col("month").alias("home"))

    def older(days: int) -> Column:
        return F.col("connected_at_ms") < now_ms - days * DAY_MS

    found = {
        "msg_no_router": messages.join(known, on="uah", how="left_anti"),
        "channel_no_router": channels.join(known, on="uah", how="left_anti"),
        "msg_no_channel": reachable.join(subscribed, on=["uah", "chh"], how="left_anti"),
        "msg_expired": messages.where(F.col("expires_at_ms") <= now_ms),
        "msg_future": messages.where(F.col("accepted_at_ms") > now_ms + AHEAD_MS),
        "router_stale_30": router.where(older(30)),
        "router_stale_60": router.where(older(60)),
        "router_bad_type": router.where(~F.col("router_type").isin(*ROUTER_TYPES)),
        "stale_index": later,
        "dup_topic": topics.count().where(F.col("count") > 1),
        "month_mismatch": messages.join(homes, on="uah", how="inner").where(
            F.col("month") != F.col("home")
        ),
    }
    if nodes is not None:
        dead = F.col("node_id").isNotNull() & ~F.col("node_id").isin(*nodes)
        found["router_dead_node"] = router.where(dead)
    return found


def run(ctx: Context, store: StoreHandle, *, nodes: Sequence[str] | None = None) -> list[Found]:
    """`nodes` are the relay URLs of all existing nodes."""
    now_ms = ctx.clock.now_ms()
    # Cached, on disk if necessary: every class reads it, and each scan of a store starts processes.
    router, channels, messages = kept = [
        store.read(ctx.spark, name, now_ms).persist() for name in ("router", "channels", "messages")
    ]
    hellos = (
        ctx.lake.read(EVENTS)
        .where(F.col("k") == HELLO)
        .groupBy("uah")
        .agg(F.floor(F.max("ts") / 1000).alias("last_ms"))
    )
    found = _counted(classes(Tables(router, channels, messages, hellos), now_ms, nodes))
    for table in kept:
        table.unpersist()
    name = ctx.new_run()
    handle = ctx.lake.table(STORE_AUDIT).open()
    rows = [
        {
            "at": ctx.clock.now_us(),
            "run": name,
            "class": one.kind,
            "rows": one.rows,
            "samples": " ".join(one.samples),
        }
        for one in found
    ]
    handle.append(handle.write_rows(rows, name, {"date": ctx.today()}), name, {})
    return found


def _counted(frames: Mapping[str, DataFrame]) -> list[Found]:
    """Row count and lowest hashes of each class. Hashes are uniformly distributed, so a bound on
    them limits the rows of a large class that reach the driver."""
    rows = reduce(
        DataFrame.unionByName,
        (frame.select(F.lit(kind).alias("kind"), "uah") for kind, frame in frames.items()),
    )
    counts: dict[str, int] = {
        row.kind: row["count"] for row in rows.groupBy("kind").count().collect()
    }
    low = F.lit(False)
    for kind, count in counts.items():
        bound = min(1.0, 4 * SAMPLES_MAX / count) * (1 << 64) - (1 << 63)
        low |= (F.col("kind") == kind) & (F.col("uah") <= int(min(bound, (1 << 63) - 1024)))
    samples: dict[str, list[int]] = {kind: [] for kind in frames}
    for row in rows.where(low).distinct().collect():
        samples[row.kind].append(row.uah)
    return [
        Found(kind, counts.get(kind, 0), [_hex(uah) for uah in sorted(samples[kind])[:SAMPLES_MAX]])
        for kind in frames
    ]


def _hex(uah: int) -> str:
    return f"{uah & (1 << 64) - 1:016x}"
