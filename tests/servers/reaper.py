"""Ends what the tests started when the test process ends, however that ends.

An interrupted `make test` would leave servers behind: they lead sessions of their own, so Ctrl-C
does not reach them, and a killed pytest runs no fixture's end. PR_SET_PDEATHSIG does not help: it
follows the thread that started a process, and tests start servers in threads that end sooner.

Each test process has one reaper, a program that reads lines `PID START` from a pipe. When the pipe
ends, it kills each process that is still the same, with its group if it leads one.
"""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

_pipes: list[IO[bytes]] = []  # to the reaper, once there is one


def reap_children() -> None:
    """From now on everything that is started through `subprocess` ends with this process."""
    reaper = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert reaper.stdin is not None
    _pipes.append(reaper.stdin)
    reaper.returncode = 0  # it outlives us, so nobody waits for it
    start = subprocess.Popen.__init__

    def start_and_tell(self: "subprocess.Popen[Any]", *args: Any, **options: Any) -> None:
        start(self, *args, **options)
        ends_with_us(self.pid)

    subprocess.Popen.__init__ = start_and_tell


def ends_with_us(pid: int) -> None:
    """For a server that a child of ours started, as pg_ctl does."""
    for pipe in _pipes:
        pipe.write(f"{pid} {_started_at(pid)}\n".encode())
        pipe.flush()


def _started_at(pid: int) -> str:
    """In clock ticks after boot; a later process with the same number has another value."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _kill(pid: int, started_at: str) -> None:
    if not started_at or _started_at(pid) != started_at:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)


def _main() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in [line.split() for line in sys.stdin]:
        _kill(int(line[0]), line[1] if len(line) > 1 else "")


if __name__ == "__main__":
    _main()
