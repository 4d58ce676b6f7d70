"""Which workers no longer answer, from what each says now and then.

Rule 1: a worker that is ready says that its event loop runs, four times within the limit. One that
        was silent for longer than the limit is stalled: stopped by a signal, or in a call that does
        not return. The kernel goes on to give it new connections, so it has to end.
Rule 2: whoever has never said so is not watched.
Rule 3: a watchdog that stood still itself knows nothing of the others: when it goes on, all of them
        get the whole limit again.

No clock and no process in here: times come in, names go out.
"""

from typing import Final

BEATS: Final = 4  # within the limit


def beat_s(limit_s: float) -> float:
    """How often a worker says that it runs."""
    return limit_s / BEATS


class Watchdog:
    """`limit_s` of 0 watches nobody."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._heard: dict[str, float] = {}  # worker -> when it spoke last
        self._looked_at = float("-inf")

    def heard(self, worker: str, now: float) -> None:
        if self._limit_s > 0:
            self._heard[worker] = now

    def forget(self, worker: str) -> None:
        """It has ended, or is about to."""
        self._heard.pop(worker, None)

    def stalled(self, now: float) -> list[tuple[str, float]]:
        """Who was silent for too long, and for how long. Ask once all that was said is `heard`."""
        late = now - self._looked_at > 2 * beat_s(self._limit_s)
        self._looked_at = now
        if late:
            self._heard = dict.fromkeys(self._heard, now)
        return [
            (worker, now - at) for worker, at in self._heard.items() if now - at > self._limit_s
        ]

    def wake_at(self) -> float | None:
        """When to ask again."""
        return self._looked_at + beat_s(self._limit_s) if self._heard else None
