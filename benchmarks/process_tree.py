"""What the processes of a server have used: CPU seconds and memory, read from /proc.

CPU is user + system of every living process of the tree. Memory is PSS: pages that processes share
are counted once, divided among them. Its anonymous part leaves out mapped files, that is the pages
of an embedded store, which the system takes back when it needs them.
"""

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

_SCHEDULED = 2  # the clock of a process that counts user and system time, by the nanosecond


class Usage(msgspec.Struct, frozen=True):
    cpu_s: float
    pss_kib: int
    anonymous_kib: int
    processes: int


class Spent(msgspec.Struct, frozen=True):
    """CPU of a process that lives, and of those of its children that have ended."""

    parent: int
    own_s: float
    ended_s: float


def tree(roots: Iterable[int]) -> set[int]:
    """The roots that are alive, and all their descendants."""
    children: dict[int, list[int]] = {}
    alive: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            fields = _stat(int(entry.name))
            if fields is not None:
                alive.add(int(entry.name))
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: set[int] = set()
    waiting = [pid for pid in roots if pid in alive]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting.extend(children.get(pid, ()))
    return found


def cpu_s(pids: Iterable[int]) -> float:
    total = 0.0
    for pid in pids:
        # How Linux names the clock of another process; /proc/PID/stat has hundredths of a second.
        with contextlib.suppress(OSError):
            total += time.clock_gettime(~pid << 3 | _SCHEDULED)
    return total


def spent(root: int) -> dict[int, Spent]:
    """What every process of a tree has used so far."""
    tick = os.sysconf("SC_CLK_TCK")
    found: dict[int, Spent] = {}
    for pid in tree([root]):
        fields = _stat(pid)
        if fields is not None:
            own, ended = (sum(map(int, fields[at : at + 2])) / tick for at in (11, 13))
            found[pid] = Spent(int(fields[1]), cpu_s([pid]) or own, ended)
    return found


def pss_kib(pids: Iterable[int], part: str = "Pss") -> int:
    """`part` may be `Pss_Anon`, `Pss_File` or `Pss_Shmem` as well."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith(f"{part}:"))
    return total


def usage(roots: Iterable[int]) -> Usage:
    pids = tree(roots)
    return Usage(cpu_s(pids), pss_kib(pids), pss_kib(pids, "Pss_Anon"), len(pids))


def _stat(pid: int) -> list[str] | None:
    """The fields after the command's name, which may itself hold blanks and parentheses."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
