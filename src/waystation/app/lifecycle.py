"""Runs one process: start, serve, drain, stop.

SIGTERM (and Ctrl-C) stops accepting, hands back unacknowledged messages and spreads the closes over
`drain_s`; a second one ends at once, which loses nothing that was promised. If the supervisor has
ended, closes are not spread. A signal during the start cancels the start. SIGALRM ends a stop that
hangs for `STOP_PATIENCE_S`.
"""

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import Callable
from typing import Protocol

from .supervisor import SAME_SIGNAL_S
from .supervisor_protocol import Ready, SupervisorLine

STOP_PATIENCE_S = 10.0
# Serving makes few cycles, and a full collection blocks the event loop.
GC_THRESHOLDS = (50_000, 20, 50)
EXIT_AT_ONCE = 128 + signal.SIGTERM


class Runtime(Protocol):
    """The roles of one worker, as a process runs them."""

    async def start(self) -> None:
        """When it returns, all ports accept connections."""
        ...

    async def drain(self, over_s: float) -> None:
        """Accept nothing new, hand back unacknowledged messages, spread the closes."""
        ...

    async def stop(self) -> None:
        """Close everything; also called after a failed start."""
        ...

    def reload(self) -> None:
        """Reload certificates (SIGHUP)."""
        ...


async def live(
    runtime: Runtime,
    *,
    drain_s: float,
    line: SupervisorLine | None = None,
    beat_s: float = 0.0,
    on_ready: Callable[[], None] = lambda: None,
) -> None:
    """Run until a signal or the end of the supervisor. Sends it `Alive` every `beat_s`; 0 is
    never."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    spread_s = drain_s

    told_at = 0.0

    def stop_signal() -> None:
        nonlocal told_at
        if not told.is_set():
            told_at = loop.time()
            told.set()
        elif line is None and loop.time() - told_at >= SAME_SIGNAL_S:
            os._exit(EXIT_AT_ONCE)  # a supervisor kills its workers itself

    def line_readable() -> None:
        nonlocal spread_s
        assert line is not None
        if line.ended():
            loop.remove_reader(line.fileno())
            spread_s = 0.0
            told.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_signal)
    loop.add_signal_handler(signal.SIGHUP, runtime.reload)
    if line is not None:
        loop.add_reader(line.fileno(), line_readable)
    try:
        if not await _start(runtime, told):
            return
        gc.collect()
        gc.freeze()  # objects of the start live until the end: collections skip them
        gc.set_threshold(*GC_THRESHOLDS)
        if line is not None:
            line.report(Ready())
            if beat_s > 0:
                _beat(loop, line, beat_s)
        on_ready()
        await told.wait()
        _end_by_alarm(spread_s + STOP_PATIENCE_S)
        await runtime.drain(spread_s)
    finally:
        _end_by_alarm(STOP_PATIENCE_S)
        await runtime.stop()
        signal.setitimer(signal.ITIMER_REAL, 0)


def _beat(loop: asyncio.AbstractEventLoop, line: SupervisorLine, every_s: float) -> None:
    line.beat()
    loop.call_later(every_s, _beat, loop, line, every_s)


async def _start(runtime: Runtime, told: asyncio.Event) -> bool:
    """Whether the start finished before a stop was requested; raises what the start raises."""
    starting = asyncio.ensure_future(runtime.start())
    telling = asyncio.ensure_future(told.wait())
    try:
        await asyncio.wait({starting, telling}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            return True
    finally:
        telling.cancel()
        starting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await starting
    return False


def _end_by_alarm(after_s: float) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, after_s)
