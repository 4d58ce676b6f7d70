"""Starts the processes of a server, keeps them running and ends them together.

Rule 1: processes are spawned, never forked: gRPC and LMDB do not survive a fork.
Rule 2: until all are ready for the first time, the failure of one ends all; the message and
        the exit code are those of the failed worker.
Rule 3: afterwards a worker that ends is restarted with the same index (see `restart_backoff`).
Rule 4: SIGTERM and SIGINT are passed on to the workers and waited for; a second one, or
        `STOP_GRACE_S` after the drain, kills. SIGHUP is passed on (workers reload certificates).
Rule 5: a worker whose socket is closed has ended, or is killed.
Rule 6: a worker that sends nothing for too long is killed and restarted (see `watchdog`).
Rule 7: once all were ready, a failed call of the supervisor (no descriptor, full disk) does not
        end the server: its reason is logged once, the call is repeated, the workers run on.
"""

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from typing import Protocol

import msgspec

from waystation.base.failures import Failures

from .restart_backoff import RestartBackoff
from .roles import Role
from .supervisor_protocol import (
    LINE_MAX_BYTES,
    Alive,
    Failed,
    Order,
    Ready,
    Service,
    WorkerKind,
    decode_report,
    encode_line,
)
from .watchdog import Watchdog

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_CONFIG = 78  # EX_CONFIG of sysexits.h
EXIT_TERMINATED = 128 + signal.SIGTERM

START_TIMEOUT_S = 60.0
SAME_SIGNAL_S = 0.03  # some tools signal a process and then its group: one signal for us
STOP_GRACE_S = 10.0  # after the drain, before workers are killed
RETRY_S = 1.0  # after a failed call of the supervisor
FAILED_TURN_S = 0.1  # pause after a failed turn, so that the loop does not spin


class Lines(Protocol):
    """Where the supervisor's log lines go."""

    def info(self, event: str, /, **fields: object) -> object: ...

    def warning(self, event: str, /, **fields: object) -> object: ...

    def error(self, event: str, /, **fields: object) -> object: ...


class Job(msgspec.Struct, frozen=True):
    """One process that the supervisor keeps running."""

    kind: WorkerKind
    index: int
    count: int
    roles: tuple[Role, ...]
    service: Service = "serve"
    part: int = 1  # of the data directory
    environment: tuple[tuple[str, str], ...] = ()  # beside our own

    @property
    def name(self) -> str:
        return f"{self.kind}.{self.index}"


def worker_command(control_fd: int) -> list[str]:
    # -P: modules in the current directory never shadow ours.
    return [sys.executable, "-P", "-m", "waystation.app.worker", "--control", str(control_fd)]


class _Child:
    """A job and its current process."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.process: subprocess.Popen[bytes] | None = None
        self.line: socket.socket | None = None
        self.received = bytearray()
        self.ready = False
        self.failure: Failed | None = None
        self.restarts = RestartBackoff()
        self.start_at: float | None = None  # when it is to be started again


class Supervisor:
    """Runs `jobs` until told to stop. One thread, no event loop.

    `on_ready`, `on_died` and `tidy` may raise. `on_died` is called once, before the worker is
    started again; `tidy` at the start and after each death; it and `on_ready` are called again
    until they succeed.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        settings: bytes,
        *,
        lines: Lines,
        on_ready: Callable[[], None],
        on_failure: Callable[[str], None],
        on_died: Callable[[Job], None] = lambda _: None,
        tidy: Callable[[], None] = lambda: None,
        drain_s: float = 0.0,
        inherited: tuple[int, ...] = (),
        stall_limit_s: float = 0.0,
        command: Callable[[int], list[str]] = worker_command,
    ) -> None:
        self._children = [_Child(job) for job in jobs]
        self._settings = settings
        self._lines = lines
        self._on_ready = on_ready
        self._on_failure = on_failure
        self._on_died = on_died
        self._tidy = tidy
        self._drain_s = drain_s
        self._inherited = inherited  # descriptors that stay open as long as any worker lives
        self._command = command
        self._told_at = float("-inf")
        self._selector = selectors.DefaultSelector()
        self._watchdog = Watchdog(stall_limit_s)
        self._failures = Failures()
        self._owed: dict[str, Callable[[], None]] = {}  # what failed and is tried again
        self._retry_at = 0.0
        self._announced = False
        self._stopping = False
        self._kill_at: float | None = None
        self._start_deadline = 0.0
        self._code = EXIT_OK

    def run(self) -> int:
        """The exit code."""
        with contextlib.ExitStack() as stack:
            self._catch_signals(stack)
            try:
                self._start_deadline = time.monotonic() + START_TIMEOUT_S
                for child in self._children:
                    if not self._stopping:
                        self._start(child)
                self._do("tidy up", self._tidy)
                while self._alive():
                    if not self._try("supervise", self._turn):
                        time.sleep(FAILED_TURN_S)
            finally:
                self._kill_all()
                self._selector.close()
        return self._code

    # One turn

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._timeout()):
            if isinstance(key.data, _Child):
                self._read(key.data)
            else:
                self._read_signals(key.data)
        now = time.monotonic()
        self._end_stalled(now)
        for child in self._children:
            if child.start_at is not None and now >= child.start_at and not self._stopping:
                self._start(child)
        if self._owed and now >= self._retry_at:
            for what, step in list(self._owed.items()):
                self._do(what, step)
        if self._kill_at is not None and now >= self._kill_at:
            self._say("error", "stop.impatient", waited_s=self._drain_s + STOP_GRACE_S)
            self._kill_at = None
            self._code = EXIT_FAILED
            self._kill_all()
        if not self._announced and not self._stopping:
            if all(child.ready for child in self._children):
                self._announced = True
                self._do("announce", self._on_ready)
                notify_service_manager("READY=1")
            elif now >= self._start_deadline:
                late = [child.job.name for child in self._children if not child.ready]
                self._fail(f"not ready after {START_TIMEOUT_S:.0f} s: {', '.join(late)}")

    def _timeout(self) -> float | None:
        moments = [child.start_at for child in self._children if child.start_at is not None]
        if self._kill_at is not None:
            moments.append(self._kill_at)
        if not self._announced and not self._stopping:
            moments.append(self._start_deadline)
        if self._owed:
            moments.append(self._retry_at)
        if (wake_at := self._watchdog.wake_at()) is not None:
            moments.append(wake_at)
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def _alive(self) -> bool:
        if self._stopping:
            return any(child.process is not None for child in self._children)
        return True

    # What may fail

    def _do(self, what: str, step: Callable[[], None]) -> None:
        """Run `step` now, and every `RETRY_S` again until it succeeds."""
        if self._try(what, step):
            self._owed.pop(what, None)
        else:
            self._owed[what] = step
            self._retry_at = time.monotonic() + RETRY_S

    def _try(self, what: str, step: Callable[[], None]) -> bool:
        """Whether `step` succeeded; its failure is logged (rule 7)."""
        try:
            step()
        except Exception as exc:
            self._failed(what, exc)
            return False
        return True

    def _failed(self, what: str, error: Exception) -> None:
        if self._failures.is_new(what, error):
            self._say("error", "supervisor.failed", during=what, reason=str(error) or repr(error))

    def _say(self, level: str, event: str, /, **fields: object) -> None:
        """Log; a line that cannot be written does not end the supervisor."""
        with contextlib.suppress(Exception):
            getattr(self._lines, level)(event, **fields)

    # Workers

    def _start(self, child: _Child) -> None:
        name = child.job.name
        try:
            self._spawn(child)
        except Exception as exc:
            if self._announced:
                child.start_at = time.monotonic() + RETRY_S
                self._failed(f"start {name}", exc)
            else:
                self._fail(f"worker {name} could not be started: {exc}")

    def _spawn(self, child: _Child) -> None:
        """Start the process and send its order; undoes everything if it raises."""
        job = child.job
        order = Order(
            kind=job.kind,
            service=job.service,
            index=job.index,
            count=job.count,
            roles=job.roles,
            part=job.part,
            supervisor_pid=os.getpid(),
            settings=msgspec.Raw(self._settings),
        )
        with contextlib.ExitStack() as undo:
            ours, theirs = socket.socketpair()
            undo.callback(ours.close)
            # Ctrl-C reaches the whole process group. Only the supervisor handles it and passes it
            # on, so workers inherit it blocked; one that arrives now stays pending for us.
            with theirs, _blocked(signal.SIGINT):
                process = subprocess.Popen(  # noqa: S603 our own module
                    self._command(theirs.fileno()),
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, **dict(job.environment)} if job.environment else None,
                    pass_fds=(theirs.fileno(), *self._inherited),
                )
            undo.callback(_end, process)
            with contextlib.suppress(OSError):  # it has ended already: the line says so
                ours.sendall(encode_line(order))
            ours.setblocking(False)
            self._selector.register(ours, selectors.EVENT_READ, child)
            undo.pop_all()
        child.process, child.line = process, ours
        child.start_at = None
        child.ready = False
        child.failure = None
        child.received.clear()
        child.restarts.born(time.monotonic())

    def _read(self, child: _Child) -> None:
        assert child.line is not None
        try:
            part = child.line.recv(65_536)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not part:
            self._ended(child)
            return
        child.received += part
        try:
            while (end := child.received.find(b"\n")) >= 0:
                line = bytes(child.received[:end])
                del child.received[: end + 1]
                self._heard(child, line)
        except msgspec.MsgspecError:
            self._ended(child)  # rule 5: not a report
            return
        if len(child.received) > LINE_MAX_BYTES:
            self._ended(child)

    def _heard(self, child: _Child, line: bytes) -> None:
        match decode_report(line):
            case Ready():
                child.ready = True
                if self._announced:
                    self._say("info", "worker.ready", worker=child.job.name)
            case Alive():
                self._watchdog.heard(child.job.name, time.monotonic())
            case Failed() as failed:
                child.failure = failed

    def _end_stalled(self, now: float) -> None:
        stalled = dict(self._watchdog.stalled(now))
        for child in self._children:
            silent_s = stalled.get(child.job.name)
            if silent_s is not None and child.process is not None and not self._stopping:
                self._watchdog.forget(child.job.name)
                self._say(
                    "error",
                    "worker.stalled",
                    worker=child.job.name,
                    silent_s=round(silent_s, 1),
                    note="event loop blocked; the worker is killed and restarted",
                )
                child.process.kill()

    def _ended(self, child: _Child) -> None:
        """The worker has ended, or is made to: fail, finish stopping, or schedule the restart."""
        assert child.line is not None
        assert child.process is not None
        self._watchdog.forget(child.job.name)
        self._selector.unregister(child.line)
        child.line.close()
        child.line = None
        if not self._stopping:
            # Rule 5. A worker may close its socket shortly before its process ends.
            try:
                child.process.wait(2.0)
            except subprocess.TimeoutExpired:
                child.process.kill()
        status = child.process.wait()
        child.process = None
        child.ready = False
        if self._stopping:
            # After a failed start its reason stays the last line.
            expected = not self._announced and child.failure is not None
            if not expected and status not in (EXIT_OK, -signal.SIGTERM, -signal.SIGKILL):
                self._say(
                    "warning", "worker.ended", worker=child.job.name, **_status_fields(status)
                )
            return
        if not self._announced:
            if child.failure is not None:
                self._fail(child.failure.reason, child.failure.exit_code)
            else:
                self._fail(f"worker {child.job.name} ended during start: {_status_text(status)}")
            return
        self._try("set aside files of a worker", lambda: self._on_died(child.job))
        delay_s = child.restarts.died(time.monotonic())
        child.start_at = time.monotonic() + delay_s
        self._say(
            "error",
            "worker.died",
            worker=child.job.name,
            **_status_fields(status),
            reason=child.failure.reason if child.failure else "",
            restart_in_s=delay_s,
            young_deaths=child.restarts.young_deaths,
        )
        self._do("tidy up", self._tidy)

    # Ends

    def _fail(self, reason: str, code: int = EXIT_FAILED) -> None:
        self._code = code
        self._stop()
        self._try("say why it failed", lambda: self._on_failure(reason))

    def _stop(self) -> None:
        self._stopping = True
        notify_service_manager("STOPPING=1")
        self._kill_at = time.monotonic() + self._drain_s + STOP_GRACE_S
        self._signal_all(signal.SIGTERM)

    def _kill_all(self) -> None:
        self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: signal.Signals) -> None:
        for child in self._children:
            if child.process is not None:
                child.process.send_signal(number)

    def _catch_signals(self, stack: contextlib.ExitStack) -> None:
        reader, writer = socket.socketpair()
        stack.enter_context(reader)
        stack.enter_context(writer)
        reader.setblocking(False)
        writer.setblocking(False)
        stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(writer.fileno()))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            stack.callback(signal.signal, number, signal.signal(number, _only_wake))
        self._selector.register(reader, selectors.EVENT_READ, reader)

    def _read_signals(self, reader: socket.socket) -> None:
        for number in reader.recv(64):
            if number == signal.SIGHUP:
                self._say("info", "reload", signal="SIGHUP")
                self._signal_all(signal.SIGHUP)
            elif number in (signal.SIGTERM, signal.SIGINT):
                name = signal.Signals(number).name
                if time.monotonic() - self._told_at < SAME_SIGNAL_S:
                    continue
                if self._stopping:
                    self._say("warning", "stop.at_once", signal=name)
                    self._code = EXIT_TERMINATED
                    self._kill_at = None
                    self._kill_all()
                else:
                    self._say("info", "stop", signal=name, drain_s=self._drain_s)
                    self._stop()
                self._told_at = time.monotonic()  # after the line: the first one loads structlog


@contextlib.contextmanager
def _blocked(number: signal.Signals) -> Generator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _only_wake(_number: int, _frame: object) -> None:
    """Does nothing: the wake-up descriptor tells the loop."""


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"


def _status_fields(status: int) -> dict[str, object]:
    if status < 0:
        return {"signal": _signal_name(-status)}
    return {"exit_code": status}


def _status_text(status: int) -> str:
    if status < 0:
        return f"ended by {_signal_name(-status)}"
    return f"exit code {status}; see its log lines above"


def notify_service_manager(state: str) -> None:
    """The protocol of systemd's Type=notify: a datagram to $NOTIFY_SOCKET, if there is one."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.connect(address)
        sock.sendall(state.encode())
