"""A process with two event logs, one in segments and one in Kafka, with the same events.

`python -m tests.pipeline.writing_process SPOOL SECONDS_A_SEGMENT SERVERS TOPIC` writes until its
stdin ends, then says how many events it wrote into each and the sum of their sizes.
"""

import asyncio
import sys
import threading
from pathlib import Path

from waystation.base.clock import SystemClock
from waystation.telemetry.eventlog import EventLog
from waystation.telemetry.events import ConnStorageCheck
from waystation.telemetry.kafka_sink import KafkaSink
from waystation.telemetry.kafka_topic import KafkaTopic

NODE = "live.connect.0"
PORTION = 8


async def main(spool: str, age_s: float, topic: KafkaTopic) -> None:
    clock = SystemClock()
    loop = asyncio.get_running_loop()
    logs = [
        EventLog(Path(spool), NODE, clock.now_us(), clock, segment_age_max_s=age_s),
        EventLog(Path(spool), NODE, clock.now_us(), clock, sink=KafkaSink(topic, NODE, clock)),
    ]
    for log in logs:
        log.start(loop)
    ended = asyncio.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    count = total = 0
    print("ready", flush=True)
    while not ended.is_set():
        for _ in range(PORTION):
            for log in logs:
                log.emit(ConnStorageCheck(uah=count, n=1, size=count % 1000, dur=1))
            total += count % 1000
            count += 1
        await asyncio.sleep(0.05)
    for log in logs:
        await log.close()
        assert not log.lost_total
    print(count, total, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2]), KafkaTopic(*sys.argv[3:])))
