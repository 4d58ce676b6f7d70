"""Starts the processes of a server, keeps them running and ends them together.

Rule 1: processes are spawned, never forked: gRPC and LMDB do not survive a fork.
Rule 2: until all are ready for the first time, the failure of one is the failure of the
        server: all end, and the sentence and the exit code are the worker's.
Rule 3: afterwards one that dies is started again with the same index (see `restarts`).
Rule 4: SIGTERM and SIGINT are passed on and waited for; a second one, or the end of our
        patience, kills. SIGHUP is passed on (workers read their TLS certificates again).
Rule 5: a worker whose line to us is broken has ended, or is made to.
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

from .control import (
    LINE_MAX_BYTES,
    Failed,
    Order,
    Ready,
    Service,
    WorkerKind,
    decode_report,
    encode_line,
)
from .restarts import Restarts
from .roles import Role

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_CONFIG = 78  # EX_CONFIG of sysexits.h
EXIT_TERMINATED = 128 + signal.SIGTERM

START_TIMEOUT_S = 60.0
SAME_SIGNAL_S = 0.03  # tools that tell a process and then its whole group mean one signal
STOP_GRACE_S = 10.0  # beyond the drain, before we kill


class Lines(Protocol):
    """Where the supervisor's log lines go."""

    def info(self, event: str, /, **fields: object) -> object: ...

    def warning(self, event: str, /, **fields: object) -> object: ...

    def error(self, event: str, /, **fields: object) -> object: ...


class Job(msgspec.Struct, frozen=True):
    """One process that should run."""

    kind: WorkerKind
    index: int
    count: int
    roles: tuple[Role, ...]
    service: Service = "serve"
    environment: tuple[tuple[str, str], ...] = ()  # beside our own

    @property
    def name(self) -> str:
        return f"{self.kind}.{self.index}"


def worker_command(control_fd: int) -> list[str]:
    # -P: what lies in the current directory is never imported in our place.
    return [sys.executable, "-P", "-m", "waystation.app.worker", "--control", str(control_fd)]


class _Child:
    """A job and the process that does it at present."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.process: subprocess.Popen[bytes] | None = None
        self.line: socket.socket | None = None
        self.received = bytearray()
        self.ready = False
        self.failure: Failed | None = None
        self.restarts = Restarts()
        self.start_at: float | None = None  # when it is to be started again


class Supervisor:
    """Runs `jobs` until told to stop. One thread, no event loop."""

    def __init__(
        self,
        jobs: Sequence[Job],
        settings: bytes,
        *,
        lines: Lines,
        on_ready: Callable[[], None],
        on_failure: Callable[[str], None],
        on_spawned: Callable[[], None] = lambda: None,
        on_died: Callable[[Job], None] = lambda _: None,
        drain_s: float = 0.0,
        inherited: tuple[int, ...] = (),
        command: Callable[[int], list[str]] = worker_command,
    ) -> None:
        self._children = [_Child(job) for job in jobs]
        self._settings = settings
        self._lines = lines
        self._on_ready = on_ready
        self._on_failure = on_failure
        self._on_spawned = on_spawned
        self._on_died = on_died
        self._drain_s = drain_s
        self._inherited = inherited  # descriptors that stay open as long as any worker lives
        self._command = command
        self._told_at = float("-inf")
        self._selector = selectors.DefaultSelector()
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
                    self._spawn(child)
                self._on_spawned()
                while self._alive():
                    self._turn()
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
        for child in self._children:
            if child.start_at is not None and now >= child.start_at and not self._stopping:
                self._spawn(child)
        if self._kill_at is not None and now >= self._kill_at:
            self._lines.error("stop.impatient", waited_s=self._drain_s + STOP_GRACE_S)
            self._kill_at = None
            self._code = EXIT_FAILED
            self._kill_all()
        if not self._announced and not self._stopping:
            if all(child.ready for child in self._children):
                self._announced = True
                self._on_ready()
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
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def _alive(self) -> bool:
        if self._stopping:
            return any(child.process is not None for child in self._children)
        return True

    # Workers

    def _spawn(self, child: _Child) -> None:
        ours, theirs = socket.socketpair()
        job = child.job
        order = Order(
            kind=job.kind,
            service=job.service,
            index=job.index,
            count=job.count,
            roles=job.roles,
            supervisor_pid=os.getpid(),
            settings=msgspec.Raw(self._settings),
        )
        # Ctrl-C reaches the whole process group but is for us, who pass it on in order: a worker
        # inherits that it is blocked. What comes in this moment waits and is not lost for us.
        with theirs, _blocked(signal.SIGINT):
            child.process = subprocess.Popen(  # noqa: S603 our own module
                self._command(theirs.fileno()),
                stdin=subprocess.DEVNULL,
                env={**os.environ, **dict(job.environment)} if job.environment else None,
                pass_fds=(theirs.fileno(), *self._inherited),
            )
        child.start_at = None
        child.ready = False
        child.failure = None
        child.received.clear()
        child.restarts.born(time.monotonic())
        child.line = ours
        with contextlib.suppress(OSError):  # it has ended already: the line says so
            ours.sendall(encode_line(order))
        ours.setblocking(False)
        self._selector.register(ours, selectors.EVENT_READ, child)

    def _read(self, child: _Child) -> None:
        assert child.line is not None
        try:
            part = child.line.recv(65_536)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not part:
            self._bury(child)
            return
        child.received += part
        while (end := child.received.find(b"\n")) >= 0:
            line = bytes(child.received[:end])
            del child.received[: end + 1]
            self._heard(child, line)
        assert len(child.received) <= LINE_MAX_BYTES

    def _heard(self, child: _Child, line: bytes) -> None:
        match decode_report(line):
            case Ready():
                child.ready = True
                if self._announced:
                    self._lines.info("worker.ready", worker=child.job.name)
            case Failed() as failed:
                child.failure = failed

    def _bury(self, child: _Child) -> None:
        assert child.line is not None
        assert child.process is not None
        self._selector.unregister(child.line)
        child.line.close()
        child.line = None
        if not self._stopping:
            # Rule 5. One that closes its line while it ends gets the time it needs for that.
            try:
                child.process.wait(2.0)
            except subprocess.TimeoutExpired:
                child.process.kill()
        status = child.process.wait()
        child.process = None
        child.ready = False
        if self._stopping:
            # Of a start that failed the reason was told: it is the last line.
            expected = not self._announced and child.failure is not None
            if not expected and status not in (EXIT_OK, -signal.SIGTERM, -signal.SIGKILL):
                self._lines.warning("worker.ended", worker=child.job.name, **_told(status))
            return
        if not self._announced:
            if child.failure is not None:
                self._fail(child.failure.reason, child.failure.exit_code)
            else:
                self._fail(f"worker {child.job.name} ended during start: {_story(status)}")
            return
        self._on_died(child.job)
        delay_s = child.restarts.died(time.monotonic())
        child.start_at = time.monotonic() + delay_s
        self._lines.error(
            "worker.died",
            worker=child.job.name,
            **_told(status),
            reason=child.failure.reason if child.failure else "",
            restart_in_s=delay_s,
            young_deaths=child.restarts.young_deaths,
        )

    # Ends

    def _fail(self, reason: str, code: int = EXIT_FAILED) -> None:
        self._on_failure(reason)
        self._code = code
        self._stop()

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
                self._lines.info("reload", signal="SIGHUP")
                self._signal_all(signal.SIGHUP)
            elif number in (signal.SIGTERM, signal.SIGINT):
                name = signal.Signals(number).name
                if time.monotonic() - self._told_at < SAME_SIGNAL_S:
                    continue
                if self._stopping:
                    self._lines.warning("stop.at_once", signal=name)
                    self._code = EXIT_TERMINATED
                    self._kill_at = None
                    self._kill_all()
                else:
                    self._lines.info("stop", signal=name, drain_s=self._drain_s)
                    self._stop()
                self._told_at = time.monotonic()  # now: the first line loads what writes lines


@contextlib.contextmanager
def _blocked(number: signal.Signals) -> Generator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _only_wake(_number: int, _frame: object) -> None:
    """The wake-up descriptor tells the loop; there is nothing to do here."""


def _told(status: int) -> dict[str, object]:
    if status < 0:
        return {"signal": signal.Signals(-status).name}
    return {"exit_code": status}


def _story(status: int) -> str:
    if status < 0:
        return f"it was ended by {signal.Signals(-status).name}"
    return f"exit code {status}; its lines above say more"


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
