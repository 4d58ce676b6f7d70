"""Metric snapshot files of a node's workers, and the sums of ended workers.

Rule 1: each worker writes `DIRECTORY/WORKER.json` about once a second, from a thread.
Rule 2: counters never decrease. When a worker has ended, its file is renamed (`set_aside`, which
        works on a full disk) and later added to `past.json` (`fold`). Readers sum both and count
        each file once.
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from waystation.base.decode_errors import DECODE_ERRORS
from waystation.telemetry.metrics import (
    Family,
    Sample,
    Snapshot,
    Spec,
    decode_snapshot,
    encode_snapshot,
)

PAST = "past.json"
_ASIDE = ".ended.json"


class _Past(msgspec.Struct, frozen=True):
    """Sums of ended workers, and the names of the files that they include."""

    folded: list[str]
    snapshot: Snapshot


def write_snapshot(directory: Path, snapshot: Snapshot) -> None:
    """Replace the worker's file atomically."""
    _replace(directory / f"{snapshot.worker}.json", encode_snapshot(snapshot))


def read_snapshots(directory: Path) -> list[Snapshot]:
    """The last snapshot of every worker, and the past; unreadable files are skipped."""
    past = _read_past(directory)
    files = sorted(path for path in directory.glob("*.json") if path.name != PAST)
    found = _read([path for path in files if path.name not in past.folded])
    return [past.snapshot, *found] if past.snapshot.families else found


def set_aside(directory: Path, worker: str) -> None:
    """Called by the supervisor after a worker has ended, before its successor writes."""
    path = directory / f"{worker}.json"
    with contextlib.suppress(FileNotFoundError):  # it had not written yet
        path.rename(path.with_suffix(f".{path.stat().st_mtime_ns}{_ASIDE}"))


def fold(directory: Path) -> None:
    """Add set-aside files to the past and remove them. May be repeated after an interruption."""
    gone = sorted(directory.glob(f"*{_ASIDE}"))
    if not gone:
        return
    past = _read_past(directory)
    fresh = _read([path for path in gone if path.name not in past.folded])
    families = [
        family for family in merged([past.snapshot, *fresh], 0) if family.spec.kind != "gauge"
    ]
    # The names are written with the sums: after a crash here no file is added twice.
    kept = _Past([path.name for path in gone], Snapshot("past", 0, families))
    _replace(directory / PAST, msgspec.json.encode(kept))
    for path in gone:
        path.unlink(missing_ok=True)


def merged(snapshots: Iterable[Snapshot], oldest_ms: int) -> list[Family]:
    specs: dict[str, Spec] = {}
    rows: dict[str, dict[tuple[str, ...], Sample]] = {}
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
                continue  # workers of two releases: the shape seen first is used
            into = rows.setdefault(spec.full_name, {})
            for sample in family.samples:
                labels = sample.labels
                if len(labels) < len(spec.labels):
                    labels = (*labels, snapshot.worker)
                into[labels] = _add(into.get(labels), sample, labels)
    return [
        Family(specs[name], [into[labels] for labels in sorted(into)])
        for name, into in sorted(rows.items())
    ]


def _add(before: Sample | None, sample: Sample, labels: tuple[str, ...]) -> Sample:
    if before is None:
        return msgspec.structs.replace(sample, labels=labels)
    counts = tuple(a + b for a, b in zip(before.counts, sample.counts, strict=True))
    return Sample(labels, before.value + sample.value, counts, before.sum + sample.sum)


def _read(paths: Iterable[Path]) -> list[Snapshot]:
    found: list[Snapshot] = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
            found.append(decode_snapshot(path.read_bytes()))
    return found


def _read_past(directory: Path) -> _Past:
    try:
        return msgspec.json.decode((directory / PAST).read_bytes(), type=_Past)
    except (FileNotFoundError, *DECODE_ERRORS):
        return _Past([], Snapshot("past", 0, []))


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}.new")
    fresh.write_bytes(data)
    fresh.replace(path)
