"""Memory-mapped journal file: writing a record copies bytes and needs no system call.

Copied bytes belong to the file at once and survive the death of the process, but not a power
failure; the `fsync` journal writes and flushes instead.

Rule 1: the first page names the active one of two halves, by a generation that only grows. When a
        half is full, unsettled records are copied to the other half, and then the page names that
        one. Reusing the same two halves saves the kernel from allocating pages.
Rule 2: checksums begin with a seed of the generation, and a zero head follows each record: bytes
        of an older generation are never read as a record.
Rule 3: all space is reserved in advance, because a full disk ends a process that writes to a mapped
        page (SIGBUS). So files are mapped only where a reservation holds (`MAPPABLE`).
"""

import mmap
import os
import secrets
import struct
from collections.abc import Iterable
from typing import Final

from waystation.push.connect.journal_records import (
    HEAD,
    MAP_MAGIC,
    MAP_PAGE,
    MAP_PAGE_BYTES,
    NOTHING,
    crc32c,
    seed_of,
)

# File systems that never move written data, so that reserved blocks stay ours.
MAPPABLE: Final = frozenset({"ext2", "ext3", "ext4", "xfs", "tmpfs"})
_HEAD_BYTES: Final = HEAD.size
_put_head: Final = HEAD.pack_into
_put_nothing: Final = struct.Struct(f"{_HEAD_BYTES}x").pack_into
_GENERATION: Final = slice(8, 16)  # its bytes in `MAP_PAGE`


class JournalMap:
    """A journal mapped into an empty file. Raises `OSError` if the disk is full."""

    __slots__ = ("_at", "_end", "_generation", "_map", "_salt", "_seed", "half_bytes")

    def __init__(self, fd: int, half_bytes: int, bodies: Iterable[bytes] = ()) -> None:
        self.half_bytes = half_bytes
        size = MAP_PAGE_BYTES + 2 * half_bytes
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError:
            os.ftruncate(fd, 0)  # ext4 keeps a partial reservation: zeros before our records
            raise
        self._map = mmap.mmap(fd, size)
        self._salt = secrets.randbits(32)
        self._generation = -1
        self._seed = self._at = self._end = 0
        written = self.renew(bodies)
        assert written, "the caller makes a half large enough for `bodies`"
        self._map[: MAP_PAGE.size] = MAP_PAGE.pack(
            MAP_MAGIC, self._generation, self._salt, half_bytes
        )

    def append(self, body: bytes) -> bool:
        """Append a record. False: the active half is full."""
        at, length = self._at, len(body)
        start = at + _HEAD_BYTES
        end = start + length
        if end > self._end:
            return False
        # The head is written last: until then readers see a zero head, the end.
        memory = self._map
        memory[start:end] = body
        _put_nothing(memory, end)
        _put_head(memory, at, length, crc32c(self._seed, body))
        self._at = end
        return True

    def renew(self, bodies: Iterable[bytes]) -> bool:
        """Switch to the other half, filled with `bodies`. False: they need more than half of it."""
        generation = self._generation + 1
        seed = seed_of(generation, self._salt)
        start = MAP_PAGE_BYTES + generation % 2 * self.half_bytes
        data = b"".join(HEAD.pack(len(body), crc32c(seed, body)) + body for body in bodies)
        end = start + len(data)
        if len(data) > self.half_bytes // 2:
            return False
        self._map[start : end + len(NOTHING)] = data + NOTHING
        if self._generation >= 0:
            self._map[_GENERATION] = generation.to_bytes(8)
        self._generation, self._seed = generation, seed
        self._at, self._end = end, start + self.half_bytes - len(NOTHING)
        return True

    def close(self) -> None:
        self._map.close()
