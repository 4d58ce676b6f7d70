"""Plans which segments of the event log come next, and verifies their line counts and checksums.

Rule 1: segments of a (node, boot) are taken in the order of their numbers. A missing number stops
        that (node, boot), since the segment may still be sealed; when the segment after it has
        waited long enough, the missing ones are counted as lost.
Rule 2: a batch takes segments of all nodes in turn, so that one long backlog delays no other node.
Rule 3: line count and checksum of a file are verified before it is used. A mismatch stops only its
        (node, boot).
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import google_crc32c
import msgspec

from waystation.telemetry.segments import Segment, sealed_segments

_CHUNK_BYTES = 1 << 20
_extend = cast(Callable[[int, bytes], int], google_crc32c.extend)  # pyright: ignore[reportUnknownMemberType]
_arrow: Any = import_module("pyarrow")

Source = tuple[str, int]  # (node, boot)


class Taken(msgspec.Struct, frozen=True):
    """A verified segment: its content matches its name."""

    segment: Segment
    size_bytes: int
    sealed_at_us: int
    blank_lines: int


class Batch(msgspec.Struct, frozen=True):
    taken: list[Taken]
    broken: list[Segment]
    missing: int  # segments counted as lost (rule 1)
    more: bool  # further segments wait

    def last_segnos(self) -> dict[Source, int]:
        """The progress of each (node, boot) after this batch."""
        last: dict[Source, int] = {}
        for one in self.taken:
            source = (one.segment.node, one.segment.boot)
            last[source] = max(one.segment.segno, last.get(source, -1))
        return last


def plan(
    spool: Path,
    done: Callable[[Source], int | None],
    now_s: float,
    *,
    batch_bytes_max: int,
    hole_wait_s: float,
) -> Batch:
    """The next batch; `done` returns the last segment number of a (node, boot) in the lake."""
    waiting, missing = _waiting(spool, done, now_s - hole_wait_s)
    taken: list[Taken] = []
    broken: list[Segment] = []
    total = 0
    turn = 0
    while waiting and total < batch_bytes_max:
        sources = sorted(waiting)
        source = sources[turn % len(sources)]
        segment = waiting[source].pop(0)
        one = examine(segment)
        if one is None:
            broken.append(segment)
            waiting[source].clear()
        else:
            taken.append(one)
            total += one.size_bytes
        if waiting[source]:
            turn += 1
        else:
            del waiting[source]  # the next source takes its position
    return Batch(taken, broken, missing, bool(waiting))


def _waiting(
    spool: Path, done: Callable[[Source], int | None], waited_since_s: float
) -> tuple[dict[Source, list[Segment]], int]:
    found: Mapping[Source, list[Segment]] = defaultdict(list)
    for segment in sealed_segments(spool) if spool.is_dir() else ():
        found[segment.node, segment.boot].append(segment)
    waiting: dict[Source, list[Segment]] = {}
    missing = 0
    for source, segments in found.items():
        last = done(source)
        expected = 0 if last is None else last + 1
        follow: list[Segment] = []
        for segment in segments:
            if segment.segno < expected:
                continue
            if segment.segno > expected:
                if segment.path.stat().st_mtime > waited_since_s:
                    break
                missing += segment.segno - expected
            follow.append(segment)
            expected = segment.segno + 1
        if follow:
            waiting[source] = follow
    return waiting, missing


def examine(segment: Segment) -> Taken | None:
    """Verifies a segment; None if line count or checksum differ from its name."""
    crc32c = lines = blank = 0
    before = b"\n"  # as after a complete line
    stat = segment.path.stat()
    with _arrow.input_stream(str(segment.path), compression="detect") as stream:
        while chunk := cast(bytes, stream.read(_CHUNK_BYTES)):
            crc32c = _extend(crc32c, chunk)
            lines += chunk.count(b"\n")
            blank += _blank_lines(before + chunk)
            before = chunk[-1:]
    if (lines, crc32c) != (segment.count, segment.crc32c) or before != b"\n":
        return None
    return Taken(segment, stat.st_size, stat.st_mtime_ns // 1000, blank)


def _blank_lines(text: bytes) -> int:
    """Number of blank lines, which Spark's reader skips silently."""
    blank = 0
    at = text.find(b"\n\n")
    while at >= 0:
        blank += 1
        at = text.find(b"\n\n", at + 1)
    return blank


def file_key(segment: Segment) -> str:
    """The end of a segment's path, which Spark provides for each row."""
    return f"{segment.node}/{segment.path.name}"


def paths(taken: Sequence[Taken]) -> list[str]:
    return [str(one.segment.path.absolute()) for one in taken]
