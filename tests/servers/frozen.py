"""A server that stands still: its connections stay open, and nobody answers."""

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def frozen(port: int) -> Generator[None]:
    """Whoever listens on `port` and its children (PostgreSQL has one for each connection)."""
    pids = _listeners(port)
    assert pids, f"nobody listens on {port}"
    stopped: list[int] = []
    try:
        for pid in pids:
            stopped.append(pid)
            os.kill(pid, signal.SIGSTOP)  # the parent first, so that it has no more children
            for child in _children(pid):
                stopped.append(child)
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGSTOP)
        yield
    finally:
        for pid in reversed(stopped):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _children(pid: int) -> list[int]:
    """Of all its threads."""
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (thread / "children").read_text().split()]
    return found


def _listeners(port: int) -> list[int]:
    sockets = _listening(port)
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended, or is somebody else's
            if any(os.readlink(one) in sockets for one in (process / "fd").iterdir()):
                found.append(int(process.name))
    return sorted(found)


def _listening(port: int) -> set[str]:
    sockets: set[str] = set()
    for table in ("tcp", "tcp6"):  # Java listens on both at once
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[1].endswith(f":{port:04X}") and fields[3] == "0A":  # LISTEN
                sockets.add(f"socket:[{fields[9]}]")
    return sockets
