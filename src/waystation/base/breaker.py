"""Circuit breaker: stops calling a service that fails.

Rule 1: `failures_max` failures in a row open it, and every call fails at once for `open_s`.
Rule 2: after that, calls go through again. The first success closes it; the first failure opens
        it again, for twice as long, up to `open_most_s`.
Rule 3: only failures of the service count; a refused request is an answer.
"""

from waystation.base.clock import Clock

FAILURES_MAX = 5
OPEN_S = 30.0


class Breaker:
    def __init__(
        self,
        clock: Clock,
        *,
        failures_max: int = FAILURES_MAX,
        open_s: float = OPEN_S,
        open_most_s: float = OPEN_S,
        asked_most_s: float = OPEN_S,
    ) -> None:
        self._clock = clock
        self._failures_max = failures_max
        self._first_open_s = open_s
        self._open_s = open_s  # the next time
        self._open_most_s = max(open_s, open_most_s)
        self._asked_most_s = max(self._open_most_s, asked_most_s)
        self._failures = 0
        self._open_until_mono = 0.0
        self.opened = 0

    def wait_s(self) -> float:
        """Seconds for which calls are still refused; 0: they may go through."""
        if self._failures < self._failures_max:
            return 0.0
        return max(0.0, self._open_until_mono - self._clock.mono())

    @property
    def on_trial(self) -> bool:
        """The open time is over, and no call has succeeded or failed since."""
        return self._failures >= self._failures_max and not self.wait_s()

    def succeeded(self) -> None:
        self._failures = 0
        self._open_s = self._first_open_s

    def failed(self, *, retry_after_s: float = 0.0) -> None:
        """`retry_after_s`: the service said when to ask again, so one failure opens it, for that
        long up to `asked_most_s`."""
        if self.wait_s():
            return  # a call that was under way when it opened
        self._failures = min(self._failures + 1, self._failures_max)
        if retry_after_s:
            self._failures = self._failures_max
        if self._failures == self._failures_max:
            open_s = max(self._open_s, min(retry_after_s, self._asked_most_s))
            self._open_until_mono = self._clock.mono() + open_s
            self._open_s = min(self._open_s * 2, self._open_most_s)
            self.opened += 1
