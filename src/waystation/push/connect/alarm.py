"""The timers of all connections of a worker, behind one alarm of the loop.

Rule 1: nobody is woken early; late by at most a tick of the wheel and a turn of the loop.
Rule 2: the alarm rings for the earliest timer, and at least once a second while there is any:
        the clock that was given decides what is due, not the loop's.
Rule 3: a turn wakes at most `WAKES_MAX`; the rest follows in the next.

A tick is as long as nobody minds: timers are there for seconds and minutes, and of those who are
woken together each costs less (a frame of a broadcast 13 us, and 16 with ticks of 50 ms: medians
of five rounds that spread widely). One turn of the wheel holds the usual ping
interval, so that an entry is met once.
"""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from waystation.base.clock import Clock
from waystation.base.tasks import each, told_to
from waystation.base.wheel import Wheel

TICK_S = 0.25
WHEEL_SLOTS = 2048
WAKES_MAX = 1000
RING_EVERY_S = 1.0

T = TypeVar("T")


class Alarm(Generic[T]):
    def __init__(
        self, clock: Clock, loop: asyncio.AbstractEventLoop, wake: Callable[[T, float], None]
    ) -> None:
        """`wake(item, mono)` may set the item's next time."""
        self._clock = clock
        self._loop = loop
        self._wake = wake
        self._wheel: Wheel[T] = Wheel(TICK_S, WHEEL_SLOTS, clock.mono())
        self._handle: asyncio.TimerHandle | None = None
        self.rings_at = 0.0

    def __len__(self) -> int:
        return len(self._wheel)

    def set(self, wake_at: float, item: T) -> int:
        """Returns a handle for `cancel`."""
        timer = self._wheel.add(wake_at, item)
        if self._handle is None or wake_at < self.rings_at:
            self._arm()
        return timer

    def cancel(self, timer: int) -> bool:
        """Whether it was still waiting."""
        return self._wheel.cancel(timer)

    def ring(self) -> None:
        self._handle = None
        mono = self._clock.mono()
        due = self._wheel.advance(mono, WAKES_MAX)
        each(due, lambda item: self._wake(item, mono), told_to(self._loop, "a session's timer"))
        if self._handle is None:
            self._arm()

    def _arm(self) -> None:
        self.close()
        next_at = self._wheel.next_at()
        if next_at is not None:
            mono = self._clock.mono()
            delay_s = min(max(0.0, next_at - mono), RING_EVERY_S)
            self.rings_at = mono + delay_s
            self._handle = self._loop.call_later(delay_s, self.ring)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
