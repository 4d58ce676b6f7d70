"""The context of a job, its result, and the retry after a lost commit.

Rule 1: a job is `run(ctx) -> JobResult`: it plans, lets a transform compute, and commits.
Rule 2: a second run without new input commits nothing and returns the state `noop`.
Rule 3: a job that loses the commit to a concurrent one plans again, at most `TRIES` times in all.
"""

import contextlib
import os
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec
from pyspark.sql import SparkSession
from structlog.typing import FilteringBoundLogger

from waystation.base.clock import Clock
from waystation.pipeline.delta_table import Lake, LostRaceError
from waystation.pipeline.settings import Pipeline
from waystation.telemetry import logs

TRIES = 3


class Context(msgspec.Struct, frozen=True):
    """Session, lake, clock and settings of a job."""

    spark: SparkSession
    lake: Lake
    clock: Clock
    settings: Pipeline = Pipeline()
    log: FilteringBoundLogger = msgspec.field(default_factory=lambda: logs.get("pipeline"))

    def new_run(self) -> str:
        """Name of one attempt: the folder of its files, recorded in its commit."""
        return f"{self.clock.now_us()}-{secrets.token_hex(4)}"

    def today(self) -> str:
        """The UTC date: the partition of a job's own records."""
        return datetime.fromtimestamp(self.clock.now_ms() / 1000, UTC).date().isoformat()


class JobResult(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    state: Literal["done", "noop"] = "done"
    run: str = ""
    inputs: dict[str, int] = {}
    outputs: dict[str, int] = {}
    rows_in: int = 0
    rows_out: int = 0
    files: int = 0
    notes: dict[str, int | float | str] = {}
    seconds: float = 0.0
    cpu_seconds: float = 0.0


def noop(job: str, **inputs: int) -> JobResult:
    return JobResult(job=job, state="noop", inputs=inputs)


def attempt(ctx: Context, job: Callable[[Context], JobResult]) -> JobResult:
    """Runs a job, repeats it after a lost commit (rule 3), and adds the time used."""
    wall, cpu = time.monotonic(), cpu_seconds()
    for left in reversed(range(TRIES)):
        try:
            result = job(ctx)
        except LostRaceError as exc:
            ctx.log.warning("job.lost_race", reason=str(exc), tries_left=left)
            if not left:
                raise
        else:
            took = {"seconds": time.monotonic() - wall, "cpu_seconds": cpu_seconds() - cpu}
            return msgspec.structs.replace(result, **took)
    raise AssertionError("the last try returns or raises")


def cpu_seconds() -> float:
    """CPU time of this process and its descendants (the JVM, Python workers, also ended ones), as
    far as the system reports it."""
    ended = os.times()
    total = time.process_time() + ended.children_user + ended.children_system
    tick = os.sysconf("SC_CLK_TCK")
    for pid in _children(os.getpid()):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15])) / tick  # of the process and of its ended children
    return total


def _children(pid: int) -> list[int]:
    """All descendants of a process; /proc lists children by the thread that started them."""
    direct: list[int] = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            direct += map(int, listed.read_text(encoding="utf-8").split())
    return direct + [below for child in direct for below in _children(child)]
