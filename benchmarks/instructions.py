"""How many instructions an operation takes, counted by callgrind: a figure that hardly depends on
the machine, or on what else runs there.

The figure is that of the interpreter and the libraries of one environment; compare two checkouts on
one machine (`--against`).
"""

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from waystation.client.local_server import LocalServer

from .checkout import Checkout
from .process_tree import Usage, tree
from .target import serving
from .wire import LoadError

START_TIMEOUT_S = 150.0
MAP_BYTES = 1 << 30  # valgrind cannot map the usual 64 GiB

Count = Callable[[Iterable[int]], Usage]


@contextlib.contextmanager
def counted(
    checkout: Checkout, *roles: str, settings: Mapping[str, str] | None = None
) -> Iterator[tuple[LocalServer, Count]]:
    """A server with one worker under callgrind, and what counts for it in place of `usage`: an
    instruction stands for a microsecond. Counting begins with the first look."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise LoadError("callgrind is not here: install valgrind")
    with tempfile.TemporaryDirectory(prefix="waystation-callgrind-") as where:
        tool = (valgrind, "--tool=callgrind", "--trace-children=yes", "--instr-atstart=no")
        with serving(
            *roles,
            options=("--workers", "1") if "connect" in roles else (),
            settings={"STORE__MAP_BYTES": str(MAP_BYTES), **(settings or {})},
            command=(*tool, f"--callgrind-out-file={where}/%p", *checkout.command),
            start_timeout_s=START_TIMEOUT_S,
        ) as server:
            yield server, lambda roots: _look(roots, Path(where))


def _look(roots: Iterable[int], where: Path) -> Usage:
    pids = tree(roots)
    for pid in pids:
        _control("--dump", pid)
        _control("--instr=on", pid)
    return Usage(executed(where) / 1e6, 0, 0, len(pids))


def executed(where: Path) -> int:
    """Each dump has what was counted since the one before."""
    total = 0
    for dump in where.iterdir():
        for line in dump.read_text(errors="replace").splitlines():
            if line.startswith("totals:"):
                total += int(line.split()[1])
    return total


def _control(what: str, pid: int) -> None:
    done = subprocess.run(
        ("callgrind_control", what, str(pid)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode or "Error" in done.stdout + done.stderr:
        raise LoadError(f"callgrind_control {what}: {(done.stdout + done.stderr).strip()[-300:]}")
