"""The supervisor with real processes: who is started, restarted, signalled and ended."""

import contextlib
import os
import queue
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

WAIT_S = 20.0
ROOT = Path(__file__).parents[2]


class Supervised:
    """A running supervisor, its output, and the pids that its workers wrote down."""

    def __init__(self, directory: Path, count: int, *, plan: str = "ready") -> None:
        self._pids = directory / "pids"
        self._plan = directory / "plan"
        self.trouble = directory / "trouble"
        self._pids.touch()
        self.plan(plan)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.plain_supervisor", str(count)],
            cwd=ROOT,
            env={
                **os.environ,
                "PLAIN_WORKER_PLAN": str(self._plan),
                "PLAIN_WORKER_PIDS": str(self._pids),
                "PLAIN_TROUBLE": str(self.trouble),
            },
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self.seen: list[str] = []
        self._pumping = threading.Thread(target=self._pump, daemon=True)
        self._pumping.start()

    def _pump(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.strip())

    def plan(self, text: str) -> None:
        self._plan.write_text(text)

    def workers(self) -> list[tuple[str, int]]:
        """Every worker that ever started, oldest first."""
        lines = self._pids.read_text().splitlines()
        return [(name, int(pid)) for name, pid in (line.split() for line in lines)]

    def wait_for(self, text: str) -> str:
        deadline = time.monotonic() + WAIT_S
        while (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                line = self._lines.get(timeout=left)
                self.seen.append(line)
                if text in line:
                    return line
        raise AssertionError(f"{text!r} did not come; there was {self.seen}")

    def ended(self, within_s: float = WAIT_S) -> int:
        """Its exit code, once all that it said has been seen."""
        code = self.process.wait(within_s)
        self._pumping.join(WAIT_S)
        while not self._lines.empty():
            self.seen.append(self._lines.get())
        return code

    def end(self) -> None:
        if self.process.returncode is None:  # else the number may be somebody else's by now
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


Start = Callable[..., Supervised]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Supervised] = []

    def make(count: int = 2, **options: str) -> Supervised:
        started.append(Supervised(tmp_path, count, **options))
        return started[-1]

    yield make
    for one in started:
        one.end()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass in time"
        time.sleep(0.02)


def running(pid: int) -> bool:
    """Whether the process still runs; one that ended and was not collected yet does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_it_is_ready_when_every_worker_is(start: Start) -> None:
    supervised = start(3)
    supervised.wait_for("all ready")

    assert sorted(name for name, _ in supervised.workers()) == ["push.0", "push.1", "push.2"]


def test_a_worker_that_dies_is_started_again_with_its_index(start: Start) -> None:
    supervised = start(2)
    supervised.wait_for("all ready")
    victim = next(pid for name, pid in supervised.workers() if name == "push.1")
    os.kill(victim, signal.SIGKILL)
    supervised.wait_for("died: push.1")
    supervised.wait_for("worker.ready")

    assert [name for name, _ in supervised.workers()][2:] == ["push.1"]


def test_a_worker_that_stands_still_is_killed_and_started_again(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAIN_STALL_S", "1")
    supervised = start()
    supervised.wait_for("all ready")
    ((name, pid), (_, other)) = supervised.workers()
    os.kill(pid, signal.SIGSTOP)
    line = supervised.wait_for("worker.stalled")
    supervised.wait_for("worker.ready")

    assert name in line
    assert [started for started, _ in supervised.workers()[2:]] == [name]
    assert not running(pid)
    assert running(other)


def test_one_that_dies_at_once_again_and_again_is_started_ever_more_slowly(start: Start) -> None:
    supervised = start(1)
    supervised.wait_for("all ready")
    supervised.plan("crash")
    os.kill(supervised.workers()[0][1], signal.SIGKILL)
    delays = [supervised.wait_for("restart_in_s").split("restart_in_s': ")[1] for _ in range(3)]

    assert [float(text.split(",")[0]) for text in delays] == [0.0, 0.5, 1.0]


def test_a_failure_before_all_are_ready_ends_all_with_its_sentence_and_code(start: Start) -> None:
    supervised = start(2, plan="refuse")
    supervised.wait_for("failed: there is no disk here")

    assert supervised.ended() == 78
    assert not any("worker.ended" in line for line in supervised.seen)
    assert not any(running(pid) for _, pid in supervised.workers())


def test_a_crash_during_the_first_start_ends_all_with_code_one(start: Start) -> None:
    supervised = start(2, plan="crash")
    supervised.wait_for("ended during start: exit code 3")

    assert supervised.ended() == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_ends_everything_in_order(start: Start, number: signal.Signals) -> None:
    supervised = start(2)
    supervised.wait_for("all ready")
    supervised.process.send_signal(number)

    assert supervised.ended() == 0
    assert not any(running(pid) for _, pid in supervised.workers())


def test_ctrl_c_reaches_the_group_but_workers_leave_it_to_the_supervisor(start: Start) -> None:
    supervised = start(2)
    supervised.wait_for("all ready")
    os.killpg(supervised.process.pid, signal.SIGINT)

    assert supervised.ended() == 0
    assert not any("worker.ended" in line for line in supervised.seen)


def test_a_second_signal_ends_at_once(start: Start) -> None:
    supervised = start(1, plan="stubborn")
    supervised.wait_for("all ready")
    supervised.process.terminate()
    supervised.wait_for("stop")
    time.sleep(0.1)  # sooner, it would count as the same signal told twice
    supervised.process.terminate()
    supervised.wait_for("stop.at_once")

    assert supervised.ended(5) == 143
    assert not any(running(pid) for _, pid in supervised.workers())


def test_a_signal_that_is_told_twice_in_a_moment_is_one(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `timeout` does: to the process, and to its group. The first line may take its time."""
    monkeypatch.setenv("PLAIN_LINE_S", "0.2")
    supervised = start(1)
    supervised.wait_for("all ready")
    supervised.process.terminate()
    time.sleep(0.02)  # sooner, the system would tell them as one
    supervised.process.terminate()

    assert supervised.ended() == 0
    assert not any("stop.at_once" in line for line in supervised.seen)


def test_workers_end_when_the_supervisor_is_killed(start: Start) -> None:
    supervised = start(2)
    supervised.wait_for("all ready")
    os.kill(supervised.process.pid, signal.SIGKILL)
    until(lambda: not any(running(pid) for _, pid in supervised.workers()))

    assert len(supervised.workers()) == 2


def test_sighup_reaches_every_worker(start: Start) -> None:
    supervised = start(2)
    supervised.wait_for("all ready")
    supervised.process.send_signal(signal.SIGHUP)
    told = {supervised.wait_for("reloads") for _ in range(2)}

    assert told == {"push.0 reloads", "push.1 reloads"}


# --- calls of the supervisor that fail ---------------------------------------------------------


def test_a_clean_up_that_fails_ends_nothing_and_is_tried_until_it_succeeds(start: Start) -> None:
    supervised = start(2)
    supervised.wait_for("all ready")
    supervised.trouble.write_text("died tidy")
    os.kill(supervised.workers()[0][1], signal.SIGKILL)
    supervised.wait_for("worker.ready")
    time.sleep(2.5)  # two more attempts
    supervised.trouble.unlink()
    supervised.wait_for("tidied up")

    told = [line for line in supervised.seen if "supervisor.failed" in line]
    assert len(told) == 2, "the reason of each, once"
    assert all("No space left on device" in line for line in told)
    assert len(supervised.workers()) == 3
    supervised.process.terminate()
    assert supervised.ended() == 0


def test_without_descriptors_a_worker_is_started_again_as_soon_as_there_are_some(
    start: Start,
) -> None:
    supervised = start(2)
    supervised.wait_for("all ready")
    pid = supervised.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
    survivor = supervised.workers()[1][1]
    os.kill(supervised.workers()[0][1], signal.SIGKILL)
    supervised.wait_for("Too many open files")
    time.sleep(1.5)
    assert running(survivor)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    supervised.wait_for("worker.ready")

    assert len([line for line in supervised.seen if "during': 'start push" in line]) == 1
    assert running(survivor)
    supervised.process.terminate()
    assert supervised.ended() == 0


def test_lines_that_cannot_be_written_end_nothing(start: Start) -> None:
    supervised = start(1)
    supervised.wait_for("all ready")
    supervised.trouble.write_text("lines")
    os.kill(supervised.workers()[0][1], signal.SIGKILL)
    until(lambda: len(supervised.workers()) == 2)
    supervised.process.terminate()

    assert supervised.ended() == 0


def test_an_announcement_that_fails_is_made_again(start: Start, tmp_path: Path) -> None:
    (tmp_path / "trouble").write_text("ready")
    supervised = start(1)
    supervised.wait_for("supervisor.failed")
    supervised.trouble.unlink()

    assert "all ready" in supervised.wait_for("all ready")


def test_a_failure_whose_reason_cannot_be_told_still_ends_the_server(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "trouble").write_text("failure")
    supervised = start(2, plan="refuse")

    assert supervised.ended() == 78


def test_a_worker_that_ended_by_a_signal_without_a_name_is_started_again(start: Start) -> None:
    supervised = start(1)
    supervised.wait_for("all ready")
    os.kill(supervised.workers()[0][1], signal.SIGRTMIN + 6)

    assert "'signal 40'" in supervised.wait_for("worker.died")
    supervised.wait_for("worker.ready")
