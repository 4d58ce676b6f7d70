"""Ports for the servers of tests, which keep theirs while they are down.

Rule 1: they lie below the ephemeral ports, so that nobody's outgoing connection sits on one.
Rule 2: processes of one run take theirs from different ranges, and each walks through its own, so
        that nobody is given a port whose server is only being restarted.
"""

import contextlib
import os
import random
import socket

FIRST, LAST = 10_000, 32_000
TRIES_MAX = 2_000


class NoFreePortError(Exception):
    """All are taken."""


class Ports:
    def __init__(self, first: int, last: int) -> None:
        self._first = first
        self._last = last
        self._next = random.randrange(first, last)  # other runs may go on beside this one

    def take(self, count: int) -> int:
        """The first of `count` ports in a row that nobody uses."""
        for _ in range(TRIES_MAX):
            base = self._next
            if base + count > self._last:
                self._next = self._first
                continue
            self._next = base + count
            if all(map(_is_free, range(base, base + count))):
                return base
        raise NoFreePortError(f"no {count} free ports in a row")


def _is_free(port: int) -> bool:
    with contextlib.closing(socket.socket()) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def range_of(worker: int, workers: int) -> tuple[int, int]:
    share = (LAST - FIRST) // workers
    return FIRST + worker * share, FIRST + (worker + 1) * share


_ports = Ports(
    *range_of(
        int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")),
        int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")),
    )
)
free_ports = _ports.take
