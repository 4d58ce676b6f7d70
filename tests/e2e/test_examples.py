"""Every example runs, and says at its end what it set out to show."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.platform import PUSH_ROLES
from waystation.client.local_server import LocalServer

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WITH_A_BROWSER = {"notify_a_browser"}  # tests/e2e/firefox/test_example.py runs it
WITH_NODE = {"party_in_node"}  # tests/e2e/presence/test_foreign_clients.py runs it
LAST_WORDS = {
    "send_from_your_backend": "subscribed now: ada",
    "slow_user_agent": "reader: all 300 arrived",
    "survive_a_restart": "after the restart: all of them arrived again",
    "write_without_accounts": "alice reads: yes, both arrived",
}
WITH_A_SERVER_OF_THEIR_OWN = {"survive_a_restart", "write_without_accounts"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    data_dir = tmp_path_factory.mktemp("examples") / "data"
    with LocalServer(data_dir, roles=PUSH_ROLES) as server:
        yield server


def test_every_example_is_run_here_and_has_a_readme() -> None:
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir()} - {"__pycache__"}

    assert folders == LAST_WORDS.keys() | WITH_A_BROWSER | WITH_NODE
    for name in folders:
        assert (EXAMPLES / name / "README.md").read_text().startswith("# ")
        assert f"]({name}/)" in (EXAMPLES / "README.md").read_text()


@pytest.mark.parametrize("name", LAST_WORDS)
def test_an_example_runs_to_its_end(name: str, server: LocalServer) -> None:
    needs_server = name not in WITH_A_SERVER_OF_THEIR_OWN
    done = subprocess.run(
        [sys.executable, EXAMPLES / name / "run.py", *([server.ws_url] if needs_server else [])],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert LAST_WORDS[name] in done.stdout.splitlines()[-1]
    assert done.stderr == ""
