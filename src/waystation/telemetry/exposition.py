"""Renders the metrics of all workers of a node as one Prometheus exposition.

Rule 1: counters and histograms of the workers are summed. Gauges are not: each bears the label
        `worker`, because the sum of lags or of start times means nothing.
Rule 2: gauges of a worker that has not written for `stale_s` are left out; its counters stay.

The scraped process reads the snapshot files of all workers (`snapshots`) and renders them with
`expose`.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import CollectorRegistry

from waystation.telemetry.metrics import Family, Sample, Snapshot, Spec
from waystation.telemetry.snapshots import merged, read_snapshots

STALE_S = 10.0


class _Ready:
    """A prometheus-client collector that returns finished metrics."""

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
    registry.register(_Ready([_metric(family) for family in merged(snapshots, oldest_ms)]))
    return generate_latest(registry)


def render(directory: Path, now_ms: int, *, stale_s: float = STALE_S) -> bytes:
    return expose(read_snapshots(directory), now_ms=now_ms, stale_s=stale_s)


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
