"""Checks whether the disk and the LMDB map have room for another row.

A delete needs pages too: LMDB copies changed pages and frees the old ones two commits later. So new
rows are refused while a reserve is left, and deletes and sweeps use the reserve.
"""

import os

import lmdb

from waystation.storage.embedded.environment import Environment

_LOOK_AGAIN_S = 1.0
_DISK_NEARLY_FULL_BYTES = 1 << 20
_SMALL_RESERVE_BYTES = 4 << 20  # enough for one sweep portion with every row on its own page


class FreeSpace:
    def __init__(self, env: Environment, *, disk_reserve_bytes: int) -> None:
        self._env = env
        self._disk_reserve_bytes = disk_reserve_bytes
        self.reserve_bytes = max(env.map_bytes // 20, min(env.map_bytes // 4, _SMALL_RESERVE_BYTES))
        self._pages_max = (env.map_bytes - self.reserve_bytes) // env.page_bytes
        self._disk_low = False
        self._look_at = float("-inf")

    def shortage(self, txn: "lmdb.Transaction[bytes]", mono: float) -> str | None:
        """The reason why no row may be added now, or None."""
        if mono >= self._look_at:
            self._look_at = mono + _LOOK_AGAIN_S
            self._disk_low = self._disk_free_bytes() < self._disk_reserve_bytes
        if self._disk_low:
            return "the disk has less free space than store.disk_reserve_bytes"
        # A smaller file cannot be full, so its used pages need not be counted.
        if self._env.lmdb.info()["last_pgno"] < self._pages_max:
            return None
        if self._env.used_pages(txn) < self._pages_max:
            return None
        return "the store has reached store.map_bytes"

    def disk_nearly_full(self) -> bool:
        """Tells a full disk from other I/O errors: LMDB reports a partial write as one."""
        return self._disk_free_bytes() < max(self._disk_reserve_bytes, _DISK_NEARLY_FULL_BYTES)

    def _disk_free_bytes(self) -> int:
        disk = os.statvfs(self._env.path)
        return disk.f_bavail * disk.f_frsize
