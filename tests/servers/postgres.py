"""A PostgreSQL of its own for the tests of one process: free port, loopback, nothing kept.

PostgreSQL refuses to run as root, so as root it runs as the user `postgres` that its package made.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from tests.ports import free_ports
from tests.servers.reaper import ends_with_us
from tests.servers.shared import Shared
from tools.prepare_tests import postgres_folder

USER = "postgres"
AUTOPUSH_TABLES = Path(__file__).parent.parent / "vectors" / "postgres_autopush.sql"
STARTED_WITHIN_S = 60


class PostgresServer:
    """`postgres` in a folder of its own; `stop` and `start` keep the port and the data."""

    def __init__(self, folder: Path) -> None:
        programs = postgres_folder()
        assert programs is not None, "PostgreSQL is missing: run tools/prepare_tests.py"
        self.port = free_ports(1)
        self._programs = programs
        self._folder = folder
        self._names = count()
        self._free: list[str] = []

    def make(self) -> None:
        self._folder.chmod(0o755)
        if os.geteuid() == 0:
            account = pwd.getpwnam(USER)
            os.chown(self._folder, account.pw_uid, account.pw_gid)
        # Another language than C: an order of sort keys that rests on the language would show.
        self._run("initdb", "-D", self._data, "-A", "trust", "-U", USER, "-E", "UTF8", "--no-sync",
                  "--locale-provider=icu", "--icu-locale=en", "--locale=C.UTF-8")  # fmt: skip

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c fsync=off -c max_connections=60"
        options += f" -c unix_socket_directories={self._folder} -c shared_buffers=32MB"
        options += " -c log_min_messages=warning"
        self._run("pg_ctl", "-D", self._data, "-w", "-t", str(STARTED_WITHIN_S), "-o", options,
                  "-l", str(self._folder / "log"), "start")  # fmt: skip
        # The first line of this file is the number of the server's first process.
        ends_with_us(int((self._folder / "data" / "postmaster.pid").read_text().split()[0]))

    def stop(self, how: str = "fast") -> None:
        self._run("pg_ctl", "-D", self._data, "-w", "-m", how, "stop")

    def new_url(self) -> str:
        """A database that nobody has used yet."""
        name = f"test_{os.getpid()}_{next(self._names)}"
        self.command(f"CREATE DATABASE {name}")
        return self.url(name)

    @contextmanager
    def lent_url(self) -> Generator[str]:
        """The same, but given back: emptying a database is much quicker than making one."""
        url = self._free.pop() if self._free else self.new_url()
        yield url
        self.command(
            "SET lock_timeout = '20s'; DROP SCHEMA public CASCADE; CREATE SCHEMA public;"
            " GRANT USAGE ON SCHEMA public TO PUBLIC;"
            " DROP SCHEMA IF EXISTS autopush CASCADE",
            url.rpartition("/")[2],
        )
        self._free.append(url)

    def url(self, database: str, port: int | None = None) -> str:
        return f"postgres://{USER}@127.0.0.1:{port or self.port}/{database}"

    def command(self, sql: str, database: str = "postgres") -> str:
        """What `psql` prints, without decoration."""
        psql = [str(self._programs / "psql"), "-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1"]
        psql += ["-d", self.url(database), "-c", sql]
        done = subprocess.run(psql, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    @property
    def _data(self) -> str:
        return str(self._folder / "data")

    def _run(self, program: str, *words: str) -> None:
        command = [str(self._programs / program), *words]
        if os.geteuid() == 0:
            command = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups", *command]
        log = self._folder / f"{program}.out"  # a pipe would be inherited by the server
        with log.open("wb") as out:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/", check=False
            )
        assert done.returncode == 0, f"{program} failed:\n{log.read_text()}"


@contextmanager
def running_postgres() -> Generator[PostgresServer]:
    folder = Path(tempfile.mkdtemp(prefix="waystation-pg-"))
    server = PostgresServer(folder)
    try:
        server.make()
        server.start()
        try:
            yield server
        finally:
            server.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_shared = Shared(running_postgres)


@pytest.fixture(scope="session")
def postgres_server() -> Generator[PostgresServer]:
    with _shared.held() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Generator[str]:
    with postgres_server.lent_url() as url:
        yield url


@pytest.fixture
def autopush_url(postgres_server: PostgresServer) -> Generator[str]:
    """A database that Autopush's operators made and that no node of ours has seen."""
    with postgres_server.lent_url() as url:
        postgres_server.command(AUTOPUSH_TABLES.read_text(), url.rpartition("/")[2])
        yield url
