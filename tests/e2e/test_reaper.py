"""What tests started ends with them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.platform import until

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
TEST = """
import subprocess, threading, time

def start(**options):
    child = subprocess.Popen(["sleep", "600"], **options)
    print("started", child.pid, flush=True)

def test_that_starts_servers():
    start()
    thread = threading.Thread(target=start, kwargs={"start_new_session": True})
    thread.start()
    thread.join()
    time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_servers_end_with_the_process_of_their_tests(how: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "test_servers.py").write_text(TEST)
    options = ("-p", "conftest", "-p", "no:cacheprovider", "-s", "-c", os.devnull)
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, str(tmp_path / "test_servers.py")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as starter:
        assert starter.stdout is not None
        said = (line.split() for line in starter.stdout)
        pids = (words[-1] for words in said if "started" in words)
        servers = [Path("/proc", next(pids)) for _ in range(2)]
        assert all(server.exists() for server in servers)
        starter.send_signal(how)

    until(lambda: not any(map(_is_running, servers)), timeout_s=20)


def _is_running(process: Path) -> bool:
    """One that ended may wait as a zombie for whoever adopted it."""
    try:
        return process.joinpath("stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
