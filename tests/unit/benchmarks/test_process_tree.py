"""What /proc says about processes that we know."""

import os
import subprocess
import sys

from benchmarks.process_tree import cpu_s, pss_kib, tree, usage

BUSY = "import time; t=time.process_time()\nwhile time.process_time()-t < 0.3: pass\n"


def test_a_tree_holds_children_of_children() -> None:
    inner = "print('up', flush=True); input()"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    child = subprocess.Popen(
        [sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdout.readline()
        pids = tree([child.pid])
        assert child.pid in pids
        assert len(pids) == 2
        assert usage([child.pid]).processes == 2
    finally:
        child.communicate("\n", timeout=10)

    assert tree([child.pid]) == set()


def test_cpu_seconds_grow_with_work() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", BUSY + "print('done', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    try:
        child.stdout.readline()
        assert 0.25 <= cpu_s([child.pid]) <= 5
    finally:
        child.communicate("\n", timeout=10)


def test_memory_of_this_process_is_some_megabytes() -> None:
    assert pss_kib([os.getpid()]) > 1024
    assert pss_kib([2**22 + 1]) == 0
