"""spark-submit against a standalone master with two workers gives the same tables."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.ports import free_ports
from waystation.base.clock import SystemClock
from waystation.pipeline import generate
from waystation.pipeline.delta_table import Lake
from waystation.pipeline.job_context import Context
from waystation.pipeline.jobs import fold, ingest, merge
from waystation.pipeline.schema import EVENTS, MSG
from waystation.pipeline.traffic import Traffic

HOME = Path(pyspark.__file__).parent
SUBMIT = Path(__file__).parents[2] / "src" / "waystation" / "cli" / "submit.py"
TRAFFIC = Traffic(seed=3, messages=3_000)


@contextmanager
def spark_process(folder: Path, kind: str, said: str, *arguments: str) -> Iterator[None]:
    """A master or a worker, ready when its log says so."""
    command = [HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{kind}", *arguments]
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(folder),
        "PYSPARK_PYTHON": sys.executable,
    }
    environment.pop("SPARK_CONF_DIR", None)  # of this process's own session
    process = subprocess.Popen(
        list(map(str, command)), env=environment, stderr=subprocess.PIPE, text=True, cwd=folder
    )
    assert process.stderr is not None
    drain: threading.Thread | None = None
    try:
        for line in process.stderr:
            if re.search(said, line):
                break
        else:
            pytest.fail(f"{kind} ended before it was ready")
        # Nobody reads what it says later; it must not have to wait for somebody.
        drain = threading.Thread(target=process.stderr.read, daemon=True)
        drain.start()
        yield
    finally:
        process.kill()
        process.wait()
        if drain is not None:
            drain.join(30)
        process.stderr.close()


@pytest.mark.soak
def test_two_workers_compute_what_one_process_computes(spark: SparkSession, tmp_path: Path) -> None:
    clock = SystemClock()
    ours = Context(spark, Lake(spark, str(tmp_path / "ours"), clock), clock)
    spool = tmp_path / "spool"
    generate.to_segments(ours, TRAFFIC, spool)
    ingest.drain(ours, spool)
    fold.run(ours)
    merge.run(ours, all_days=True)
    port = free_ports(4)
    web, *webs = range(port + 1, port + 4)
    address = f"spark://127.0.0.1:{port}"

    with ExitStack() as stack:
        host = ("--host", "127.0.0.1", "--webui-port")
        start = stack.enter_context
        start(
            spark_process(
                tmp_path, "master.Master", "elected leader", *host, str(web), "--port", str(port)
            )
        )
        for number, worker_web in enumerate(webs):
            folder = tmp_path / f"worker{number}"
            folder.mkdir()
            options = (*host, str(worker_web), "--cores", "1", "--memory", "1g", address)
            start(spark_process(folder, "worker.Worker", "Successfully registered", *options))
        folders = ("--data-dir", tmp_path, "--lake", tmp_path / "theirs", "--spool", spool)
        told = submit(address, *map(str, folders), "run", "--only", "ingest,fold,merge")
    # Spark sends what the command logs the same way; results are the lines that name a job.
    lines = [msgspec.json.decode(line) for line in told.splitlines() if line.startswith("{")]
    assert [(one["job"], one["state"]) for one in lines if "job" in one] == [
        ("ingest", "done"),
        ("fold", "done"),
        ("merge", "done"),
    ]

    theirs = Lake(spark, str(tmp_path / "theirs"), clock)
    for spec in (EVENTS, MSG):
        names = [name for name in spec.data.names if name != "_in"]
        mine, other = ours.lake.read(spec).select(*names), theirs.read(spec).select(*names)
        assert mine.count() == other.count() > 0
        assert mine.exceptAll(other).isEmpty()


def submit(address: str, *arguments: str) -> str:
    command = [HOME / "bin" / "spark-submit", "--master", address, "--driver-memory", "1g"]
    command += ["--conf", "spark.executor.memory=512m", "--conf", "spark.ui.enabled=false"]
    command += ["--conf", "spark.driver.host=127.0.0.1", SUBMIT, "--json", *arguments]
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in {"SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT"}
    }
    done = subprocess.run(
        list(map(str, command)), env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
