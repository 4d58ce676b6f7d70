"""Job `migrate`: copies one push store into another and verifies the copy.

1. `copy`: records with their subscriptions, then notifications, in parts; each row only if the
   target has none (and no tombstone).
2. `tail`: copies again what connected or was accepted in the source since the copy began.
3. `verify`: compares counts and digests of 4,096 buckets, then the rows of buckets that differ. A
   row counts as missing only if repeated reads miss it, because servers may be writing.

Inputs: both stores. Output: `migrate_progress`, a row per completed part.
Idempotence: rows that the target has are not written again. After a crash the next run continues
with the unfinished parts, unless told to restart. Nothing is removed from the source.
Cost: one pass over the source for `copy`, one for `tail`, one over both stores for `verify`.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from waystation.pipeline.job_context import Context
from waystation.pipeline.sources.copy import Move
from waystation.pipeline.sources.store import StoreHandle
from waystation.pipeline.store_job_tables import MIGRATE_PROGRESS
from waystation.pipeline.transforms.comparison import (
    awaited,
    bucket,
    compared,
    covers,
    differing,
    digests,
)

TABLES = ("records", "notifications")
PARTS = 32
LOOKS = 3  # reads of a row before it counts as missing
MARGIN_MS = 60_000  # clocks of servers differ
_KEYS = {"records": ("uah",), "notifications": ("uah", "sort_key")}
_BAD_MAX = 100_000

Tell = Callable[[str], None]


class Step(msgspec.Struct, frozen=True):
    """A phase of a migration."""

    phase: str
    parts: int
    read: int
    written: int
    present: int
    gone: int
    refused: int


class Verified(msgspec.Struct, frozen=True):
    """Comparison of one table. `extra` rows are only in the target; `newer` ones changed there."""

    table: str
    source: int
    target: int
    buckets: int  # with different digests
    missing: int
    different: int
    newer: int
    extra: int

    @property
    def lost(self) -> int:
        return self.missing + self.different


def copy(
    ctx: Context,
    move: Move,
    *,
    phases: Sequence[str] = ("copy", "tail"),
    parts: int = PARTS,
    rate_per_s: float | None = None,
    anew: bool = False,
    tell: Tell | None = None,
) -> list[Step]:
    """Runs `copy` and `tail`; skips parts that an earlier run has completed."""
    run = _Run(ctx, move, anew=anew)
    for phase, table in [(f"{phase} {table}", table) for phase in phases for table in TABLES]:
        since_ms = run.begun_at_ms - MARGIN_MS if phase.startswith("tail") else 0
        wanted = run.planned(phase, lambda table=table: move.source.parts(table, parts))
        left = [part for part in wanted if part not in run.done(phase)]
        work = partial(move.copy, ctx.spark, table, since_ms=since_ms, rate_per_s=rate_per_s)
        for wave in _waves(left, 2 * ctx.spark.sparkContext.defaultParallelism):
            run.keep(phase, [row.asDict() for row in work(wave).collect()])
            if tell is not None:
                tell(f"{phase}: {len(run.done(phase))} of {len(wanted)} parts")
    if "tail" in phases:
        run.keep("end", [])
    return run.steps()


def verify(ctx: Context, move: Move) -> list[Verified]:
    records = _verify(ctx, move, "records")
    return [records, _verify(ctx, move, "notifications")]


def _verify(ctx: Context, move: Move, table: str) -> Verified:
    keys = _KEYS[table]
    now_ms = ctx.clock.now_ms()  # one time for all reads, because it selects the hash key
    places = (move.source, move.target)

    def read(place: StoreHandle, name: str) -> DataFrame:
        return place.read(ctx.spark, name, now_ms)

    source, target = (digests(read(place, table), keys).persist() for place in places)
    counts = [frame.agg(F.coalesce(F.sum("rows"), F.lit(0))).first() for frame in (source, target)]
    buckets: list[int] = [row.bucket for row in differing(source, target).collect()]
    for frame in (source, target):
        frame.unpersist()

    def read_some(place: StoreHandle, name: str) -> DataFrame:
        return read(place, name).where(bucket().isin(*buckets))

    found: dict[str, set[Any]] = {kind: set() for kind in ("missing", "different", "extra")}
    newer: set[Any] = set()
    for look in range(LOOKS if buckets else 0):
        seen, ahead = _look(move, table, read_some)
        newer |= ahead
        lost = seen["missing"] | seen["different"]
        if look == 0:
            found = seen
        found = {kind: keys_ & seen[kind] for kind, keys_ in found.items()}
        if not lost:
            break
    return Verified(
        table=table,
        source=counts[0][0] if counts[0] else 0,
        target=counts[1][0] if counts[1] else 0,
        buckets=len(buckets),
        missing=len(found["missing"]),
        different=len(found["different"]),
        newer=len(newer),
        extra=len(found["extra"]),
    )


def _look(
    move: Move, table: str, read: Callable[[StoreHandle, str], DataFrame]
) -> tuple[dict[str, set[Any]], set[Any]]:
    """Keys of different rows by kind, and of records that changed later in the target."""
    keys = _KEYS[table]
    source, target = (read(place, table).persist() for place in (move.source, move.target))
    rows = compared(source, target, keys)
    ahead: set[Any] = set()
    if table == "records":
        ahead = {(row.uah,) for row in covers(source, target).collect()}
    else:
        # Notifications that no user agent can fetch expire by themselves.
        rows = awaited(rows, read(move.source, "router"), read(move.target, "records"))
    found: dict[str, set[Any]] = {kind: set() for kind in ("missing", "different", "extra")}
    for row in rows.select("kind", *keys).limit(_BAD_MAX).collect():
        found[row.kind].add(tuple(row)[1:])
    for frame in (source, target):
        frame.unpersist()
    ahead &= found["different"]
    found["different"] -= ahead
    return found, ahead


class _Run:
    """The progress of a migration, from the lake."""

    def __init__(self, ctx: Context, move: Move, *, anew: bool) -> None:
        self._ctx = ctx
        self._move = move
        self._rows: list[dict[str, Any]] = []
        known = ctx.lake.read(MIGRATE_PROGRESS).where(F.col("move") == move.name)
        before = [row.asDict() for row in known.collect()]
        ended = {row["run"] for row in before if row["phase"] == "end"}
        open_ = [row for row in before if row["run"] not in ended]
        if open_ and not anew:
            self._name = max(open_, key=lambda row: row["at"])["run"]
            self._rows = [row for row in open_ if row["run"] == self._name]
        else:
            self._name = ctx.new_run()
            self.keep("begin", [])
        self.begun_at_ms = min(row["at"] for row in self._rows) // 1000

    def planned(self, phase: str, plan: Callable[[], list[str]]) -> list[str]:
        """The parts of a phase, as planned by an earlier run or newly."""
        wanted = f"plan {phase}"
        if not any(row["phase"] == wanted for row in self._rows):
            self.keep(wanted, [{"part": part} for part in plan()])
        return [row["part"] for row in self._rows if row["phase"] == wanted]

    def done(self, phase: str) -> set[str]:
        return {row["part"] for row in self._rows if row["phase"] == phase}

    def keep(self, phase: str, results: Sequence[dict[str, Any]]) -> None:
        """Commits the results of parts that ran together."""
        now_us = self._ctx.clock.now_us()
        about = {"at": now_us, "run": self._name, "move": self._move.name, "phase": phase}
        rows = [_EMPTY | result | about for result in results] or [_EMPTY | about]
        handle = self._ctx.lake.table(MIGRATE_PROGRESS).open()
        name = self._ctx.new_run()
        handle.append(handle.write_rows(rows, name, {"date": self._ctx.today()}), name, {})
        self._rows += rows

    def steps(self) -> list[Step]:
        phases = dict.fromkeys(row["phase"] for row in self._rows if row["part"])
        return [
            Step(phase, len(rows), *(sum(row[name] for row in rows) for name in _COUNTS))
            for phase in phases
            if not phase.startswith("plan ")
            for rows in [[row for row in self._rows if row["phase"] == phase]]
        ]


_COUNTS = ("read", "written", "present", "gone", "refused")
_EMPTY: dict[str, Any] = {"part": "", **dict.fromkeys(_COUNTS, 0)}


def _waves(parts: Sequence[str], size: int) -> Iterator[list[str]]:
    for at in range(0, len(parts), size):
        yield list(parts[at : at + size])
