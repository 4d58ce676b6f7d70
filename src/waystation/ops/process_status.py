"""Status of the running process: memory, descriptors, event loop lag, and its status file."""

import asyncio
import contextlib
import os
import platform
import re
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from waystation.base.clock import Clock
from waystation.console.model import WorkerStatus
from waystation.telemetry.metrics import Metrics
from waystation.telemetry.snapshots import write_snapshot

LAG_INTERVAL_S = 0.5
REPORT_INTERVAL_S = 1.0
STATUS_SUFFIX = ".status"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def rss_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0


def open_fds() -> int:
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # the listing itself needs one
    except OSError:
        return 0


def event_node(machine: str, worker: str) -> str:
    """`<machine>.<role>.<k>`, as the event contract names a process."""
    name = re.sub(r"[^a-z0-9.-]", "-", (machine or platform.node()).lower())
    return f"{name[:40] or 'node'}.{worker}"


class LoopLag:
    """Measures how late the event loop runs its timers."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.worst_recent_s = 0.0

    async def run(self) -> None:
        while True:
            asked = self._clock.mono()
            await asyncio.sleep(LAG_INTERVAL_S)
            late_s = max(0.0, self._clock.mono() - asked - LAG_INTERVAL_S)
            # The maximum decays with every sample, so that it stays recent.
            self.worst_recent_s = max(late_s, self.worst_recent_s * 0.9)


class StatusFiles:
    """Writes metrics and status of a worker to files, for the port that serves all workers."""

    def __init__(
        self,
        directory: Path,
        name: str,
        roles: tuple[str, ...],
        *,
        metrics: Metrics,
        lag: LoopLag,
        clock: Clock,
        connections: Callable[[], int] = lambda: 0,
        counts: Callable[[], dict[str, int]] = dict,
    ) -> None:
        self._directory = directory
        self._name = name
        self._roles = roles
        self._metrics = metrics
        self._lag = lag
        self._clock = clock
        self._connections = connections
        self._counts = counts
        self._started_at_ms = clock.now_ms()
        self._gauges = {
            name: metrics.gauge(name)
            for name in (
                "process_resident_memory_bytes",
                "process_open_fds",
                "process_start_time_seconds",
                "loop_lag_seconds",
            )
        }
        self._user_agents = metrics.gauge("ua_connections") if "connect" in roles else None
        self._cpu = metrics.counter("process_cpu_seconds")
        metrics.on_read(self._fill)

    def _fill(self) -> None:
        gauges = self._gauges
        gauges["process_resident_memory_bytes"].value = rss_bytes()
        gauges["process_open_fds"].value = open_fds()
        gauges["process_start_time_seconds"].value = self._started_at_ms / 1000
        gauges["loop_lag_seconds"].value = self._lag.worst_recent_s
        if self._user_agents is not None:
            self._user_agents.value = self._connections()
        self._cpu.value = time.process_time()

    def status(self) -> WorkerStatus:
        return WorkerStatus(
            name=self._name,
            roles=self._roles,
            pid=os.getpid(),
            started_at_ms=self._started_at_ms,
            reported_at_ms=self._clock.now_ms(),
            rss_bytes=rss_bytes(),
            connections=self._connections(),
            loop_lag_ms=self._lag.worst_recent_s * 1000,
            counts=self._counts(),
        )

    async def report(self) -> None:
        snapshot = self._metrics.snapshot(self._name, self._clock.now_ms())
        status = msgspec.json.encode(self.status())

        def write() -> None:
            with contextlib.suppress(OSError):  # a full disk must not end a worker
                write_snapshot(self._directory, snapshot)
                fresh = self._directory / f".{self._name}.new"
                fresh.write_bytes(status)
                fresh.replace(self._directory / (self._name + STATUS_SUFFIX))

        await asyncio.to_thread(write)

    async def run(self) -> None:
        while True:
            await self.report()
            await asyncio.sleep(REPORT_INTERVAL_S)
