"""Real processes for end-to-end tests: `waystation serve`, and the two daemons of Autopush.

Rule 1: everything that was started is ended, whatever the test does: a process is the head of a
        group of its own, and `close` kills the group.
Rule 2: a server keeps its ports over a restart, so that endpoints stay valid.
Rule 3: both output streams are kept; `conftest.py` shows what was said during a test that failed.
"""

import abc
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import tomllib
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self
from urllib.request import urlopen

from tests.ports import free_ports

BIN = Path(sys.executable).parent
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
READY_LINE = "waystation is ready"
KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="  # for daemons that must share one
PORTS = 14  # `--port-base N` gives away N … N+13
PUSH_ROLES = ("connect", "endpoint", "console")  # the other services' tests start those

# Whatever a test still knows of; it may have ended.
STARTED: "weakref.WeakSet[Process]" = weakref.WeakSet()


class DidNotStartError(Exception):
    """It ended, or was not ready in time; the text carries what it said."""


def until(condition: Callable[[], bool], *, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass in time"
        time.sleep(0.02)


class Process(abc.ABC):
    """One command, its environment and what it says."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._command = list(command)
        self._env = {**clean_environment(), **env}
        self._child: subprocess.Popen[str] | None = None
        self._pumps: list[threading.Thread] = []
        self.out: list[str] = []
        self.err: list[str] = []
        self.lines: list[str] = []  # both, in the order of arrival

    def add_to_environment(self, **variables: str) -> None:
        """From the next start on."""
        self._env |= variables

    def start(self) -> None:
        assert not self.running
        self._child = subprocess.Popen(
            self._command,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        STARTED.add(self)
        assert self._child.stdout is not None
        assert self._child.stderr is not None
        self._pumps = [
            threading.Thread(target=self._pump, args=(stream, kept), daemon=True)
            for stream, kept in ((self._child.stdout, self.out), (self._child.stderr, self.err))
        ]
        for pump in self._pumps:
            pump.start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.is_ready():
            if not self.running or time.monotonic() > deadline:
                code = self._child.poll()
                self.kill()
                how = "is not ready in time" if code is None else f"ended with code {code}"
                raise DidNotStartError(
                    f"{Path(self._command[0]).name} {how}:\n" + "\n".join(self.lines[-40:])
                )
            time.sleep(0.01)

    @abc.abstractmethod
    def is_ready(self) -> bool: ...

    def _pump(self, stream: IO[str], kept: list[str]) -> None:
        with stream:
            for line in stream:
                kept.append(line.rstrip("\n"))
                self.lines.append(line.rstrip("\n"))

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    def worker_pids(self) -> list[int]:
        """The children that are alive, oldest first."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [int(pid) for pid in children]

    def kill(self) -> None:
        """`kill -9` to the whole group at once. If its head was waited for, the number may be
        somebody else's by now; the group has ended with it (`PR_SET_PDEATHSIG`)."""
        if self._child is not None:
            if self._child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait(10)
            for pump in self._pumps:
                pump.join(5)

    def wait(self, timeout_s: float = 30.0) -> int:
        """Until somebody else has ended it: the exit code. Its children may still be there."""
        assert self._child is not None
        return self._child.wait(timeout_s)

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        assert self._child is not None
        self._child.terminate()
        code = self._child.wait(STOP_TIMEOUT_S)
        for pump in self._pumps:
            pump.join(5)
        return code

    def restart(self) -> None:
        if self.running:
            self.stop()
        self.start()

    def close(self) -> None:
        self.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


class Serve(Process):
    """`waystation serve` on a data directory; `settings` are `connect__port` and the like."""

    def __init__(
        self,
        data_dir: Path,
        *,
        roles: Sequence[str] = PUSH_ROLES,
        workers: int = 1,
        port_base: int | None = None,
        **settings: object,
    ) -> None:
        self.data_dir = data_dir
        self.workers = workers
        command = [
            str(BIN / "waystation"),
            "serve",
            *roles,
            *("--data-dir", str(data_dir)),
            *("--port-base", str(port_base or free_ports(PORTS))),
            *("--workers", str(workers)),
        ]
        # A stop that tells everybody within a moment, unless the test is about the drain.
        settings = {"connect__drain_s": 0.1, **settings}
        super().__init__(command, variables("WAYSTATION_", settings))
        self.addresses: dict[str, Any] = {}

    def change(self, **settings: object) -> None:
        """From the next start on."""
        self._env |= variables("WAYSTATION_", settings)

    def start(self) -> None:
        self.out.clear()
        super().start()
        self.addresses = json.loads((self.data_dir / "run" / "serve.json").read_text())

    def is_ready(self) -> bool:
        return READY_LINE in self.out

    @property
    def ws_url(self) -> str:
        return self.addresses["connect_url"]

    @property
    def endpoint_url(self) -> str:
        return self.addresses["endpoint_url"]

    @property
    def relay_url(self) -> str:
        return self.addresses["relay_url"]

    @property
    def console_url(self) -> str:
        return self.addresses["console_url"].rstrip("/")

    @property
    def presence_address(self) -> str:
        return f"127.0.0.1:{self.addresses['ports']['presence.port']}"

    @property
    def node_ids(self) -> list[str]:
        """Where each worker is reached through the relay port."""
        if self.workers == 1:
            return [self.relay_url]
        return [f"{self.relay_url}/w/{index}" for index in range(self.workers)]

    @property
    def store_url(self) -> str:
        return f"embedded://{self.data_dir / 'store'}"

    @property
    def crypto_key(self) -> str:
        return (self.data_dir / "keys" / "crypto_keys").read_text().strip()

    @property
    def publisher_token(self) -> str:
        """May publish broadcasts for everybody."""
        path = self.data_dir / "keys" / "broadcast_tokens.toml"
        return tomllib.loads(path.read_text())["publishers"]["*"]


class Daemon(Process):
    """`autoconnect` or `autoendpoint`: settings by their own names."""

    def __init__(self, name: str, prefix: str, health_url: str, settings: Mapping[str, object]):
        super().__init__([str(BIN / name)], variables(prefix, settings))
        self._prefix = prefix
        self._health_url = health_url

    def change(self, **settings: object) -> None:
        """From the next start on."""
        self._env |= variables(self._prefix, settings)

    def is_ready(self) -> bool:
        try:
            with urlopen(f"{self._health_url}/__lbheartbeat__", timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False


class Autoconnect(Daemon):
    """A connection node. What it hands out leads to `endpoint_url`."""

    def __init__(
        self, data_dir: Path, *, endpoint_url: str, crypto_key: str, **settings: object
    ) -> None:
        base = free_ports(2)
        self.data_dir = data_dir
        self.ws_url = f"ws://127.0.0.1:{base}/"
        self.relay_url = f"http://127.0.0.1:{base + 1}"
        host, _, port = endpoint_url.removeprefix("http://").partition(":")
        super().__init__(
            "autoconnect",
            "AUTOCONNECT__",
            self.relay_url,
            {
                "host": "127.0.0.1",
                "data_dir": data_dir,
                "port": base,
                "router_port": base + 1,
                "endpoint_hostname": host,
                "endpoint_port": port,
                "crypto_key": crypto_key,
                **settings,
            },
        )


class Autoendpoint(Daemon):
    """An endpoint node."""

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int,
        crypto_key: str,
        auth_key: str = "[a]",
        **settings: object,
    ) -> None:
        self.data_dir = data_dir
        self.endpoint_url = f"http://127.0.0.1:{port}"
        super().__init__(
            "autoendpoint",
            "AUTOEND__",
            self.endpoint_url,
            {
                "data_dir": data_dir,
                "port": port,
                "crypto_keys": crypto_key,
                "auth_keys": auth_key,
                **settings,
            },
        )


def variables(prefix: str, settings: Mapping[str, object]) -> dict[str, str]:
    return {
        f"{prefix}{name.upper()}": str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in settings.items()
    }


def clean_environment() -> dict[str, str]:
    """Ours, without settings that a person may have set for servers of their own."""
    ours = ("WAYSTATION_", "AUTOCONNECT_", "AUTOEND_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}
