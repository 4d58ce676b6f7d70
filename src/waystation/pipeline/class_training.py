"""Writes the archive of Spark's classes: runs a short Spark session that loads most of them.

`python -m waystation.pipeline.class_training JAVA_HOME` is started in the background by a session
that has found no archive (`class_archive`, rule 2).
"""

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

from waystation.pipeline import session
from waystation.pipeline.class_archive import ClassArchive
from waystation.pipeline.delta_table import local_frame
from waystation.pipeline.schema import columns

ROWS: Final = 1000
LIMIT_S: Final = 900  # long, because it runs at the lowest priority
LOWEST: Final = 19


def main(java_home: str) -> None:
    os.nice(LOWEST)
    signal.alarm(LIMIT_S)  # ends this process and its JVM
    archive = session.archive_for(Path(java_home))
    if archive is None:
        return
    try:
        train(archive)
    finally:
        shutil.rmtree(archive.unfinished, ignore_errors=True)


def train(archive: ClassArchive) -> None:
    """Runs a session whose JVM writes the archive at its end."""
    folder = archive.unfinished
    written = folder / "written"
    wanted = [*session.options("test", folder), *archive.writing(written)]
    spark = session.build(
        "test",
        {"spark.driver.extraJavaOptions": " ".join(wanted), "spark.driver.memory": "1g"},
        java=archive.java.home,
    )
    try:
        run_typical_operations(spark, folder)
    finally:
        end(spark)
    if written.exists():
        archive.keep(written)


def run_typical_operations(spark: SparkSession, folder: Path) -> None:
    """Runs the operations that nearly every job uses. The jobs themselves would load a tenth more
    classes and take three times as long."""
    lines, rows = str(folder / "lines"), str(folder / "rows")
    frame = spark.range(ROWS).selectExpr(
        "id", "id % 7 AS part", "hex(id) AS name", "id / 3 AS share"
    )
    frame.write.partitionBy("part").parquet(rows)
    frame.write.json(lines)
    read = spark.read.schema("id bigint, part bigint, name string").json(lines)
    parts = read.groupBy("part").agg(
        F.count("*").alias("count"), F.min("id").alias("first"), F.max("name").alias("last")
    )
    order = Window.partitionBy("part").orderBy(F.desc("id"))
    latest = (
        spark.read.parquet(rows).withColumn("place", F.row_number().over(order)).where("place <= 3")
    )
    latest.join(parts, on="part", how="left").sort("part", "place").collect()
    local_frame(spark, [(1, "a")], columns("id bigint, name string")).collect()


def end(spark: SparkSession) -> None:
    """Waits for the JVM, which writes the archive at its end."""
    # pyspark has no public access to its process
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
