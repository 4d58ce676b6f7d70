"""Exports counters of the dual store as metrics of the process."""

from typing import Protocol, runtime_checkable

from waystation.push.store import PushStore
from waystation.storage.dual.moves import DualStats
from waystation.telemetry.metrics import Metrics


@runtime_checkable
class Counting(Protocol):
    def stats(self) -> object: ...


def count_moves(store: PushStore, metrics: Metrics) -> None:
    """Metrics of a dual store: moved user agents and failed calls. Other stores have none."""
    stats = store.stats() if isinstance(store, Counting) else None
    if not isinstance(stats, DualStats):
        return
    migrated = metrics.counter("database_migrate")
    already = metrics.counter("database_already_migrated")

    def fill() -> None:
        migrated.value = stats.migrated
        already.value = stats.already_migrated
        for func, count in stats.errors.items():
            metrics.counter("database_dual_error", func=func).value = count

    metrics.on_read(fill)
