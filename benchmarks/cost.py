"""What a piece of work costs: wall time, and CPU of this process and all below it."""

import os
import sys
import time
from collections.abc import Callable, Mapping

import msgspec

from benchmarks.measurement import Bar, Measurement
from benchmarks.process_tree import Spent, spent


class Cost(msgspec.Struct, frozen=True):
    seconds: float
    cpu_s: float  # none was counted: 0


def cost(work: Callable[[], object]) -> Cost:
    before, wall = spent(os.getpid()), time.perf_counter()
    work()
    seconds = time.perf_counter() - wall
    return Cost(seconds, between(before, spent(os.getpid())))


def between(before: Mapping[int, Spent], after: Mapping[int, Spent]) -> float:
    """CPU seconds of all processes from one look to the next. One that has ended meanwhile is told
    by its parent, with what it had used before; workers of Spark, whose parent does not care how
    they end, are told by nobody."""
    total = 0.0
    ended = {pid: one for pid, one in after.items() if one.ended_s > 0}
    for pid, one in after.items():
        known = before.get(pid)
        total += one.own_s - (known.own_s if known else 0.0)
        total += one.ended_s - (known.ended_s if known else 0.0)
    for pid, one in before.items():
        if pid in after or one.parent not in ended:
            continue
        parent = before.get(one.parent)
        told_s = ended[one.parent].ended_s - (parent.ended_s if parent else 0.0)
        if told_s >= one.own_s:
            total -= one.own_s + one.ended_s
    return total


def contest(rivals: Mapping[str, Callable[[], object]], rounds: int = 2) -> dict[str, Cost]:
    """The least that each rival needed, of time and of CPU, in interleaved rounds after one that
    does not count: in it classes are loaded and code is compiled. Other work on the machine can
    only add to a figure."""
    least: dict[str, Cost] = {}
    for number in range(rounds + 1):
        for name, work in rivals.items():
            took = cost(work)
            if number:
                best = least.get(name, took)
                least[name] = Cost(min(took.seconds, best.seconds), min(took.cpu_s, best.cpu_s))
    return least


def told(
    scenario: str,
    operations: int,
    took: Cost,
    *,
    bars: tuple[Bar, ...] = (),
    notes: str = "",
    operation: str = "event",
) -> Measurement:
    """As a row of the report; said at once too, because a long run may be given up."""
    shown = "; ".join(map(str, bars))
    used = f", {took.cpu_s:.2f} s of CPU" if took.cpu_s else ""
    print(
        f"{scenario}: {took.seconds:.2f} s{used}{shown and f'; {shown}'}",
        file=sys.stderr,
        flush=True,
    )
    return Measurement(
        scenario=scenario,
        operation=operation,
        operations=operations,
        seconds=took.seconds,
        cpu_us=took.cpu_s * 1e6 / operations if took.cpu_s else None,
        notes=notes,
        bars=bars,
    )


def size(count: int) -> str:
    return f"{count / 1e6:.3g} M events"
