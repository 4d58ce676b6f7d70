"""A session of its own in a process of its own, for what only a fresh JVM can show.

`python -m benchmarks.pipeline_session first PROFILE FOLDER`: to the first query, a Parquet round
trip. `… fold PROFILE PATH…`: the fold of some files, warm. PROFILE is one of ours, or `stock` for
Spark as it comes. Prints CPU seconds.
"""

import os
import sys
from pathlib import Path
from typing import cast

from pyspark.sql import SparkSession

from benchmarks.cost import between, contest
from benchmarks.process_tree import spent
from waystation.pipeline import session
from waystation.pipeline.transforms.fold import fold


def main(what: str, profile: str, *places: str) -> float:
    spark = _session(profile)
    if what == "first":
        path = str(Path(places[0]) / f"{profile}-{os.getpid()}")
        spark.range(1000).selectExpr("id", "id % 7 as part").write.parquet(path)
        read = spark.read.parquet(path)
        assert read.groupBy("part").count().count() == 7
        return between({}, spent(os.getpid()))
    events = spark.read.parquet(*places)

    def folded() -> None:
        fold(events).write.format("noop").mode("overwrite").save()

    return contest({"fold": folded}, rounds=3)["fold"].cpu_s


def _session(profile: str) -> SparkSession:
    if profile == "stock":
        return SparkSession.builder.master("local[2]").getOrCreate()
    # As many shuffle partitions as the profile for real work has: only the compiler differs.
    partitions = {"spark.sql.shuffle.partitions": "8"}
    return session.build(cast(session.Profile, profile), partitions, master="local[2]")


if __name__ == "__main__":
    used_s = main(*sys.argv[1:])
    print(f"cpu_s={used_s}", flush=True)
