"""Starting, killing and closing a child that claims to be a server."""

import os
import socket
import sys
import time
from pathlib import Path

import pytest

from waystation.client.local_server import (
    PORTS,
    LocalServer,
    ServerDidNotStartError,
    free_port_base,
)

# In one write: of two processes that say it, neither cuts into the other's line.
READY = "import os, sys, time\nos.write(1, f'{sys.argv[1:]}\\nwaystation is ready\\n'.encode())\n"


def server(tmp_path: Path, script: str) -> LocalServer:
    return LocalServer(
        tmp_path,
        options=("--workers", "1"),
        command=(sys.executable, "-c", script),
        port_base=20000,
    )


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_it_waits_for_the_ready_line_and_passes_its_options(tmp_path: Path) -> None:
    with server(tmp_path, READY + "time.sleep(60)") as child:
        pid = child.pid

        assert child.running
        assert child.lines[0] == str(
            ["serve", "--data-dir", str(tmp_path), "--port-base", "20000", "--workers", "1"]
        )
        assert (child.ws_url, child.endpoint_url) == (
            "ws://127.0.0.1:20000",
            "http://127.0.0.1:20002",
        )
        assert (child.relay_url, child.console_url) == (
            "http://127.0.0.1:20001",
            "http://127.0.0.1:20003",
        )
    assert not is_alive(pid)


def test_a_child_that_ends_is_an_error_with_its_last_output(tmp_path: Path) -> None:
    with pytest.raises(ServerDidNotStartError, match=r"(?s)code 3.*why"):
        server(tmp_path, "print('why', flush=True); import time; time.sleep(.2); exit(3)").start()


def test_a_child_that_is_never_ready_is_an_error_and_is_gone(tmp_path: Path) -> None:
    child = server(tmp_path, "import time; time.sleep(60)")

    with pytest.raises(ServerDidNotStartError, match="not ready in time"):
        child.start(timeout_s=0.2)
    assert not child.running


def test_a_kill_takes_its_children_along_and_it_can_start_again(tmp_path: Path) -> None:
    script = "import os, time; print(os.fork(), flush=True)\n" + READY + "time.sleep(60)"
    child = server(tmp_path, script)
    child.start()
    pids = {int(line) for line in child.lines if line.isdecimal()} - {0}
    child.kill()
    try:
        child.start()
        assert child.running
    finally:
        child.kill()

    deadline = time.monotonic() + 5
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)  # an orphan is reaped by whoever inherits it
    stat = [Path(f"/proc/{pid}/stat") for pid in pids]
    assert all(not path.exists() or path.read_text().split()[2] == "Z" for path in stat)


def test_stop_gives_the_exit_code(tmp_path: Path) -> None:
    script = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(4))\n"
    child = server(tmp_path, script + READY + "time.sleep(60)")
    child.start()

    assert child.stop() == 4


def test_one_that_has_ended_is_not_killed_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number may be somebody else's by now."""
    script = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(0))\n"
    child = server(tmp_path, script + READY + "time.sleep(60)")
    child.start()
    child.stop()
    killed: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, _signal: killed.append(group))

    child.close()

    assert killed == []


def test_a_port_base_has_room_for_every_port() -> None:
    base = free_port_base()

    for port in range(base, base + PORTS):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
    assert 10_000 <= base < 32_000
