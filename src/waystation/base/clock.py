"""Clocks: wall time for people and stores, monotonic time for timers.

Wall time is an `int`, monotonic time a `float`. The two never mix: wall clocks jump, monotonic
clocks do not. Code takes a `Clock` as an argument, so that tests control the time.
"""

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...

    def now_us(self) -> int:
        """Microseconds since the epoch; event times need them to keep their order."""
        ...

    def now_ns(self) -> int:
        """Nanoseconds since the epoch, for what is told of every message: of the system's clock it
        is what costs least. `now_us` is the same moment, rounded down."""
        ...

    def mono(self) -> float:
        """Seconds on a clock that never goes back; its zero means nothing."""
        ...


class SystemClock:
    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def now_us(self) -> int:
        return time.time_ns() // 1_000

    # Themselves: every message asks for them.
    now_ns = staticmethod(time.time_ns)
    mono = staticmethod(time.monotonic)


class ManualClock:
    """A clock for tests that moves only when told to."""

    __slots__ = ("_mono", "_wall_us")

    def __init__(self, *, now_ms: int = 1_700_000_000_000, mono: float = 1_000.0) -> None:
        self._wall_us = now_ms * 1_000
        self._mono = mono

    def now_ms(self) -> int:
        return self._wall_us // 1_000

    def now_us(self) -> int:
        return self._wall_us

    def now_ns(self) -> int:
        return self._wall_us * 1_000

    def mono(self) -> float:
        return self._mono

    def advance(self, seconds: float) -> None:
        """Advance both clocks."""
        assert seconds >= 0, "time does not run backwards; use set_wall_ms for a jump"
        self._mono += seconds
        self._wall_us += round(seconds * 1_000_000)

    def set_wall_ms(self, now_ms: int) -> None:
        """Set the wall clock, as NTP or an operator does; monotonic time stays."""
        self._wall_us = now_ms * 1_000
