"""The journal's file as memory: writing a record copies bytes and does not call the kernel.

What is copied there belongs to the file at once; the death of the process loses none of it. (A loss
of power may: a journal that is to survive that is written and flushed.)

Rule 1: the first page names one of two halves, by a generation that only grows. When a half is
        full, what is live goes into the other one, and then the page names that. To use the same
        two halves again and again spares the kernel from making pages.
Rule 2: checksums begin with a seed of the generation, and a record is followed by an empty head:
        what an older generation left behind is never taken for a record.
Rule 3: all room is reserved before it is used. For want of room a mapped page does not return an
        error but kills, so we map only where a reservation holds (`MAPPABLE`).
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

MAPPABLE: Final = frozenset({"ext2", "ext3", "ext4", "xfs", "tmpfs"})  # those that never move data
_HEAD_BYTES: Final = HEAD.size  # as many as NOTHING has
_put_head: Final = HEAD.pack_into
_put_nothing: Final = struct.Struct(f"{_HEAD_BYTES}x").pack_into
_GENERATION: Final = slice(8, 16)  # in the page


class JournalMap:
    """An empty journal in an empty file. Raises `OSError` if there is no room for it."""

    __slots__ = ("_at", "_end", "_generation", "_map", "_salt", "_seed", "half_bytes")

    def __init__(self, fd: int, half_bytes: int, bodies: Iterable[bytes] = ()) -> None:
        self.half_bytes = half_bytes
        size = MAP_PAGE_BYTES + 2 * half_bytes
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError:
            os.ftruncate(fd, 0)  # ext4 keeps what it had reserved: zeros in front of our records
            raise
        self._map = mmap.mmap(fd, size)
        self._salt = secrets.randbits(32)
        self._generation = -1
        self._seed = self._at = self._end = 0
        written = self.renew(bodies)
        assert written, "whoever makes it knows how much goes in"
        self._map[: MAP_PAGE.size] = MAP_PAGE.pack(
            MAP_MAGIC, self._generation, self._salt, half_bytes
        )

    def append(self, body: bytes) -> bool:
        """Whether there was room in this half."""
        at, length = self._at, len(body)
        start = at + _HEAD_BYTES
        end = start + length
        if end > self._end:
            return False
        # The head comes last: until then there is nothing.
        memory = self._map
        memory[start:end] = body
        _put_nothing(memory, end)
        _put_head(memory, at, length, crc32c(self._seed, body))
        self._at = end
        return True

    def renew(self, bodies: Iterable[bytes]) -> bool:
        """Go on in the other half with these; not if they would fill most of it."""
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
