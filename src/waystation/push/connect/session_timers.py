"""Timers of all sessions of a worker, driven by one timer of the event loop.

An item is never woken early, and at most one tick of the wheel plus one loop turn late. The loop's
timer fires for the earliest item, and at least once a second while there are items, because the
given clock decides what is due, not the loop's. One turn wakes at most `WAKES_MAX` items; the next
turn continues.

A tick is long because timers run for seconds and minutes, and items woken together cost less each.
One turn of the wheel covers the usual ping interval, so an entry is visited once.
"""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from waystation.base.clock import Clock
from waystation.base.tasks import each, told_to
from waystation.base.timer_wheel import TimerWheel

TICK_S = 0.25
WHEEL_SLOTS = 2048
WAKES_MAX = 1000
FIRE_EVERY_S = 1.0

T = TypeVar("T")


class SessionTimers(Generic[T]):
    def __init__(
        self, clock: Clock, loop: asyncio.AbstractEventLoop, wake: Callable[[T, float], None]
    ) -> None:
        """`wake(item, mono)` may set the item's next time."""
        self._clock = clock
        self._loop = loop
        self._wake = wake
        self._wheel: TimerWheel[T] = TimerWheel(TICK_S, WHEEL_SLOTS, clock.mono())
        self._handle: asyncio.TimerHandle | None = None
        self.fires_at = 0.0

    def __len__(self) -> int:
        return len(self._wheel)

    def set(self, wake_at: float, item: T) -> int:
        """Returns a handle for `cancel`."""
        timer = self._wheel.add(wake_at, item)
        if self._handle is None or wake_at < self.fires_at:
            self._arm()
        return timer

    def cancel(self, timer: int) -> bool:
        """Whether it was still waiting."""
        return self._wheel.cancel(timer)

    def fire(self) -> None:
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
            delay_s = min(max(0.0, next_at - mono), FIRE_EVERY_S)
            self.fires_at = mono + delay_s
            self._handle = self._loop.call_later(delay_s, self.fire)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
