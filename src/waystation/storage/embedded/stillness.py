"""The loop stands still while the writer's thread puts its rows in.

Both need Python's lock, and lmdb gives it up for every row, whether the loop reads it or the writer
writes it. On two cores every time wakes the other thread, which mostly finds the lock taken again:
more than one wake-up for each row, a fifth of what a stored notification cost on a quiet machine.
So the loop waits at the end of a turn, for no longer than the rows would have kept it from the
lock, and goes on while the disk flushes.

Rule 1: the loop waits `STILL_MAX_S` at most: beside a long removal it goes on as before.
Rule 2: the writer waits `TURN_MAX_S` at most for the loop's turn to end, then begins without it:
        other processes may be waiting for LMDB's lock, which it holds.
"""

import threading
from typing import Final

STILL_MAX_S: Final = 0.002
TURN_MAX_S: Final = 0.005
ROWS_MIN: Final = 8  # fewer are in before the other thread is awake


class Stillness:
    """For one transaction."""

    __slots__ = ("_began", "_ended")

    def __init__(self) -> None:
        self._began = threading.Lock()
        self._ended = threading.Lock()
        self._began.acquire()
        self._ended.acquire()

    def keep(self) -> None:
        """In the loop; returns at once if the writer is through already."""
        self._began.release()
        self._ended.acquire(timeout=STILL_MAX_S)

    def wait(self) -> None:
        """In the writer's thread, before its rows."""
        self._began.acquire(timeout=TURN_MAX_S)

    def end(self) -> None:
        """In the writer's thread, after them."""
        self._ended.release()
