"""A process that ingests until it is killed: `-m tests.pipeline.ingest_process LAKE SPOOL`.

It says where it is in the work: a line for each step of the commit protocol, so that whoever kills
it can do so in every one of them, however slow the machine is.
"""

import sys
import time
from pathlib import Path

from waystation.base.clock import SystemClock
from waystation.pipeline import session
from waystation.pipeline.job import Context
from waystation.pipeline.jobs import ingest
from waystation.pipeline.settings import Pipeline
from waystation.pipeline.table import Lake


def say(point: str, table: str) -> None:
    print(point, table, flush=True)


def main(lake: str, spool: str) -> None:
    spark = session.build("test", {"spark.sql.codegen.wholeStage": "false"})
    clock = SystemClock()
    # Small batches, so that there are many moments between them.
    settings = Pipeline(batch_bytes_max=1 << 20, seal_after_s=0.0, quarantine_share_max=1.0)
    ctx = Context(spark, Lake(spark, lake, clock, at=say), clock, settings)
    print("ready", flush=True)
    while True:
        ingest.drain(ctx, Path(spool))
        time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
