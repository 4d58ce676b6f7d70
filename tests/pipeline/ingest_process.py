"""A process that ingests from segments and from Kafka, each into a lake of its own, until killed:
`-m tests.pipeline.ingest_process LAKES SPOOL SERVERS TOPIC`.

It says where it is in the work: a line for each step of the commit protocol, so that whoever kills
it can do so in every one of them, however slow the machine is.
"""

import sys
import time
from functools import partial
from pathlib import Path

from waystation.base.clock import SystemClock
from waystation.pipeline import session
from waystation.pipeline.delta_table import Lake
from waystation.pipeline.job_context import Context
from waystation.pipeline.jobs import ingest
from waystation.pipeline.settings import Pipeline
from waystation.telemetry.kafka_topic import KafkaTopic


def say(source: str, point: str, table: str) -> None:
    print(source, point, table, flush=True)


def main(lakes: str, spool: str, servers: str, topic: str) -> None:
    spark = session.build("test", {"spark.sql.codegen.wholeStage": "false"})
    clock = SystemClock()
    # Small batches, so that there are many moments between them.
    settings = Pipeline(
        batch_bytes_max=1 << 20,
        batch_records_max=5000,
        seal_after_s=0.0,
        quarantine_share_max=1.0,
    )
    origins = {"segments": Path(spool), "kafka": KafkaTopic(servers, topic)}
    contexts = {
        name: Context(
            spark, Lake(spark, f"{lakes}/{name}", clock, at=partial(say, name)), clock, settings
        )
        for name in origins
    }
    print("ready", flush=True)
    while True:  # a batch each, since a slow machine might never come to the end of one of them
        for name, origin in origins.items():
            ingest.run(contexts[name], origin)
        time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
