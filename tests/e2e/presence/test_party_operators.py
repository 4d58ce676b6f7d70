"""`waystation party ls|show|kick|close|drain` on the node that `waystation serve` runs."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.platform import Serve

pytestmark = pytest.mark.e2e
WAYSTATION = (sys.executable, "-m", "waystation.cli.main")
PATIENCE_S = 30.0
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    with Serve(tmp_path_factory.mktemp("operators"), roles=("presence",)) as serve:
        yield serve


@pytest.fixture
def party(serve: Serve) -> Command:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*WAYSTATION, "party", *words, "--data-dir", str(serve.data_dir)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    return run


class Member:
    """`party join --json`, which finds the node by its data directory."""

    def __init__(self, data_dir: Path, party: str, client: int) -> None:
        words = ("join", party, "--client", str(client), "--json", "--data-dir", str(data_dir))
        self._child = subprocess.Popen(
            [*WAYSTATION, "party", *words], stdout=subprocess.PIPE, text=True
        )

    def until(self, event: str) -> dict[str, object]:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            told = json.loads(line)
            if told["event"] == event:
                return told
        raise AssertionError(f"the command ended without {event}")

    def __enter__(self) -> "Member":
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.communicate(timeout=PATIENCE_S)


def test_an_operator_sees_and_ends_sessions(serve: Serve, party: Command) -> None:
    with contextlib.ExitStack() as members:
        first = members.enter_context(Member(serve.data_dir, "lobby", 1))
        first.until("snapshot")
        members.enter_context(Member(serve.data_dir, "lobby", 2))
        first.until("joined")

        listed = json.loads(party("ls", "--json").stdout)
        shown = json.loads(party("show", "lobby", "--json").stdout)
        assert listed["total"] == 1
        assert not listed["draining"]
        assert (listed["parties"][0]["clients"], listed["parties"][0]["sessions"]) == (2, 2)
        assert {one["client_id"] for one in shown["sessions"]} == {1, 2}
        assert "2 sessions" in party("show", "lobby").stdout

        kicked = party("kick", "lobby", "2")
        assert (kicked.returncode, kicked.stderr) == (0, "")
        left = first.until("left")
        assert isinstance(left["who"], dict)
        assert left["who"]["client_id"] == "2"
        assert party("kick", "lobby", "2").returncode == 1

        assert party("close", "lobby").returncode == 0
        assert json.loads(party("ls", "--json").stdout)["total"] == 0
        assert "0 sessions" in party("show", "lobby").stdout


def test_an_unknown_party_is_an_error(party: Command) -> None:
    shown = party("show", "never seen")

    assert (shown.returncode, shown.stdout) == (1, "")
    assert "there is no party" in shown.stderr


def test_a_drained_node_says_so_until_it_is_undone(party: Command) -> None:
    assert "drains" in party("drain").stdout
    assert ", draining" in party("ls").stdout

    assert "takes sessions again" in party("drain", "--undo").stdout
    assert ", draining" not in party("ls").stdout


def test_without_a_node_the_command_says_where_it_looked(tmp_path: Path) -> None:
    asked = subprocess.run(
        [*WAYSTATION, "party", "ls", "--data-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )

    assert asked.returncode == 1
    assert f"no presence node runs on {tmp_path}" in asked.stderr


def test_commands_find_a_node_that_listens_on_another_address(tmp_path: Path) -> None:
    """run/serve.json knows the address, not the port alone."""
    node = Serve(
        tmp_path,
        roles=("presence",),
        presence__host="127.0.0.2",
    )
    with node, Member(tmp_path, "lobby", 1) as member:
        member.until("snapshot")
        asked = subprocess.run(
            [*WAYSTATION, "party", "ls", "--data-dir", str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

        assert (asked.returncode, asked.stderr) == (0, "")
        assert "1 party" in asked.stdout


def test_a_wrong_token_is_refused_by_name(serve: Serve, party: Command, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("wrong\n")

    refused = party("ls", "--token", str(token))

    assert refused.returncode == 1
    assert "does not accept the token" in refused.stderr
