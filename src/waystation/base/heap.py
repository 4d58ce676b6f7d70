"""Giving memory back to the system after a burst.

The C library keeps freed memory for later, also where it lies between things that stay: a thousand
connections that all say something at once leave thousands of holes. `malloc_trim` gives whole
pages of them back. It is glibc's; elsewhere nothing happens.
"""

import asyncio
import ctypes
from collections.abc import Callable


def _find() -> Callable[[], None]:
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return lambda: None
    trim.argtypes = (ctypes.c_size_t,)
    trim.restype = ctypes.c_int
    return lambda: trim(0)


give_back_memory = _find()


class QuietTrim:
    """Gives memory back when a burst is over, and not often.

    `moved` says how much has happened so far. A look at which nothing has moved since the last
    one, after at least `burst` since the last time, is a quiet moment.
    """

    def __init__(self, moved: Callable[[], int], *, burst: int, interval_s: float) -> None:
        self._moved = moved
        self._burst = burst
        self._interval_s = interval_s

    async def run(self) -> None:
        trimmed = seen = 0
        while True:
            await asyncio.sleep(self._interval_s)
            moved = self._moved()
            if moved == seen and moved - trimmed >= self._burst:
                trimmed = moved
                # In a thread: with much memory it takes milliseconds, and lets others run.
                await asyncio.to_thread(give_back_memory)
            seen = moved
