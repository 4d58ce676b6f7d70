"""The supervisor with real processes: who is started, restarted, signalled and ended."""

import contextlib
import os
import queue
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
        self._pids.touch()
        self.plan(plan)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.plain_supervisor", str(count)],
            cwd=ROOT,
            env={
                **os.environ,
                "PLAIN_WORKER_PLAN": str(self._plan),
                "PLAIN_WORKER_PIDS": str(self._pids),
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
