"""`waystation party join` as people type it."""

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.e2e.presence.node import Node

pytestmark = pytest.mark.e2e
PATIENCE_S = 30.0


class Terminal:
    """The command, running."""

    def __init__(self, node: Node, *arguments: str) -> None:
        self._child = subprocess.Popen(
            [
                *(sys.executable, "-m", "waystation.cli.main", "party", "join"),
                *arguments,
                *("--at", node.address),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "NO_COLOR": "1"},
        )

    def line(self) -> str:
        assert self._child.stdout is not None
        return self._child.stdout.readline().rstrip("\n")

    def until(self, event: str) -> dict[str, Any]:
        """The next event of that name of `--json`."""
        for _ in range(50):
            line = json.loads(self.line())
            if line["event"] == event:
                return line
        raise AssertionError(f"no {event}")

    def end(self, number: int = signal.SIGINT) -> tuple[int, str, str]:
        self._child.send_signal(number)
        out, err = self._child.communicate(timeout=PATIENCE_S)
        return self._child.returncode, out, err

    def kill(self) -> None:
        if self._child.poll() is None:
            self._child.kill()
        self._child.communicate()


def test_two_terminals_that_say_the_same_name_meet(node: Node) -> None:
    party = f"lobby-{node.port}"
    first = Terminal(node, party, "--client", "1", "--json")
    second = None
    try:
        assert first.until("snapshot")["present"] == []
        second = Terminal(node, party, "--client", "2")
        assert second.line().startswith(f"party {party} at 127.0.0.1:")
        while (line := second.line()) != "joined; 1 other here":
            assert line in {"connecting", "single"}
        joined = first.until("joined")
        assert joined["who"]["client_id"] == "2"
        code, out, err = second.end()
        assert (code, err) == (0, "")
        assert out.splitlines()[-1] == "left"

        assert first.until("left")["reason"] == 0
        assert first.end()[0] == 0
    finally:
        first.kill()
        if second is not None:
            second.kill()


def test_a_refusal_is_one_sentence_on_stderr(node: Node) -> None:
    """The id of a device that is in use by another stream."""
    first = Terminal(node, "77", "--client", "1", "--session", "5", "--json")
    second = None
    try:
        first.until("snapshot")
        second = Terminal(node, "77", "--client", "1", "--session", "5")
        assert second._child.wait(PATIENCE_S) == 1
        assert second._child.stderr is not None
        complaint = second._child.stderr.read()

        assert complaint == "waystation: the broker refused: SESSION_ID_IN_USE\n"
    finally:
        first.kill()
        if second is not None:
            second.kill()


def test_who_is_no_longer_read_leaves(node: Node) -> None:
    """`waystation party join | head`: nobody waits for a session that nobody looks at."""
    watcher = Terminal(node, "78", "--client", "1", "--json")
    unread = None
    try:
        watcher.until("snapshot")
        unread = Terminal(node, "78", "--client", "2", "--json")
        unread.until("snapshot")
        watcher.until("joined")
        assert unread._child.stdout is not None
        unread._child.stdout.close()
        third = Terminal(node, "78", "--client", "3", "--for", "0.1")
        assert third._child.wait(PATIENCE_S) == 0
        third.kill()

        while watcher.until("left")["who"]["client_id"] != "2":
            pass
        assert unread._child.wait(PATIENCE_S) == 0
    finally:
        watcher.kill()
        if unread is not None:
            unread._child.kill()
            unread._child.wait()
            assert unread._child.stderr is not None
            unread._child.stderr.close()


@pytest.mark.parametrize(
    "wrong, code, text",
    [
        (("--token", "/nowhere/token"), 1, "--token: [Errno 2]"),
        (("--ca", "/nowhere/ca.pem"), 1, "--ca: /nowhere/ca.pem"),
        (("--at", "127.0.0.1:99999"), 2, "127.0.0.1:99999 is not HOST:PORT"),
        (("--at", ":50051"), 2, ":50051 is not HOST:PORT"),
        (("--tls",), 1, "no broker at 127.0.0.1:"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(
    node: Node, wrong: tuple[str, ...], code: int, text: str
) -> None:
    terminal = Terminal(node, "79", *wrong)
    _, complaint = terminal._child.communicate(timeout=PATIENCE_S)

    assert terminal._child.returncode == code
    assert complaint.startswith(f"waystation: {text}")
    assert len(complaint.splitlines()) == 1
