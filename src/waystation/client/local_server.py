"""A server of one's own: `waystation serve` as a child, for demonstrations, tests and benchmarks.

Rule 1: it keeps its ports over a restart, so that endpoints stay valid.
Rule 2: it does not outlive the one who started it: `close` ends the whole process group.
"""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from waystation.base.errors import UnavailableError

READY_LINE = "waystation is ready"
PORTS = 14  # `--port-base N` gives away N … N+13
LINES_KEPT = 200


class ServerDidNotStartError(UnavailableError):
    """It ended, or did not say that it is ready in time."""

    label = "server_did_not_start"


def free_port_base(rng: random.Random | None = None) -> int:
    """Below the ephemeral ports, so that nobody's outgoing connection sits on one meanwhile."""
    rng = rng or random.Random()
    for _ in range(200):
        base = rng.randrange(10_000, 32_000 - PORTS)
        with contextlib.ExitStack() as stack:
            try:
                for port in range(base, base + PORTS):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return base
    raise ServerDidNotStartError(f"no {PORTS} free ports in a row")


class LocalServer:
    def __init__(
        self,
        data_dir: Path,
        *,
        roles: Sequence[str] = (),
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        port_base: int | None = None,
        command: Sequence[str] = (sys.executable, "-m", "waystation.cli.main"),
    ) -> None:
        self.data_dir = data_dir
        self.port_base = free_port_base() if port_base is None else port_base
        self._command = [
            *command,
            "serve",
            *roles,
            *("--data-dir", str(data_dir)),
            *("--port-base", str(self.port_base)),
            *options,
        ]
        self._env = {**os.environ, **(env or {})}
        self._child: subprocess.Popen[str] | None = None
        self._ready = threading.Event()
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)  # the last ones, both streams

    @property
    def ws_url(self) -> str:
        return f"ws://127.0.0.1:{self.port_base}"

    @property
    def relay_url(self) -> str:
        return f"http://127.0.0.1:{self.port_base + 1}"

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self.port_base + 2}"

    @property
    def console_url(self) -> str:
        return f"http://127.0.0.1:{self.port_base + 3}"

    @property
    def pid(self) -> int:
        """Of the supervisor; the workers are its children."""
        assert self._child is not None
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def start(self, timeout_s: float = 20.0) -> float:
        """Returns when it is ready; how long that took in seconds."""
        assert not self.running
        began = time.monotonic()
        self._ready.clear()
        self._child = subprocess.Popen(  # noqa: S603 - our own command line, no shell
            self._command,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        for stream in (self._child.stdout, self._child.stderr):
            assert stream is not None
            threading.Thread(target=self._read, args=(stream,), daemon=True).start()
        deadline = began + timeout_s
        while not self._ready.wait(0.02):
            if not self.running or time.monotonic() > deadline:
                code = self._child.poll()
                self.kill()
                how = f"ended with code {code}" if code is not None else "is not ready in time"
                raise ServerDidNotStartError(
                    f"the server {how}:\n" + "\n".join(list(self.lines)[-12:])
                )
        return time.monotonic() - began

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self.lines.append(line.rstrip("\n"))
                if line.rstrip() == READY_LINE:
                    self._ready.set()

    def kill(self) -> None:
        """`kill -9` to the supervisor and all workers at once. If it has ended and was waited for,
        its number may be somebody else's by now."""
        if self._child is not None:
            if self._child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait(10)

    def stop(self, timeout_s: float = 20.0) -> int:
        """SIGTERM and the exit code."""
        assert self._child is not None
        self._child.terminate()
        return self._child.wait(timeout_s)

    def close(self) -> None:
        """Ends it one way or the other; a second SIGTERM does not wait for the drain."""
        if self._child is None or self._child.poll() is not None:
            return
        try:
            self._child.terminate()
            time.sleep(0.05)
            self._child.terminate()
            self._child.wait(5)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self.kill()
