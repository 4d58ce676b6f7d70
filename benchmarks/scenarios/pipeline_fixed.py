"""What does not grow with the events: starts, commits and plans (P6, P7, P8, P10, P11).

Starts happen in processes of their own (`benchmarks.pipeline_session`). A test session is measured
as people have it from their second one on: the first finds no archive of Spark's classes and leaves
one, written in the background, for which we wait here. The stock session is Spark as it comes,
without one; both are started by turns.
"""

import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from benchmarks.cost import Cost, contest, cost, told
from benchmarks.measurement import Bar, Measurement
from waystation.pipeline.commit_log import DataFile
from waystation.pipeline.delta_table import Lake
from waystation.pipeline.java import find_java
from waystation.pipeline.rebalance import Server, Slot, rebalance
from waystation.pipeline.schema import EVENTS
from waystation.pipeline.session import archive_for, options
from waystation.queue.model import SLOTS

COMMITS = 1000
FILES = 100
SERVERS = 16
CHILD_TIMEOUT_S = 900
SESSIONS = 3  # of each kind
ARCHIVE_WITHIN_S = 900


def starts(folder: Path, paths: list[str], count: int) -> Iterator[Measurement]:
    """Of a command, and of sessions; `paths` are files of events for the fold."""
    folder.mkdir()
    ours = str(Path(sys.executable).with_name("waystation"))
    doctor = [ours, "pipeline", "--data-dir", str(folder), "--lake", str(folder / "lake"), "doctor"]
    took = Cost(cost(lambda: _run(doctor)).seconds, 0)  # its JVM is not below this process
    bars = (Bar("P6, doctor, cold", took.seconds, 30, "s"),)
    yield told("pipeline: doctor", 1, took, operation="command", bars=bars)
    _child("first", "test", str(folder))
    notes = "with the archive of classes" if _archived() else "there is no archive of classes"
    used: dict[str, list[Cost]] = {"stock": [], "test": []}
    for _ in range(SESSIONS):
        for name, costs in used.items():
            costs.append(_child("first", name, str(folder)))
    stock, test = map(_middle, used.values())
    yield _session("stock", stock)
    bars = (Bar("P7, of the stock session", test.cpu_s / stock.cpu_s, 0.5),)
    yield _session("test", test, bars, notes)
    folds = {name: _child("fold", name, *paths) for name in ("embedded", "test")}
    first_only = any("TieredStopAtLevel" in one for one in options("embedded", folder))
    yield told("pipeline: fold with the first compiler alone", count, folds["test"])
    yield told(
        "pipeline: fold with both compilers",
        count,
        folds["embedded"],
        bars=(
            Bar("P8, first compiler alone costs", folds["test"].cpu_s / folds["embedded"].cpu_s),
            Bar("P8, profile for long jobs has it alone", float(first_only), 0, "(0: no)"),
        ),
    )


def commits(lake: Lake) -> Iterator[Measurement]:
    """Of a batch, and opening a table that has seen many."""
    table = lake.table(EVENTS)
    handle = table.open()
    took = cost(lambda: handle.append(_files(0, FILES), "batch", {"bench": 1}))
    bars = (Bar("P10, commit", took.seconds, 0.2, "s"),)
    yield told(f"pipeline: commit of {FILES} files", 1, took, operation="commit", bars=bars)
    for number in range(COMMITS - 1):
        handle.append(_files(number + 1, 1), "batch", {})

    def opened() -> None:
        assert len(table.open().files()) == FILES + COMMITS - 1

    took = contest({"open": opened}, rounds=9)["open"]
    bars = (Bar("P10, open", took.seconds, 0.3, "s"),)
    name = f"pipeline: opening a table of {COMMITS} commits"
    yield told(name, 1, took, operation="table", bars=bars)


def plan() -> Measurement:
    """Rebalancing, two servers new and one drained, with load as uneven as people are."""
    chance = random.Random(4096)
    slots = [Slot(slot, chance.paretovariate(1.2), 1 << 20) for slot in range(SLOTS)]
    owners = {slot: slot * (SERVERS - 2) // SLOTS for slot in range(SLOTS)}
    servers = [Server(node, 0.0 if node == 3 else 1.0) for node in range(SERVERS)]
    took = contest({"plan": lambda: rebalance(slots, owners, servers)}, rounds=5)["plan"]
    bars = (Bar("P11", took.seconds * 1000, 50, "ms"),)
    name = f"pipeline: plan for {SLOTS} slots"
    return told(name, 1, took, operation="plan", bars=bars)


def _files(number: int, count: int) -> list[DataFile]:
    """Names alone: a commit does not look at its files."""
    hours = ({"date": "2026-11-06", "hour": str(at % 24)} for at in range(count))
    return [
        DataFile(f"data/{number}/{at}.parquet", 1 << 20, 1000, {**hour}, at, at + 1)
        for at, hour in enumerate(hours)
    ]


def _archived() -> bool:
    """When the archive is there; False: there is no place for one."""
    archive = archive_for(find_java(None, os.environ).home)
    deadline = time.monotonic() + ARCHIVE_WITHIN_S
    while archive is not None and archive.file() is None:
        if time.monotonic() > deadline:
            raise RuntimeError(f"no archive of classes within {ARCHIVE_WITHIN_S} s")
        time.sleep(1)
    return archive is not None


def _middle(costs: list[Cost]) -> Cost:
    return Cost(
        statistics.median(one.seconds for one in costs),
        statistics.median(one.cpu_s for one in costs),
    )


def _session(profile: str, used: Cost, bars: tuple[Bar, ...] = (), notes: str = "") -> Measurement:
    name = f"pipeline: session to its first query, {profile}"
    return told(name, 1, used, operation="session", bars=bars, notes=notes)


def _child(*arguments: str) -> Cost:
    began = time.perf_counter()
    said = _run([sys.executable, "-m", "benchmarks.pipeline_session", *arguments])
    (cpu_s,) = (line.partition("=")[2] for line in said.splitlines() if line.startswith("cpu_s="))
    return msgspec.convert({"seconds": time.perf_counter() - began, "cpu_s": float(cpu_s)}, Cost)


def _run(command: list[str]) -> str:
    """With the surroundings that this process had before it made a session of its own."""
    theirs = ("SPARK_", "PYSPARK_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(theirs)}
    done = subprocess.run(
        command,
        env=env | {"JAVA_HOME": str(find_java(None, os.environ).home)},
        capture_output=True,
        text=True,
        check=False,
        timeout=CHILD_TIMEOUT_S,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:6])} failed: {done.stderr[-2000:]}")
    return done.stdout
