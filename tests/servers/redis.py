"""A Redis of its own for the tests of one process: free port, loopback, nothing kept."""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from tests.ports import free_ports

STARTED_WITHIN_S = 20.0
DATABASES = 4096  # each test has its own, so nothing needs to be flushed


class RedisServer:
    """`redis-server` in a folder of its own; `stop` and `start` keep the port."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.port = free_ports(2)
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = count()

    def new_url(self) -> str:
        """A database that nobody has used yet."""
        return f"redis://127.0.0.1:{self.port}/{next(self._databases) % DATABASES}"

    def start(self) -> None:
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        command += ["--databases", str(DATABASES), "--dir", str(self._folder), *self._options]
        if "--cluster-enabled" in self._options:
            command += ["--cluster-port", str(self.port + 1)]
        log = (self._folder / "redis.log").open("ab")
        with log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + STARTED_WITHIN_S
        while self.command("PING") != "PONG":
            if time.monotonic() > deadline or self._process.poll() is not None:
                said = (self._folder / "redis.log").read_text()
                raise RuntimeError(f"redis-server did not start:\n{said}")
            time.sleep(0.02)

    def command(self, *words: str) -> str:
        """What `redis-cli` prints."""
        cli = ["redis-cli", "-h", "127.0.0.1", "-p", str(self.port), *words]
        done = subprocess.run(cli, capture_output=True, text=True, timeout=20, check=False)
        return done.stdout.strip()

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(10)


@contextmanager
def running_redis(*options: str) -> Iterator[RedisServer]:
    folder = Path(tempfile.mkdtemp(prefix="waystation-redis-"))
    server = RedisServer(folder, *(options or ("--appendonly", "no")))
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running_cluster() -> Iterator[list[RedisServer]]:
    """Two masters that share the slots; enough to be sent from one to the other."""
    options = ("--appendonly", "no", "--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
    with running_redis(*options) as first, running_redis(*options) as second:
        first.command("CLUSTER", "ADDSLOTSRANGE", "0", "8191")
        second.command("CLUSTER", "ADDSLOTSRANGE", "8192", "16383")
        first.command("CLUSTER", "MEET", "127.0.0.1", str(second.port), str(second.port + 1))
        deadline = time.monotonic() + STARTED_WITHIN_S
        while any("cluster_state:ok" not in s.command("CLUSTER", "INFO") for s in (first, second)):
            if time.monotonic() > deadline:
                raise RuntimeError("the cluster did not come together")
            time.sleep(0.05)
        yield [first, second]


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[list[RedisServer]]:
    with running_cluster() as servers:
        yield servers


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    return redis_server.new_url()
