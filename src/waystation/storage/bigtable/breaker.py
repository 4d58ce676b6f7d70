"""When to stop asking a Bigtable that fails: the circuit breaker of §6.2.

Rule 1: `failures_max` failures in a row open it, and every call fails at once for `open_s`.
Rule 2: after that calls go through again. The first that succeeds closes it for good, the first
        that fails opens it anew.
Rule 3: only what says that the service is in trouble counts; a refused request is an answer.
"""

from waystation.base.clock import Clock

FAILURES_MAX = 5
OPEN_S = 30.0


class Breaker:
    def __init__(
        self, clock: Clock, *, failures_max: int = FAILURES_MAX, open_s: float = OPEN_S
    ) -> None:
        self._clock = clock
        self._failures_max = failures_max
        self._open_s = open_s
        self._failures = 0
        self._open_until_mono = 0.0
        self.opened = 0

    def wait_s(self) -> float:
        """How long calls are still refused; 0: they may go through."""
        if self._failures < self._failures_max:
            return 0.0
        return max(0.0, self._open_until_mono - self._clock.mono())

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self) -> None:
        if self.wait_s():
            return  # a call that was under way when it opened
        self._failures = min(self._failures + 1, self._failures_max)
        if self._failures == self._failures_max:
            self._open_until_mono = self._clock.mono() + self._open_s
            self.opened += 1
