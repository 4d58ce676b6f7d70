"""Returns freed memory to the system after a burst of traffic.

glibc keeps freed memory, also between live objects: a thousand connections that send at once leave
thousands of holes. `malloc_trim` returns whole free pages. Without glibc this does nothing.
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


trim_memory = _find()


class QuietTrim:
    """Trims memory in the first quiet interval after a burst.

    `moved` returns a running total of work. An interval is quiet if the total did not change;
    trimming needs at least `burst` of work since the last trim.
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
                # In a thread: it may take milliseconds, and releases the interpreter lock.
                await asyncio.to_thread(trim_memory)
            seen = moved
