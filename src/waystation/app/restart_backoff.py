"""Restart delay of one worker.

A worker that ran for `LIVED_S` is restarted at once. One that ends earlier, several times in a
row, waits twice as long each time, up to `DELAY_MAX_S`, so that a broken installation neither
burns the CPU nor fills the log. Restarts never stop: a full disk or an unreachable store recovers.
"""

LIVED_S = 10.0  # a worker that ran this long starts with no delay again
FIRST_DELAY_S = 0.5
DELAY_MAX_S = 30.0


class RestartBackoff:
    """Counts the early ends of one worker and computes its restart delay."""

    __slots__ = ("_born", "_young_deaths")

    def __init__(self) -> None:
        self._born = 0.0
        self._young_deaths = 0

    @property
    def young_deaths(self) -> int:
        return self._young_deaths

    def born(self, mono: float) -> None:
        self._born = mono

    def died(self, mono: float) -> float:
        """The seconds to wait before the restart."""
        if mono - self._born >= LIVED_S:
            self._young_deaths = 0
            return 0.0
        self._young_deaths += 1
        if self._young_deaths == 1:
            return 0.0
        return min(FIRST_DELAY_S * 2 ** (self._young_deaths - 2), DELAY_MAX_S)
