"""The wall clock of a server's processes, shifted by what a file says.

Python imports this before anything of a process when its folder is in PYTHONPATH. The file that
WALL_CLOCK_SHIFT names holds nanoseconds as eight bytes; who writes there sets the clock of all
processes forth or back at once. Monotonic time is left alone, as when an operator sets a clock.
"""

import mmap
import os
import struct
import time

_shift = struct.Struct("<q")


def _shift_wall_clock(path: str) -> None:
    with open(path, "rb") as file:
        memory = mmap.mmap(file.fileno(), _shift.size, access=mmap.ACCESS_READ)
    true_ns = time.time_ns

    def time_ns() -> int:
        return true_ns() + _shift.unpack(memory)[0]

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9


if _path := os.environ.get("WALL_CLOCK_SHIFT"):
    _shift_wall_clock(_path)
