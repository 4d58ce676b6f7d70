"""Finds stalled workers: those whose last `Alive` message is older than a limit.

Rule 1: a ready worker sends `Alive` four times within the limit. A worker silent for longer is
        stalled: stopped by a signal, or in a call that does not return. The kernel still gives
        it new connections, so it must be killed.
Rule 2: a worker that never sent `Alive` is not watched.
Rule 3: a watchdog that was itself paused gives all workers the whole limit again.

A core: takes times, returns names; no clock and no processes.
"""

from typing import Final

BEATS: Final = 4  # within the limit


def beat_s(limit_s: float) -> float:
    """The interval at which a worker sends `Alive`."""
    return limit_s / BEATS


class Watchdog:
    """Records when each worker was last heard; a limit of 0 watches none."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._heard: dict[str, float] = {}  # worker -> when it spoke last
        self._looked_at = float("-inf")

    def heard(self, worker: str, now: float) -> None:
        if self._limit_s > 0:
            self._heard[worker] = now

    def forget(self, worker: str) -> None:
        """Stop watching a worker that has ended or is being killed."""
        self._heard.pop(worker, None)

    def stalled(self, now: float) -> list[tuple[str, float]]:
        """Names of stalled workers and their silence in seconds. Call after all received messages
        went to `heard`."""
        late = now - self._looked_at > 2 * beat_s(self._limit_s)
        self._looked_at = now
        if late:
            self._heard = dict.fromkeys(self._heard, now)
        return [
            (worker, now - at) for worker, at in self._heard.items() if now - at > self._limit_s
        ]

    def wake_at(self) -> float | None:
        """When to call `stalled` again."""
        return self._looked_at + beat_s(self._limit_s) if self._heard else None
