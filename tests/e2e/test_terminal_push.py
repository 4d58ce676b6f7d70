"""`waystation listen` and `waystation send` as people type them, against a real server."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.platform import PUSH_ROLES
from waystation.client.local_server import LocalServer

pytestmark = pytest.mark.e2e

WAYSTATION = [sys.executable, "-m", "waystation.cli.main"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    data_dir = tmp_path_factory.mktemp("terminal") / "data"
    with LocalServer(data_dir, roles=PUSH_ROLES, options=("--workers", "1")) as server:
        yield server


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A home of one's own, so that nothing of the person who runs the tests is touched."""
    return {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")}


class Listener:
    """A running `waystation listen --json`."""

    def __init__(self, server: LocalServer, env: dict[str, str], *options: str) -> None:
        self._child = subprocess.Popen(
            [*WAYSTATION, "listen", "--url", server.ws_url, "--json", *options],
            env=env,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.subscribed = self.line()

    def line(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        return json.loads(self._child.stdout.readline())

    def leave(self) -> None:
        """Whoever read its lines has gone."""
        assert self._child.stdout is not None
        self._child.stdout.close()

    def wait(self) -> int:
        return self._child.wait(20)

    def __enter__(self) -> "Listener":
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.wait()
        assert self._child.stdout is not None
        self._child.stdout.close()


def send(env: dict[str, str], *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*WAYSTATION, "send", *words],
        env=env,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_what_is_sent_is_printed(server: LocalServer, env: dict[str, str]) -> None:
    with Listener(server, env, "--count", "3") as listener:
        endpoint = listener.subscribed["endpoint"]
        done = send(env, endpoint, "grüße")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"{server.endpoint_url}/m/")
        assert listener.line()["text"] == "grüße"
        assert send(env, endpoint, "-", stdin="from a pipe").returncode == 0
        assert listener.line()["text"] == "from a pipe"
        assert send(env, endpoint).returncode == 0
        assert listener.line()["text"] is None

        assert listener.wait() == 0


def test_a_listener_comes_back_to_its_subscription(
    server: LocalServer, env: dict[str, str]
) -> None:
    with Listener(server, env) as listener:
        endpoint = listener.subscribed["endpoint"]
    assert send(env, endpoint, "while away", "--encoding", "aesgcm").returncode == 0

    with Listener(server, env, "--count", "1") as listener:
        assert listener.subscribed["endpoint"] == endpoint
        assert listener.line()["text"] == "while away"
        assert listener.wait() == 0


def test_what_its_reader_did_not_take_is_not_acked(
    server: LocalServer, env: dict[str, str]
) -> None:
    """`waystation listen | head`: the rest waits for the next time."""
    with Listener(server, env) as listener:
        endpoint = listener.subscribed["endpoint"]
        listener.leave()
        assert send(env, endpoint, "who reads this?").returncode == 0
        assert listener.wait() == 1

    with Listener(server, env, "--count", "1") as listener:
        assert listener.line()["text"] == "who reads this?"
        assert listener.wait() == 0


def test_a_listener_without_a_url_finds_the_server_of_the_data_directory(
    server: LocalServer, env: dict[str, str]
) -> None:
    listening = subprocess.Popen(
        [*WAYSTATION, "listen", "--json"],
        env=env | {"WAYSTATION_DATA_DIR": str(server.data_dir)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with listening:
        assert listening.stdout is not None
        line = listening.stdout.readline()
        listening.kill()

    assert server.endpoint_url in line


def test_a_second_listener_of_one_name_is_refused(server: LocalServer, env: dict[str, str]) -> None:
    """They would take turns in throwing each other out."""
    with Listener(server, env):
        second = subprocess.run(
            [*WAYSTATION, "listen", "--url", server.ws_url],
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert second.returncode == 1
    assert "another `waystation listen` is this user agent" in second.stderr


def test_keys_can_be_given_by_hand(
    server: LocalServer, env: dict[str, str], tmp_path: Path
) -> None:
    state = str(tmp_path / "elsewhere.json")
    with Listener(server, env, "--state", state, "--count", "2") as listener:
        endpoint = listener.subscribed["endpoint"]
        keys = listener.subscribed["keys"]
        unknown = send(env, endpoint, "x")
        assert unknown.returncode == 1
        assert "--keys" in unknown.stderr

        compact = send(env, endpoint, "one", "--keys", f"{keys['p256dh']}.{keys['auth']}")
        assert compact.returncode == 0, compact.stderr
        assert listener.line()["text"] == "one"
        as_json = send(env, endpoint, "two", "--keys", json.dumps(listener.subscribed))
        assert as_json.returncode == 0, as_json.stderr
        assert listener.line()["text"] == "two"


def test_an_endpoint_is_bound_to_the_key_of_this_machine(
    server: LocalServer, env: dict[str, str], tmp_path: Path
) -> None:
    with Listener(server, env) as listener:
        endpoint = listener.subscribed["endpoint"]
        other = send(env, endpoint, "x", "--vapid", str(tmp_path / "other.pem"))
        unsigned = send(env, endpoint, "x", "--unsigned")

    assert other.returncode == 1
    assert "errno 109" in other.stderr
    assert unsigned.returncode == 1


def test_anybody_may_send_to_an_endpoint_that_is_bound_to_no_key(
    server: LocalServer, env: dict[str, str]
) -> None:
    with Listener(server, env, "--from-anybody", "--count", "1") as listener:
        done = send(env, listener.subscribed["endpoint"], "hello", "--unsigned")
        assert done.returncode == 0, done.stderr
        assert listener.line()["text"] == "hello"


def test_a_subscription_that_is_gone_has_an_exit_code_of_its_own(
    server: LocalServer, env: dict[str, str]
) -> None:
    done = send(env, f"{server.endpoint_url}/wpush/v1/nonsense")

    assert done.returncode == 3
    assert "do not use it again" in done.stderr


@pytest.mark.parametrize("endpoint", ["nonsense", "ws://127.0.0.1:1/x", "http://127.0.0.1:9/x"])
def test_an_endpoint_that_is_none_is_said_in_one_line(endpoint: str, env: dict[str, str]) -> None:
    done = send(env, endpoint, "--attempts", "1")

    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1


def test_a_server_that_is_not_there_is_said_in_one_line(env: dict[str, str]) -> None:
    for url, word in (
        ("ws://127.0.0.1:9", "127.0.0.1:9"),
        ("wss://127.0.0.1:9", "127.0.0.1:9"),
        ("http://127.0.0.1:9", "ws://"),
        ("ws://127.0.0.1:99999", "ws://"),
        ("ws://", "ws://"),
    ):
        done = subprocess.run(
            [*WAYSTATION, "listen", "--url", url],
            env=env,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 1
        assert word in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_the_demonstration_walks_to_its_end_without_a_terminal(env: dict[str, str]) -> None:
    done = subprocess.run(
        [*WAYSTATION, "demo"], env=env, capture_output=True, text=True, timeout=90, check=False
    )

    assert done.returncode == 0, done.stderr
    steps = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("✓")]
    assert steps == ["serve", "subscribe", "direct", "stored", "replaced", "killed"]


def test_the_demonstration_walks_on_a_server_that_is_there(
    server: LocalServer, env: dict[str, str]
) -> None:
    done = subprocess.run(
        [*WAYSTATION, "demo", "--url", server.ws_url],
        env=env,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "killed" not in done.stdout
    assert server.running
