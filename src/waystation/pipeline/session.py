"""Builds the Spark session of a run, for laptop, tests and cluster.

Rule 1: everything that must be set before the JVM starts (Java, interpreter, addresses, memory, log
        format, scratch folder) is set here and nowhere else.
Rule 2: the profiles `embedded` and `test` set all of it; `cluster` keeps the cluster's Java,
        memory, addresses and folders and sets only options that affect results.
Rule 3: the session listens on no public address, prints errors only, and deletes its scratch folder
        at its end; the next run deletes the folder of a killed process.

`test` and short runs of `embedded` use only the JVM's C1 compiler, which reduces start-up by two
thirds; a fold of ten million events would take twice as long with it. The class archive halves the
remaining start-up.
"""

import atexit
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pyspark
from pyspark.sql import SparkSession

from waystation.pipeline.class_archive import ClassArchive, find
from waystation.pipeline.java import examine, find_java, home_for_spark

Profile = Literal["test", "embedded", "cluster"]

_JARS = Path(pyspark.__file__).parent / "jars"
_SCRATCH = "waystation-spark-"
_MEMORY_MIN_BYTES = 2 << 30
_MEMORY_MAX_BYTES = 8 << 30

# Options that affect results, for all profiles.
_EVERYWHERE = {
    "spark.sql.session.timeZone": "UTC",  # dates in partitions must not depend on the host
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # INT96 has no statistics
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",  # protects other partitions
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",  # file lists are explicit
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.adaptive.enabled": "true",
    # This rule removes branches whose rows are all filtered out, including their observed metrics.
    "spark.sql.adaptive.optimizer.excludedRules": (
        "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"
    ),
    # The JVM does not compile longer methods, so Spark should split them: halves the time of the
    # checks of `ingest`.
    "spark.sql.codegen.hugeMethodLimit": "8000",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.speculation": "false",  # two attempts must not write to a store at once
}
_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.catalogImplementation": "in-memory",
    # No checksum file beside each file; Parquet has its own.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}


def build(
    profile: Profile = "embedded",
    overrides: Mapping[str, str] | None = None,
    *,
    master: str | None = None,
    java: Path | None = None,
    name: str = "waystation",
    short: bool = False,
    archived: bool = True,
) -> SparkSession:
    """Starts the JVM and the session; a process has one, and a second call returns it. `short`: for
    work of less than a minute, too short for optimised code to pay off. `archived`: uses the
    class archive, or creates one for the next session."""
    settings = dict(_EVERYWHERE)
    archive: ClassArchive | None = None
    if profile != "cluster":
        archive, local = _local_settings(profile, java, short=short, archived=archived)
        settings |= local
    settings |= overrides or {}
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    elif profile != "cluster":
        builder = builder.master("local[2]" if profile == "test" else "local[*]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if archive is not None:
        archive.write_later()
    return spark


def archive_for(java_home: Path) -> ClassArchive | None:
    """The archive of this Spark on a Java; None without a Java or a private folder."""
    java = examine(java_home)
    return None if java is None else find(java, _JARS, os.environ)


def _local_settings(
    profile: Profile, java: Path | None, *, short: bool, archived: bool
) -> tuple[ClassArchive | None, dict[str, str]]:
    found = find_java(java, os.environ)
    scratch = _scratch()
    home = home_for_spark(found, scratch)
    archive = find(found, _JARS, os.environ) if archived else None
    if archive is None:
        configuration = scratch / "conf"  # empty: ignores a user's configuration
        configuration.mkdir()
    else:
        configuration = archive.configuration
    os.environ |= {
        "JAVA_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_CONF_DIR": str(configuration),
    }
    for name in ("SPARK_HOME", "PYSPARK_SUBMIT_ARGS"):  # those of another Spark
        os.environ.pop(name, None)
    cores = len(os.sched_getaffinity(0))
    started_with = options(profile, scratch, short=short) + (archive.reading() if archive else [])
    return archive, _LOCAL | {
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.shuffle.partitions": "2" if profile == "test" else str(4 * cores),
        "spark.driver.memory": f"{_memory_bytes(profile) >> 20}m",
        "spark.driver.extraJavaOptions": " ".join(started_with),
    }


def options(profile: Profile, scratch: Path, *, short: bool = False) -> list[str]:
    """JVM options of a local profile."""
    wanted = [
        "-XX:+UseParallelGC",  # G1 is a fifth slower
        f"-Djava.io.tmpdir={scratch}",
        f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}",
    ]
    if short or profile == "test":
        wanted += ["-XX:TieredStopAtLevel=1"]
    return wanted


def _memory_bytes(profile: Profile) -> int:
    if profile == "test":
        return _MEMORY_MIN_BYTES
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(max(_MEMORY_MIN_BYTES, whole // 4), _MEMORY_MAX_BYTES)


def _scratch() -> Path:
    root = Path(tempfile.gettempdir())
    for left in root.glob(f"{_SCRATCH}*"):
        pid = left.name.removeprefix(_SCRATCH).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            shutil.rmtree(left, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"{_SCRATCH}{os.getpid()}-"))
    atexit.register(_leave, scratch)
    return scratch


def _leave(scratch: Path) -> None:
    """Called at exit: ends the JVM first, because it still writes into the folder."""
    with contextlib.suppress(Exception):
        session = SparkSession.getActiveSession()
        if session is not None:
            session.stop()
    shutil.rmtree(scratch, ignore_errors=True)
