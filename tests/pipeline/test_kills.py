"""Ingest killed at random moments over a live event log, in segments and in Kafka: counts and sums
stay the truth."""

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
from tests.servers.kafka import KafkaServer, kafka_server  # noqa: F401 a fixture
from waystation.base.clock import SystemClock
from waystation.pipeline.delta_table import Lake
from waystation.pipeline.job_context import Context
from waystation.pipeline.jobs import ingest
from waystation.pipeline.schema import EVENTS, QUARANTINE
from waystation.pipeline.settings import Pipeline
from waystation.telemetry.kafka_topic import KafkaTopic

ROOT = Path(__file__).parents[2]
# A batch is planned, its rows and the results of its checks are written, both are committed. The
# process, which ingests from both in turn, is killed a moment after one of these steps.
STEPS = tuple(
    f"{source} {point} events"
    for source in ("segments", "kafka")
    for point in ("planned", "written", "committing", "committed")
)
KILLED_AFTER = (STEPS[0], STEPS[1], STEPS[3], STEPS[5], STEPS[7])  # five times in `make test`
KILLS_OF_A_SOAK = 50
MOMENT_S = 0.3

pytestmark = pytest.mark.kafka


class Life:
    """Two lakes, a spool and a topic, and the process that writes into both."""

    def __init__(self, folder: Path, kafka: KafkaServer) -> None:
        self.lakes = str(folder / "lakes")
        self.spool = folder / "spool"
        self.topic = KafkaTopic(kafka.servers, kafka.new_topic())
        self.place = (str(self.spool), self.topic.servers, self.topic.name)
        self.writer = start(
            "tests.pipeline.writing_process", str(self.spool), "0.5", *self.place[1:]
        )

    def kill_an_ingest(self, rng: random.Random, step: str) -> int:
        """Starts one, kills it at a random moment after a step, and returns how it ended."""
        process = start("tests.pipeline.ingest_process", self.lakes, *self.place)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line == f"{step}\n":
                    break
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
def life(
    tmp_path_factory: pytest.TempPathFactory,
    kafka_server: KafkaServer,  # noqa: F811 the fixture
) -> Iterator[Life]:
    living = Life(tmp_path_factory.mktemp("kills"), kafka_server)
    yield living
    living.writer.kill()
    living.writer.wait()


def check_that_the_lakes_hold_the_truth(spark: SparkSession, life: Life) -> None:
    count, total = life.end()
    clock = SystemClock()
    seen: dict[str, Counter[int]] = {}
    for name, origin in (("segments", life.spool), ("kafka", life.topic)):
        lake = Lake(spark, f"{life.lakes}/{name}", clock)
        assert lake.table(EVENTS).open().version > 0, "nobody was killed after a commit"
        ingest.drain(Context(spark, lake, clock, Pipeline(seal_after_s=0.0)), origin)

        rows = lake.read(EVENTS)
        sums = rows.agg(
            F.count("*"), F.sum("size"), F.count_distinct("node", "boot", "seq")
        ).first()
        assert sums is not None
        assert tuple(sums) == (count, total, count)
        seen[name] = Counter(row.seq for row in rows.select("seq").collect())
        assert lake.read(QUARANTINE).count() == 0
    truth = Counter(row["seq"] for row in oracle.judge(life.spool).events)
    assert seen == {"segments": truth, "kafka": truth}


@pytest.mark.parametrize("step", KILLED_AFTER)
def test_an_ingest_is_killed_at_a_random_moment(life: Life, step: str) -> None:
    assert life.kill_an_ingest(random.Random(step), step) == -signal.SIGKILL


def test_after_five_kills_counts_and_sums_are_what_the_writer_wrote(
    spark: SparkSession, life: Life
) -> None:
    check_that_the_lakes_hold_the_truth(spark, life)


@pytest.mark.soak
def test_after_fifty_kills_counts_and_sums_are_what_the_writer_wrote(
    spark: SparkSession,
    tmp_path: Path,
    kafka_server: KafkaServer,  # noqa: F811 the fixture
) -> None:
    life = Life(tmp_path, kafka_server)
    rng = random.Random(50)
    try:
        for _ in range(KILLS_OF_A_SOAK):
            assert life.kill_an_ingest(rng, rng.choice(STEPS)) == -signal.SIGKILL
        check_that_the_lakes_hold_the_truth(spark, life)
    finally:
        life.writer.kill()
        life.writer.wait()
