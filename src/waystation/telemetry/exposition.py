"""What a scraper sees: the numbers of all workers of a node as one exposition.

Rule 1: counters and histograms of the workers are summed. Gauges are not: each bears the label
        `worker`, because the sum of lags or of start times means nothing.
Rule 2: a counter never goes back. What a worker counted before it died stays in `past.json`, so a
        restart looks like a restart and not like a burst.
Rule 3: gauges of a worker that has not written for `stale_s` are left out; its counters stay.

Each worker writes `METRICS_DIR/WORKER.json` about once a second (`write_snapshot`, from a thread);
whoever is scraped reads them all (`render`). Those who have the snapshots by other means, over a
socket for instance, call `expose` on them.
"""

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import msgspec
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import CollectorRegistry

from waystation.base.unreadable import UNREADABLE
from waystation.telemetry.metrics import (
    Family,
    Sample,
    Snapshot,
    Spec,
    decode_snapshot,
    encode_snapshot,
)

PAST = "past.json"
STALE_S = 10.0


class _Past(msgspec.Struct, frozen=True):
    """What workers that are gone had counted, and which files are already in it."""

    folded: list[str]
    snapshot: Snapshot


class _Ready:
    """A collector of metrics that are already made; what prometheus-client wants to be handed."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return iter(self._metrics)


def expose(
    snapshots: Iterable[Snapshot], *, now_ms: int | None = None, stale_s: float = STALE_S
) -> bytes:
    """One exposition of all snapshots. Without `now_ms` none of them is stale."""
    oldest_ms = 0 if now_ms is None else now_ms - int(stale_s * 1000)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Ready([_metric(family) for family in _merged(snapshots, oldest_ms)]))
    return generate_latest(registry)


def write_snapshot(directory: Path, snapshot: Snapshot) -> None:
    """Replaces the worker's file at once: a reader sees the old numbers or the new, never half."""
    _replace(directory / f"{snapshot.worker}.json", encode_snapshot(snapshot))


def read_snapshots(directory: Path) -> list[Snapshot]:
    """Every worker's last snapshot and the past; files that are no snapshots are passed over."""
    past = _read_past(directory)
    snapshots = [past.snapshot] if past.snapshot.families else []
    for path in _files(directory):
        if path.name not in past.folded:
            with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
                snapshots.append(decode_snapshot(path.read_bytes()))
    return snapshots


def render(directory: Path, now_ms: int, *, stale_s: float = STALE_S) -> bytes:
    return expose(read_snapshots(directory), now_ms=now_ms, stale_s=stale_s)


def retire(directory: Path, live: Collection[str]) -> None:
    """Moves what workers other than `live` counted into the past. For the supervisor, when a
    worker has ended and before its successor writes; the successor's name may be the same."""
    past = _read_past(directory)
    gone: list[Path] = []
    snapshots = [past.snapshot]
    for path in _files(directory):
        if path.stem in live:
            continue
        gone.append(path)
        if path.name not in past.folded:
            with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
                snapshots.append(decode_snapshot(path.read_bytes()))
    if not gone:
        return
    families = [family for family in _merged(snapshots, 0) if family.spec.kind != "gauge"]
    kept = _Past([path.name for path in gone], Snapshot("past", 0, families))
    # The names go in with the sums: if we die before the files are removed, nobody adds them twice.
    _replace(directory / PAST, msgspec.json.encode(kept))
    for path in gone:
        path.unlink(missing_ok=True)
    _replace(directory / PAST, msgspec.json.encode(_Past([], kept.snapshot)))


def clear(directory: Path) -> None:
    """For the supervisor at its start: the counters of this run begin at zero."""
    if directory.is_dir():
        for path in (*_files(directory), directory / PAST):
            path.unlink(missing_ok=True)


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("*.json") if path.name != PAST)


def _read_past(directory: Path) -> _Past:
    try:
        return msgspec.json.decode((directory / PAST).read_bytes(), type=_Past)
    except (FileNotFoundError, *UNREADABLE):
        return _Past([], Snapshot("past", 0, []))


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}.new")
    fresh.write_bytes(data)
    fresh.replace(path)


def _merged(snapshots: Iterable[Snapshot], oldest_ms: int) -> list[Family]:
    specs: dict[str, Spec] = {}
    merged: dict[str, dict[tuple[str, ...], Sample]] = {}
    for snapshot in snapshots:
        for family in snapshot.families:
            spec = family.spec
            if spec.kind == "gauge":
                if snapshot.taken_at_ms < oldest_ms:
                    continue
                if "worker" not in spec.labels:
                    spec = msgspec.structs.replace(spec, labels=(*spec.labels, "worker"))
            first = specs.setdefault(spec.full_name, spec)
            if (first.labels, first.buckets) != (spec.labels, spec.buckets):
                continue  # workers of two releases side by side: the shape seen first stands
            into = merged.setdefault(spec.full_name, {})
            for sample in family.samples:
                labels = sample.labels
                if len(labels) < len(spec.labels):
                    labels = (*labels, snapshot.worker)
                into[labels] = _add(into.get(labels), sample, labels)
    return [
        Family(specs[name], [into[labels] for labels in sorted(into)])
        for name, into in sorted(merged.items())
    ]


def _add(before: Sample | None, sample: Sample, labels: tuple[str, ...]) -> Sample:
    if before is None:
        return msgspec.structs.replace(sample, labels=labels)
    counts = tuple(a + b for a, b in zip(before.counts, sample.counts, strict=True))
    return Sample(labels, before.value + sample.value, counts, before.sum + sample.sum)


def _metric(family: Family) -> Metric:
    spec = family.spec
    match spec.kind:
        case "counter":
            counter = CounterMetricFamily(spec.full_name, spec.help, labels=spec.labels)
            for sample in family.samples:
                counter.add_metric(sample.labels, sample.value)
            return counter
        case "gauge":
            gauge = GaugeMetricFamily(spec.full_name, spec.help, labels=spec.labels)
            for sample in family.samples:
                gauge.add_metric(sample.labels, sample.value)
            return gauge
        case "histogram":
            histogram = HistogramMetricFamily(spec.full_name, spec.help, labels=spec.labels)
            for sample in family.samples:
                histogram.add_metric(sample.labels, _cumulative(spec, sample), sample.sum)
            return histogram


def _cumulative(spec: Spec, sample: Sample) -> list[tuple[str, float]]:
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*map(str, spec.buckets), "+Inf"), sample.counts, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets
