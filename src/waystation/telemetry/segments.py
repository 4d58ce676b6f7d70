"""Segment files: hold event lines until the pipeline ingests them.

Rule 1: lines go to `SPOOL/NODE/BOOT.SEGNO.open`. A full, old or last segment is sealed: synced to
        disk and renamed to `BOOT.SEGNO.FIRST_SEQ.COUNT.CRC32C.jsonl`. A sealed file never changes.
Rule 2: `segno` counts 0, 1, 2, ... inside (node, boot), without holes.
Rule 3: the writer of an open file holds a lock on it. An open file without a lock was left by a
        dead process; the process that finds it cuts it back to its last newline and seals it.
Rule 4: lines that cannot be written are counted by the caller and not retried, because the process
        must not wait for its disk.

All functions block on the disk; they run in the event log's thread or in a process that may wait.
"""

import contextlib
import fcntl
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import google_crc32c
import msgspec

from waystation.base.clock import Clock
from waystation.base.decode_errors import DECODE_ERRORS
from waystation.telemetry.contract import NODE_PATTERN

SEGMENT_BYTES_MAX = 64 << 20
SEGMENT_AGE_MAX_S = 60.0
SPOOL_BYTES_MAX = 8 << 30
SPOOL_KEEP_S = 24 * 3600.0

_OPEN = re.compile(r"(\d+)\.(\d+)\.open")
_SEALED = re.compile(r"(\d+)\.(\d+)\.(\d+)\.(\d+)\.([0-9a-f]{8})\.jsonl(\.zst)?")
_CHUNK_BYTES = 1 << 20
_ROOM_CHECK_S = 10.0

# Implemented in C, 13 GB/s; the package has no type stubs.
_extend = cast(Callable[[int, bytes], int], google_crc32c.extend)  # pyright: ignore[reportUnknownMemberType]


class Segment(msgspec.Struct, frozen=True):
    """A sealed file, described by its name."""

    path: Path
    node: str
    boot: int
    segno: int
    first_seq: int
    count: int
    crc32c: int


class _Envelope(msgspec.Struct):
    seq: int


class SegmentWriter:
    """Writes the segments of one node and boot."""

    def __init__(
        self,
        spool: Path,
        node: str,
        boot_us: int,
        clock: Clock,
        *,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        segment_age_max_s: float = SEGMENT_AGE_MAX_S,
        spool_bytes_max: int = SPOOL_BYTES_MAX,
    ) -> None:
        if re.fullmatch(NODE_PATTERN, node) is None:
            raise ValueError(f"node name {node!r} does not match {NODE_PATTERN}")
        self._folder = spool / node
        self._boot_us = boot_us
        self._clock = clock
        self._segment_bytes_max = segment_bytes_max
        self._segment_age_max_s = segment_age_max_s
        self._spool_bytes_max = spool_bytes_max
        self._segno = 0
        self._fd = -1
        self._path = self._folder
        self._first_seq = self._count = self._size = self._crc32c = 0
        self._opened_mono = 0.0
        self._room_checked_mono = -_ROOM_CHECK_S
        self._room = True

    def append(self, lines: bytes, first_seq: int, count: int) -> bool:
        """Write all lines or none. Whether they were written. Seals a full segment."""
        try:
            if self._fd < 0:
                if not self._has_room():
                    return False
                self._open(first_seq)
            self._write(lines)
        except OSError:
            return False
        self._size += len(lines)
        self._count += count
        self._crc32c = _extend(self._crc32c, lines)
        if self._size >= self._segment_bytes_max:
            self.seal()
        return True

    def roll_at(self) -> float | None:
        """The monotonic time at which the open segment must be sealed for its age."""
        return None if self._fd < 0 else self._opened_mono + self._segment_age_max_s

    def roll_if_old(self) -> None:
        at = self.roll_at()
        if at is not None and self._clock.mono() >= at:
            self.seal()

    def seal(self) -> Path | None:
        """Sync and rename the open segment if it has lines."""
        if self._fd < 0:
            return None
        fd, self._fd = self._fd, -1
        try:
            if not self._count:  # its first write failed; the number is used again, rule 2
                self._path.unlink()
                return None
            self._segno += 1
            return _seal(fd, self._path, self._first_seq, self._count, self._crc32c)
        except OSError:
            # It stays `.open` without a lock, so the next `seal_abandoned` tries again.
            return None
        finally:
            os.close(fd)

    def _open(self, first_seq: int) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._path = self._folder / f"{self._boot_us}.{self._segno}.open"
        # Lock before naming: a file named `.open` without a lock counts as abandoned.
        fresh = self._path.with_suffix(".new")
        fd = os.open(
            fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o640
        )
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fresh.rename(self._path)
        except OSError:
            os.close(fd)
            raise
        self._fd = fd
        self._first_seq = first_seq
        self._count = self._size = self._crc32c = 0
        self._opened_mono = self._clock.mono()

    def _write(self, lines: bytes) -> None:
        try:
            left = memoryview(lines)
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError:
            # A full disk may have written half a line: cut it off, or the next line is lost too.
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise

    def _has_room(self) -> bool:
        """Whether the node's folder is below its limit; measured every 10 s."""
        mono = self._clock.mono()
        if mono - self._room_checked_mono >= _ROOM_CHECK_S:
            self._room_checked_mono = mono
            self._room = folder_bytes(self._folder) < self._spool_bytes_max
        return self._room


def sealed_segments(spool: Path) -> Iterator[Segment]:
    """All sealed segments, node by node in the order in which they were written."""
    for folder in sorted(path for path in spool.iterdir() if path.is_dir()):
        found: list[Segment] = []
        for path in folder.iterdir():
            parts = _SEALED.fullmatch(path.name)
            if parts is not None:
                boot, segno, first_seq, count = (int(part) for part in parts.groups()[:4])
                crc32c = int(parts[5], 16)
                found.append(Segment(path, folder.name, boot, segno, first_seq, count, crc32c))
        yield from sorted(found, key=lambda segment: (segment.boot, segment.segno))


def seal_abandoned(spool: Path, *, unchanged_since_s: float | None = None) -> list[Path]:
    """Seal every open segment of a dead writer; returns the sealed files.

    With `unchanged_since_s` (Unix time), only those last written before it: on a file system whose
    locks are not visible to other machines, age replaces the lock.
    """
    sealed: list[Path] = []
    if not spool.is_dir():
        return sealed
    for path in sorted(spool.glob("*/*.open")):
        if _OPEN.fullmatch(path.name) is None:
            continue
        with contextlib.suppress(FileNotFoundError, BlockingIOError):
            if unchanged_since_s is not None and path.stat().st_mtime > unchanged_since_s:
                continue
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Another process may have sealed it between our listing and our lock.
                if os.fstat(fd).st_ino == path.stat().st_ino:
                    done = _seal_left_over(fd, path)
                    if done is not None:
                        sealed.append(done)
            finally:
                os.close(fd)
    return sealed


def remove_old(
    spool: Path,
    now_ms: int,
    *,
    keep_s: float = SPOOL_KEEP_S,
    covered: Callable[[Segment], bool],
) -> list[Segment]:
    """Remove sealed segments that are in the lake (`covered`) and older than `keep_s`."""
    removed: list[Segment] = []
    if not spool.is_dir():
        return removed
    for segment in sealed_segments(spool):
        with contextlib.suppress(FileNotFoundError):
            age_s = now_ms / 1000 - segment.path.stat().st_mtime
            if age_s > keep_s and covered(segment):
                segment.path.unlink()
                removed.append(segment)
    return removed


def folder_bytes(folder: Path) -> int:
    total = 0
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            with contextlib.suppress(FileNotFoundError):
                total += entry.stat().st_size
    return total


def _seal_left_over(fd: int, path: Path) -> Path | None:
    end = count = crc32c = 0
    first_line = b""
    position = 0
    pending = b""  # bytes after the last newline
    while chunk := os.pread(fd, _CHUNK_BYTES, position):
        position += len(chunk)
        whole, newline, pending_now = chunk.rpartition(b"\n")
        if not newline:
            pending += chunk
            continue
        lines = pending + whole + newline
        pending = pending_now
        if not end:
            first_line = lines[: lines.index(b"\n")]
        end += len(lines)
        count += lines.count(b"\n")
        crc32c = _extend(crc32c, lines)
    if not end:
        path.unlink()
        return None
    os.ftruncate(fd, end)
    return _seal(fd, path, _seq_of(first_line), count, crc32c)


def _seq_of(line: bytes) -> int:
    try:
        return msgspec.json.decode(line, type=_Envelope).seq
    except DECODE_ERRORS:
        return 0  # the pipeline quarantines the line; the file must be sealed all the same


def _seal(fd: int, path: Path, first_seq: int, count: int, crc32c: int) -> Path:
    os.fsync(fd)
    sealed = path.with_name(f"{path.stem}.{first_seq}.{count}.{crc32c:08x}.jsonl")
    path.rename(sealed)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return sealed
