"""Job `purge`: removes user agents that have not connected for long: mark, confirm, delete.

1. `mark` records user agents that have not connected for `days` and have no newer event, and
   orphans: ids with subscriptions or messages but without a record.
2. `confirm`, at least a day later, keeps those whose record is unchanged, and orphans that still
   have no record.
3. `delete` removes the confirmed ones with their subscriptions and messages, each only if its
   record is still unchanged. User agents that have reconnected are kept.

Inputs: the store's rows, `events`. Outputs: `store_candidates`, `store_purge`.
Idempotence: marking twice marks twice; deleting twice finds nothing the second time, so a crashed
run is simply repeated. Candidates are hashes; raw ids exist only while `delete` runs.
Cost: one pass over the user agents per step, and one over rows of possible orphans. `mark` uses the
store's index of last connections, if it has one.
"""

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from waystation.base.errors import RejectedError
from waystation.pipeline.job_context import Context
from waystation.pipeline.schema import EVENTS
from waystation.pipeline.sources.store import StoreHandle
from waystation.pipeline.store_job_tables import STORE_CANDIDATES, STORE_PURGE

DAYS = 60
DAYS_MIN = 30
HOLD_S = 86_400.0
DAY_MS = 86_400_000
SIGNS_OF_LIFE = (
    21,
    23,
    70,
    71,
    73,
    74,
)  # hello, register; of bridged user agents all events but their end


class TooSoonError(RejectedError):
    """`days` is less than user agents may stay away."""

    label = "too_soon"


class Purged(msgspec.Struct, frozen=True):
    step: str
    candidates: int
    unchanged: int
    removed: int
    orphans: int = 0  # of the marked, confirmed or removed ones: without a record


def stale(router: DataFrame, alive: DataFrame, before_ms: int) -> DataFrame:
    """User agents without a connection since `before_ms` and without an event (`uah`)."""
    old = router.where(F.col("connected_at_ms") < before_ms)
    seen = alive.select("uah").distinct()
    again = seen.withColumnRenamed("uah", "uah_before")
    return old.join(seen, on="uah", how="left_anti").join(again, on="uah_before", how="left_anti")


def orphans(router: DataFrame, channels: DataFrame, messages: DataFrame, *more: str) -> DataFrame:
    """The hashes (`uah` and `more`) of user agents with rows but without a record."""
    left = channels.select("uah", *more).union(messages.select("uah", *more)).distinct()
    return left.join(router.select("uah"), on="uah", how="left_anti")


def mark(ctx: Context, store: StoreHandle, *, days: int = DAYS) -> Purged:
    if days < DAYS_MIN:
        raise TooSoonError(
            f"days must be at least {DAYS_MIN}, which user agents may stay away; not {days}"
        )
    now_ms = ctx.clock.now_ms()
    before_ms = now_ms - days * DAY_MS
    alive = ctx.lake.read(EVENTS).where(
        F.col("k").isin(*SIGNS_OF_LIFE) & (F.col("ts") >= before_ms * 1000)
    )
    with _rows(ctx, store) as rows:
        away = store.read_away(ctx.spark, now_ms)
        router = rows.router if away is None else away
        marked = _write(ctx, stale(router, alive, before_ms), "marked")
        lost = _write(ctx, _nobodys(rows.orphans()), "orphan")
    return Purged("mark", marked, 0, 0, lost)


def confirm(ctx: Context, store: StoreHandle, *, hold_s: float = HOLD_S) -> Purged:
    marked = _candidates(ctx, "marked", older_than_s=hold_s)
    lost = _candidates(ctx, "orphan", older_than_s=hold_s)
    with _rows(ctx, store) as rows:
        kept = marked.join(rows.router, on=["uah", "version"], how="left_semi")
        confirmed = _write(ctx, kept, "confirmed")
        still = lost.join(rows.orphans(), on="uah", how="left_semi")
        orphaned = _write(ctx, still, "orphan_confirmed")
    return Purged("confirm", marked.count(), confirmed, 0, orphaned)


def delete(
    ctx: Context, store: StoreHandle, *, apply: bool, rate_per_s: float | None = None
) -> Purged:
    """Removes the confirmed candidates; without `apply`, only counts them."""
    confirmed = _candidates(ctx, "confirmed", older_than_s=0)
    lost = _candidates(ctx, "orphan_confirmed", older_than_s=0)
    candidates = confirmed.count()
    with _rows(ctx, store, raw=True) as rows:
        due = rows.router.join(confirmed, on=["uah", "version"], how="left_semi")
        due = due.select("uaid", "version")
        left = rows.orphans("uaid").join(lost, on="uah", how="left_semi").select("uaid")
        if not apply:
            return Purged("delete", candidates, due.count(), 0, left.count())
        unchanged, removed, orphaned = _remove(store, due, left, rate_per_s)
    _tell(ctx, candidates, unchanged, removed, orphaned)
    return Purged("delete", candidates, unchanged, removed, orphaned)


def _remove(
    store: StoreHandle, due: DataFrame, left: DataFrame, rate_per_s: float | None
) -> tuple[int, int, int]:
    with tempfile.TemporaryDirectory(prefix="waystation-purge-") as folder:
        receipt = Path(folder) / "receipt"
        unchanged, removed = store.remove(due, receipt, rate_per_s=rate_per_s)
        _, orphaned = store.remove(left, receipt, rate_per_s=rate_per_s)
    return unchanged, removed, orphaned


def _tell(ctx: Context, candidates: int, unchanged: int, removed: int, orphans: int) -> None:
    name = ctx.new_run()
    handle = ctx.lake.table(STORE_PURGE).complete()
    row = {
        "at": ctx.clock.now_us(),
        "run": name,
        "candidates": candidates,
        "unchanged": unchanged,
        "removed": removed,
        "orphans": orphans,
    }
    staged = handle.write_rows([row], name, {"date": ctx.today()})
    handle.append(staged, name, {})


class _Rows:
    """The store's tables, read once for the several queries of a step."""

    def __init__(self, router: DataFrame, channels: DataFrame, messages: DataFrame) -> None:
        self.router = router
        self._channels = channels
        self._messages = messages

    def orphans(self, *more: str) -> DataFrame:
        return orphans(self.router, self._channels, self._messages, *more)


@contextmanager
def _rows(ctx: Context, store: StoreHandle, *, raw: bool = False) -> Generator[_Rows]:
    now_ms = ctx.clock.now_ms()
    names = ("router", "channels", "messages")
    tables = [store.read(ctx.spark, name, now_ms, raw=raw).persist() for name in names]
    try:
        yield _Rows(*tables)
    finally:
        for table in tables:
            table.unpersist()


def _nobodys(found: DataFrame) -> DataFrame:
    """Orphans as candidates, without a version because they have no record."""
    none = F.lit(0).cast("bigint")
    return found.select("uah", none.alias("version"), none.alias("connected_at_ms"))


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
