"""An event loop with simulated time, which jumps to the next timer when nothing is ready.

Rule 1: time does not pass while a callback is ready; then it jumps to the next timer. So a run
        takes as long as its work, and its timing does not depend on the machine.
Rule 2: there is no outside input: no descriptors, threads or signals. Executor calls run at once,
        in place.
Rule 3: if nothing is ready and no timer is set, the run raises `DeadlockError`. It also raises
        after its time limit, and after `TURNS_MAX` turns without progress of time.
Rule 4: an unhandled exception fails the run, also in background tasks.

If all randomness comes from one `random.Random`, the same seed gives the same run.
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
    """The simulation cannot continue."""


class DeadlockError(SimulationError):
    """All tasks wait, and no timer is set."""


class SimClock:
    """Wall and monotonic clock of a simulation. `skewed` returns a clock that is ahead or
    behind."""

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
    """Wall time with a constant error; monotonic time is shared."""

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
    """Replaces the loop's selector: advances the clock instead of waiting."""

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
    """The standard loop's queue and timers, without operating system resources."""

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
        """Restarts the count of turns."""
        self._selector.turns = 0

    # Methods that the standard loop expects from its selector implementation.

    def _process_events(self, event_list: list[Any]) -> None: ...

    def _write_to_self(self) -> None: ...


class NodeTasks(Tasks):
    """Tasks that can all be cancelled between two steps, in the order of their start."""

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
    """Run `coro` to its end, for at most `limit_s` of simulated time, and cancel remaining
    tasks."""
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
    """Cancels remaining tasks, in an order that does not depend on addresses."""
    loop.rested()
    left = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
