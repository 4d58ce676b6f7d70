"""Ingest killed at random moments over a live event log: counts and sums stay the truth."""

import contextlib
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.oracle import intake as oracle
from waystation.base.clock import SystemClock
from waystation.pipeline.job import Context
from waystation.pipeline.jobs import ingest
from waystation.pipeline.schema import EVENTS, QUARANTINE
from waystation.pipeline.settings import Pipeline
from waystation.pipeline.table import Lake

ROOT = Path(__file__).parents[2]
# A batch is planned, its rows and the results of its checks are written, both are committed: seven
# steps. The process is killed a moment after so many of them; five times in `make test`.
STEPS_BEFORE_A_KILL = (0, 1, 2, 6, 7)
KILLS_OF_A_SOAK = 50
STEPS_MAX = 16
MOMENT_S = 0.3


class Life:
    """A lake, a spool, and the process that writes into it."""

    def __init__(self, folder: Path) -> None:
        self.lake = str(folder / "lake")
        self.spool = folder / "spool"
        self.writer = start("tests.pipeline.writing_process", str(self.spool), "0.5")

    def kill_an_ingest(self, rng: random.Random, steps: int) -> int:
        """Starts one, kills it at a random moment after some steps, and returns how it ended."""
        process = start("tests.pipeline.ingest_process", self.lake, str(self.spool))
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            for _ in range(steps):
                process.stdout.readline()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(rng.uniform(0, MOMENT_S))
        finally:
            process.kill()
            code = process.wait()
            process.stdin.close()
            process.stdout.close()
        return code

    def end(self) -> tuple[int, int]:
        """Ends the writer: how many events it wrote, and the sum of their sizes."""
        said, _ = self.writer.communicate(timeout=60)
        count, total = said.split()
        return int(count), int(total)


def start(module: str, *arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
    except BaseException:
        process.kill()
        raise
    return process


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    living = Life(tmp_path_factory.mktemp("kills"))
    yield living
    living.writer.kill()
    living.writer.wait()


def check_that_the_lake_holds_the_truth(spark: SparkSession, life: Life) -> None:
    count, total = life.end()
    clock = SystemClock()
    lake = Lake(spark, life.lake, clock)
    assert lake.table(EVENTS).open().version > 0, "nobody was killed after a commit"
    ingest.drain(Context(spark, lake, clock, Pipeline(seal_after_s=0.0)), life.spool)

    rows = lake.read(EVENTS)
    sums = rows.agg(F.count("*"), F.sum("size"), F.count_distinct("node", "boot", "seq")).first()
    assert sums is not None
    assert tuple(sums) == (count, total, count)
    truth = Counter(row["seq"] for row in oracle.judge(life.spool).events)
    assert Counter(row.seq for row in rows.select("seq").collect()) == truth
    assert lake.read(QUARANTINE).count() == 0


@pytest.mark.parametrize("steps", STEPS_BEFORE_A_KILL)
def test_an_ingest_is_killed_at_a_random_moment(life: Life, steps: int) -> None:
    assert life.kill_an_ingest(random.Random(steps), steps) == -signal.SIGKILL


def test_after_five_kills_counts_and_sums_are_what_the_writer_wrote(
    spark: SparkSession, life: Life
) -> None:
    check_that_the_lake_holds_the_truth(spark, life)


@pytest.mark.soak
def test_after_fifty_kills_counts_and_sums_are_what_the_writer_wrote(
    spark: SparkSession, tmp_path: Path
) -> None:
    life = Life(tmp_path)
    rng = random.Random(50)
    try:
        for _ in range(KILLS_OF_A_SOAK):
            assert life.kill_an_ingest(rng, rng.randrange(STEPS_MAX)) == -signal.SIGKILL
        check_that_the_lake_holds_the_truth(spark, life)
    finally:
        life.writer.kill()
        life.writer.wait()
