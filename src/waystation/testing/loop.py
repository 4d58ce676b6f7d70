"""An event loop whose time jumps: a minute passes as soon as nothing is left to do in it.

Rule 1: time stands still while anything is ready and then moves to the next timer at once, so a
        run takes as long as its work and nothing in it can be too early or too late by accident.
Rule 2: nothing comes from outside: no descriptors, no threads, no signals. What asks for an
        executor runs at once, in place.
Rule 3: when nothing is ready and no timer is set nobody will ever go on: that is a deadlock and
        raises. So do a world that outlives its limit and one that is busy without time passing.
Rule 4: an exception that nobody took fails the run, even if it happened in the background.

With one `random.Random` handed to everything that draws, the same seed gives the same run.
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

from waystation.base.tasks import Tasks

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EPOCH_MS = 1_760_000_000_000
TURNS_MAX = 100_000  # of the loop without time passing


class SimulationError(Exception):
    """The simulated world cannot go on."""


class DeadlockError(SimulationError):
    """Everything waits, and for nothing that will ever happen."""


class SimClock:
    """Both clocks of a simulated world. `skewed` gives a node one that is ahead or behind."""

    __slots__ = ("elapsed_s", "start_ms")

    def __init__(self, start_ms: int = EPOCH_MS) -> None:
        self.start_ms = start_ms
        self.elapsed_s = 0.0

    def now_ms(self) -> int:
        return self.start_ms + int(self.elapsed_s * 1_000)

    def now_us(self) -> int:
        return self.start_ms * 1_000 + int(self.elapsed_s * 1_000_000)

    def now_ns(self) -> int:
        return self.now_us() * 1_000

    def mono(self) -> float:
        return self.elapsed_s

    def skewed(self, skew_ms: int) -> "SkewedClock":
        return SkewedClock(self, skew_ms)


class SkewedClock:
    """Wall time that is off by a constant; monotonic time is everybody's."""

    __slots__ = ("_base", "_skew_ms")

    def __init__(self, base: SimClock, skew_ms: int) -> None:
        self._base = base
        self._skew_ms = skew_ms

    def now_ms(self) -> int:
        return self._base.now_ms() + self._skew_ms

    def now_us(self) -> int:
        return self._base.now_us() + self._skew_ms * 1_000

    def now_ns(self) -> int:
        return self.now_us() * 1_000

    def mono(self) -> float:
        return self._base.elapsed_s


class _Jumper:
    """Stands where a loop has its selector: instead of waiting, it moves the clock."""

    __slots__ = ("_clock", "_until_s", "turns")

    def __init__(self, clock: SimClock, until_s: float) -> None:
        self._clock = clock
        self._until_s = until_s
        self.turns = 0

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise DeadlockError("nothing is ready, and no timer is set")
        if timeout > 0:
            self.turns = 0
            self._clock.elapsed_s += timeout
            if self._clock.elapsed_s > self._until_s:
                raise SimulationError(f"still going on after {self._until_s:.0f} s")
            return []
        self.turns += 1
        if self.turns > TURNS_MAX:
            raise SimulationError("busy without end, and no time passes")
        return []


class SimLoop(asyncio.BaseEventLoop):
    """The standard loop's queue and timers, and none of its operating system."""

    _selector: _Jumper

    def __init__(self, clock: SimClock, *, until_s: float) -> None:
        super().__init__()
        self._clock = clock
        self._selector = _Jumper(clock, until_s)
        self.failures: list[BaseException | str] = []
        self.set_exception_handler(_note_failure)

    def time(self) -> float:
        return self._clock.elapsed_s

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> "asyncio.Future[T]":
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as exc:
            future.set_exception(exc)
        return future

    def rested(self) -> None:
        """What follows is counted anew."""
        self._selector.turns = 0

    # What the standard loop asks of its selector's side.

    def _process_events(self, event_list: list[Any]) -> None: ...

    def _write_to_self(self) -> None: ...


class NodeTasks(Tasks):
    """Tasks that can all be ended between two steps, in the order in which they began."""

    def __init__(self, on_failure: Callable[[str, BaseException], None]) -> None:
        super().__init__(on_failure)
        self._in_order: dict[asyncio.Task[Any], None] = {}

    def adopt(self, name: str, task: asyncio.Task[Any]) -> None:
        super().adopt(name, task)
        self._in_order[task] = None
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._in_order.pop(task, None)

    def kill(self) -> None:
        self._closed = True
        for task in list(self._in_order):
            task.cancel()


def _note_failure(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    assert isinstance(loop, SimLoop)
    loop.failures.append(context.get("exception") or str(context.get("message")))


def run_sim(
    coro: Coroutine[Any, Any, T],
    clock: SimClock | None = None,
    *,
    limit_s: float = 7_200.0,
    loop_class: type[SimLoop] = SimLoop,
) -> T:
    """Run `coro` to its end, `limit_s` of simulated time at most, and clear up behind it."""
    clock = clock if clock is not None else SimClock()
    loop = loop_class(clock, until_s=clock.elapsed_s + limit_s)
    main = loop.create_task(coro)
    try:
        result = loop.run_until_complete(main)
    finally:
        _clear_up(loop)
        loop.close()
    for failure in loop.failures:
        if isinstance(failure, BaseException):
            raise failure
        raise SimulationError(failure)
    return result


def _clear_up(loop: SimLoop) -> None:
    """Whatever is left is cancelled, in an order that does not depend on addresses."""
    loop.rested()
    left = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
