"""A Bigtable emulator of its own for the tests of one process: free port, loopback, in memory."""

import asyncio
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import msgspec
import pytest

from tests.ports import free_ports
from tools.prepare_tests import bigtable_emulator as find_emulator
from waystation.storage.bigtable.init import init_table
from waystation.storage.bigtable.url import BigtableUrl

STARTED_WITHIN_S = 20.0
STARTS_MAX = 5  # another process may take a port between our asking for it and the emulator's


class BigtableEmulator:
    """`stop` and `start` keep the port; what was stored is gone."""

    def __init__(self, binary: Path) -> None:
        self._binary = binary
        self._process: subprocess.Popen[bytes] | None = None
        self._tables = count()
        self.port = 0

    def start(self) -> None:
        for _ in range(STARTS_MAX):
            port = self.port or free_ports(1)
            command = [str(self._binary), "-host", "127.0.0.1", "-port", str(port)]
            process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            if _answers(process, port):
                self._process, self.port = process, port
                return
            process.kill()
            process.wait(10)
        raise RuntimeError(f"{self._binary} did not start")

    def new_table(self, **fields: str | int) -> BigtableUrl:
        """A table with all families that nobody has used yet. Needs a loop that is not running."""
        url = self.unmade_table(**fields)
        asyncio.run(init_table(url))
        return url

    def unmade_table(self, **fields: str | int) -> BigtableUrl:
        """A name that nobody has used yet."""
        url = BigtableUrl(
            project="test",
            instance="test",
            table=f"autopush{next(self._tables)}",
            emulator=f"127.0.0.1:{self.port}",
            grpc_channel_count=1,
        )
        return _replaced(url, fields)

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(10)


def _replaced(url: BigtableUrl, fields: dict[str, str | int]) -> BigtableUrl:
    return msgspec.structs.replace(url, **fields)


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + STARTED_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return process.poll() is None
    return False


@contextmanager
def running_emulator() -> Iterator[BigtableEmulator]:
    binary = find_emulator()
    assert binary is not None, "no Bigtable emulator: run tools/prepare_tests.py, or SKIP=bigtable"
    emulator = BigtableEmulator(binary)
    try:
        emulator.start()
        yield emulator
    finally:
        emulator.stop()


@pytest.fixture(scope="session")
def bigtable_emulator() -> Iterator[BigtableEmulator]:
    with running_emulator() as emulator:
        yield emulator


@pytest.fixture
def bigtable_url(bigtable_emulator: BigtableEmulator) -> BigtableUrl:
    return bigtable_emulator.new_table()
