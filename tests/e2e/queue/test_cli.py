"""`waystation queue` in processes of its own, against a real server."""

import contextlib
import json
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.platform import BIN, Process, clean_environment, until
from tests.e2e.queue.process import QueueServer
from waystation.client.queue import tls
from waystation.client.queue.address import ServerAddress

LIMIT_S = 60


class Person:
    """Somebody with a state file of their own."""

    def __init__(self, folder: Path, server: QueueServer) -> None:
        self.state = folder / "queues.json"
        self.server = str(ServerAddress(server.identity.fingerprint, ("127.0.0.1",), server.port))
        self.folder = folder
        folder.mkdir()

    def command(self, *words: str) -> list[str]:
        name, *rest = words
        state = [] if name == "probe" else ["--state", str(self.state)]
        return [str(BIN / "waystation"), "queue", name, *state, *rest]

    def try_to(
        self, *words: str, text: str = "", env: dict[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        # Most runs start with the environment that a first one would replace itself with.
        return subprocess.run(
            self.command(*words),
            env=tls.environment(clean_environment()) if env is None else env,
            cwd=self.folder,
            input=text,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def do(self, *words: str, text: str = "") -> str:
        done = self.try_to(*words, text=text)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def told(self, *words: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.do(*words, "--json").splitlines()]


class Receiving(Process):
    """`waystation queue receive`, left running."""

    def __init__(self, person: Person, *words: str) -> None:
        super().__init__(person.command("receive", *words), tls.environment(clean_environment()))

    def is_ready(self) -> bool:
        return True

    def heard(self, count: int) -> list[str]:
        until(lambda: len(self.out) >= count, timeout_s=LIMIT_S)
        return self.out[:count]


@pytest.fixture
def alice(tmp_path: Path, queue_server: QueueServer) -> Person:
    return Person(tmp_path / "alice", queue_server)


@pytest.fixture
def bob(tmp_path: Path, queue_server: QueueServer) -> Person:
    return Person(tmp_path / "bob", queue_server)


@contextlib.contextmanager
def receiving(person: Person, *words: str) -> Iterator[Receiving]:
    with Receiving(person, *words) as process:
        yield process


def test_a_text_goes_from_one_terminal_to_another(alice: Person, bob: Person) -> None:
    """The first command is started as a person starts it, without any environment."""
    started = alice.try_to("new", "--server", alice.server, "--qr", env=clean_environment())
    assert started.returncode == 0, started.stderr
    lines = {line[:11].strip(): line[11:] for line in started.stdout.splitlines()}
    bob.do("send", lines["address"], "hello alice")
    bob.do("send", "contact1", "-", text="and again\nin two lines")
    heard = alice.do("receive", "--count", "2")
    (queue,) = alice.told("list")
    (sender,) = bob.told("list")
    refused = alice.try_to("send", lines["address"], "only the first one may")

    assert (refused.returncode, "AUTH" in refused.stderr) == (3, True)
    assert lines["queue"] == "inbox1 (one sender)"
    assert "█" in started.stdout
    assert heard == "hello alice\nand again\nin two lines\n"
    assert queue["address"] == lines["address"]
    assert (sender["name"], sender["secured"]) == ("contact1", True)
    for person in (alice, bob):
        assert stat.S_IMODE(person.state.stat().st_mode) == 0o600


def test_a_killed_receiver_shows_nothing_twice_and_misses_nothing(
    alice: Person, bob: Person
) -> None:
    (queue,) = alice.told("new", "box", "--server", alice.server)
    bob.do("send", "--name", "alice", queue["address"], "one")
    with receiving(alice, "box") as first:
        assert first.heard(1) == ["one"]
        # Noted on disk; whether the server has the acknowledgement is left to chance.
        until(lambda: json.loads(alice.state.read_text())["queues"]["box"]["acked"] != [])
        first.kill()
    bob.do("send", "alice", "two")
    (event,) = alice.told("receive", "--count", "1")

    assert (event["text"], event["sealed"], event["queue"]) == ("two", True, "box")


def test_what_the_reader_of_a_receiver_did_not_take_comes_again(alice: Person, bob: Person) -> None:
    """`waystation queue receive | head`: the rest waits for the next time."""
    (queue,) = alice.told("new", "box", "--server", alice.server)
    bob.do("send", "--name", "alice", queue["address"], "one")
    with subprocess.Popen(
        alice.command("receive"), env=tls.environment(clean_environment()), stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"one\n"
        process.stdout.close()
        bob.do("send", "alice", "two")

        assert process.wait(LIMIT_S) == 1
    assert alice.do("receive", "--count", "1") == "two\n"


def test_a_receiver_goes_on_after_its_server_was_killed(tmp_path: Path, data_dir: Path) -> None:
    with QueueServer(data_dir) as server:
        alice, bob = Person(tmp_path / "a", server), Person(tmp_path / "b", server)
        (queue,) = alice.told("new", "box", "--server", alice.server)
        bob.do("send", "--name", "alice", queue["address"], "one")
        with receiving(alice) as process:
            assert process.heard(1) == ["one"]
            server.kill()
            refused = bob.try_to("send", "alice", "nobody there", "--timeout", "0.3")
            server.start()
            bob.do("send", "alice", "two")

            assert process.heard(2) == ["one", "two"]
    assert refused.returncode == 75
    assert "no connection" in refused.stderr


def test_a_short_link_leads_to_a_contact(alice: Person, bob: Person) -> None:
    (queue,) = alice.told(
        "new", "box", "--server", alice.server, "--contact", "--link", "write to me"
    )
    shown = bob.do("open", queue["link"], "--name", "alice")
    bob.do("send", "alice", "by link")
    bob.do("send", "--plain", queue["link"], "not sealed")
    events = alice.told("receive", "--count", "2")
    (again,) = alice.told("link", "box", "another text")

    assert "write to me" in shown
    assert [(event["text"], event["sealed"]) for event in events] == [
        ("by link", True),
        ("not sealed", False),
    ]
    assert again["link"] == queue["link"]
    assert "another text" in bob.do("open", queue["link"])


def test_an_invitation_link_is_used_up(alice: Person, bob: Person) -> None:
    (queue,) = alice.told("new", "box", "--server", alice.server, "--link", "only you")
    bob.do("send", queue["link"], "thanks")
    late = alice.try_to("open", queue["link"])

    assert late.returncode == 3
    assert alice.do("receive", "--count", "1") == "thanks\n"


def test_the_server_says_what_it_has_and_deletes_it(alice: Person, bob: Person) -> None:
    (queue,) = alice.told("new", "box", "--server", alice.server)
    bob.do("send", "--name", "alice", queue["address"], "waits")
    (before,) = alice.told("info", "box")
    alice.do("suspend", "box")
    refused = bob.try_to("send", "alice", "late")
    alice.do("delete", "box")

    assert (before["qiSize"], before["qiSnd"]) == (1, True)
    assert refused.returncode == 3
    assert "no queues yet" in alice.do("list")


def test_a_text_goes_through_another_server(
    tmp_path: Path, alice: Person, bob: Person, legacy_server: QueueServer
) -> None:
    there = ServerAddress(
        legacy_server.identity.fingerprint, ("127.0.0.1",), legacy_server.port, "sesame"
    )
    (queue,) = alice.told("new", "box", "--server", str(there))
    bob.do("send", "--proxy", bob.server, queue["address"], "from nowhere")

    assert "sesame" not in queue["address"]
    assert alice.do("receive", "--count", "1") == "from nowhere\n"


def test_a_missing_password_and_a_deleted_queue_have_different_errors(
    alice: Person, legacy_server: QueueServer
) -> None:
    there = ServerAddress(legacy_server.identity.fingerprint, ("127.0.0.1",), legacy_server.port)
    refused = alice.try_to("new", "--server", str(there))

    assert refused.returncode == 1
    assert "smp://FINGERPRINT:PASSWORD@HOST" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert "no queues yet" in alice.do("list")


def test_a_server_is_probed(alice: Person) -> None:
    (told,) = alice.told("probe", alice.server)
    stranger = str(ServerAddress(b"x" * 32, ("127.0.0.1",), ServerAddress.parse(alice.server).port))
    refused = alice.try_to("probe", stranger)

    assert (told["version"], told["version_min"], told["version_max"]) == (18, 8, 18)
    assert refused.returncode == 1
    assert "fingerprint" in refused.stderr


def test_an_error_is_one_line(alice: Person) -> None:
    done = alice.try_to("send", "nobody", "x")

    assert done.returncode == 1
    assert done.stderr == "waystation: an address begins with smp://FINGERPRINT@HOST\n"
