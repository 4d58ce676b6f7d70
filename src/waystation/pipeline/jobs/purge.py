"""User agents that have not been seen for long leave the store: mark, confirm, delete.

1. `mark` writes down who has not connected for `days` and of whom no event tells otherwise.
2. `confirm`, a day later at least, keeps those whose record is still the very same.
3. `delete` removes the confirmed ones, each only if its record is still unchanged, with its
   subscriptions and messages; who came back meanwhile stays.

Inputs: the store's user agents, `events`. Outputs: `store_candidates`, `store_purge`.
Idempotence: marking twice marks twice; deleting twice finds nothing the second time, so a run that
died is simply run again. Candidates are hashes; raw ids exist only while `delete` works.
Cost: one pass over the user agents a step.
"""

import time
from collections.abc import Iterator

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from waystation.base.errors import RejectedError
from waystation.pipeline.job import Context
from waystation.pipeline.schema import EVENTS
from waystation.pipeline.sources.store import StorePlace
from waystation.pipeline.stores import STORE_CANDIDATES, STORE_PURGE

NAME = "purge"
DAYS = 60
DAYS_MIN = 30
HOLD_S = 86_400.0
BATCH = 200
DAY_MS = 86_400_000
SIGNS_OF_LIFE = (21, 23, 70, 71)  # hello, register, new, update


class TooSoonError(RejectedError):
    """Fewer days than a user agent may be away."""

    label = "too_soon"


class Purged(msgspec.Struct, frozen=True):
    step: str
    candidates: int
    unchanged: int
    removed: int


def stale(router: DataFrame, alive: DataFrame, before_ms: int) -> DataFrame:
    """User agents without a connection since `before_ms`, and without an event (`uah`) either."""
    old = router.where(F.col("connected_at_ms") < before_ms)
    seen = alive.select("uah").distinct()
    again = seen.withColumnRenamed("uah", "uah_before")
    return old.join(seen, on="uah", how="left_anti").join(again, on="uah_before", how="left_anti")


def mark(ctx: Context, store: StorePlace, *, days: int = DAYS) -> Purged:
    if days < DAYS_MIN:
        raise TooSoonError(f"a user agent may be away for {DAYS_MIN} days; {days} is too few")
    now_ms = ctx.clock.now_ms()
    before_ms = now_ms - days * DAY_MS
    alive = ctx.lake.read(EVENTS).where(
        F.col("k").isin(*SIGNS_OF_LIFE) & (F.col("ts") >= before_ms * 1000)
    )
    found = stale(store.read(ctx.spark, "router", now_ms), alive, before_ms)
    return Purged("mark", _write(ctx, found, "marked"), 0, 0)


def confirm(ctx: Context, store: StorePlace, *, hold_s: float = HOLD_S) -> Purged:
    marked = _candidates(ctx, "marked", older_than_s=hold_s)
    router = store.read(ctx.spark, "router", ctx.clock.now_ms()).select("uah", "version")
    kept = marked.join(router, on=["uah", "version"], how="left_semi")
    return Purged("confirm", marked.count(), _write(ctx, kept, "confirmed"), 0)


def delete(
    ctx: Context, store: StorePlace, *, apply: bool, rate_per_s: float | None = None
) -> Purged:
    """Without `apply`, counts."""
    confirmed = _candidates(ctx, "confirmed", older_than_s=0)
    router = store.read(ctx.spark, "router", ctx.clock.now_ms(), raw=True)
    due = router.join(confirmed, on=["uah", "version"], how="left_semi").select("uaid", "version")
    candidates = confirmed.count()
    if not apply:
        return Purged("delete", candidates, due.count(), 0)
    removed = unchanged = 0
    bulk = store.open()
    try:
        for batch in _batches(due):
            unchanged += len(batch)
            removed += bulk.remove_unchanged(batch)
            if rate_per_s:
                time.sleep(len(batch) / rate_per_s)
    finally:
        bulk.close()
    name = ctx.new_run()
    handle = ctx.lake.table(STORE_PURGE).open()
    row = {
        "at": ctx.clock.now_us(),
        "run": name,
        "candidates": candidates,
        "unchanged": unchanged,
        "removed": removed,
    }
    staged = handle.write_rows([row], name, {"date": ctx.today()})
    handle.append(staged, name, {})
    return Purged("delete", candidates, unchanged, removed)


def _batches(due: DataFrame) -> Iterator[list[tuple[bytes, int]]]:
    batch: list[tuple[bytes, int]] = []
    for row in due.toLocalIterator():
        batch.append((bytes(row.uaid), row.version))
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _candidates(ctx: Context, kind: str, *, older_than_s: float) -> DataFrame:
    until_us = ctx.clock.now_us() - int(older_than_s * 1e6)
    return (
        ctx.lake.read(STORE_CANDIDATES)
        .where((F.col("kind") == kind) & (F.col("at") <= until_us))
        .select("uah", "version", "connected_at_ms")
        .distinct()
    )


def _write(ctx: Context, found: DataFrame, kind: str) -> int:
    name = ctx.new_run()
    handle = ctx.lake.table(STORE_CANDIDATES).open()
    rows = found.select(
        F.lit(ctx.clock.now_us()).alias("at"),
        F.lit(name).alias("run"),
        F.lit(kind).alias("kind"),
        "uah",
        "version",
        "connected_at_ms",
    )
    staged = handle.write(rows, name)
    handle.append(staged, name, {})
    return sum(file.rows for file in staged)
