"""Limits rows per second over a run of batches, so that a job does not overload a serving store."""

import time


class RateLimit:
    def __init__(self, rate_per_s: float) -> None:
        """0: unlimited."""
        self._rate_per_s = rate_per_s
        self._free_at_mono = time.monotonic()

    def wait(self, count: int) -> None:
        """Called before a batch: sleeps until the time of earlier batches has passed."""
        if self._rate_per_s <= 0:
            return
        mono = time.monotonic()
        if mono < self._free_at_mono:
            time.sleep(self._free_at_mono - mono)
        self._free_at_mono = max(mono, self._free_at_mono) + count / self._rate_per_s
