"""A process with an event log: `python -m tests.pipeline.writing_process SPOOL SECONDS_A_SEGMENT`.

Writes until its stdin ends, then says how many events it wrote and the sum of their sizes.
"""

import asyncio
import sys
import threading
from pathlib import Path

from waystation.base.clock import SystemClock
from waystation.telemetry.eventlog import EventLog
from waystation.telemetry.events import ConnStorageCheck

PORTION = 40


async def main(spool: str, age_s: float) -> None:
    clock = SystemClock()
    log = EventLog(Path(spool), "live.connect.0", clock.now_us(), clock, segment_age_max_s=age_s)
    loop = asyncio.get_running_loop()
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
            log.emit(ConnStorageCheck(uah=count, n=1, size=count % 1000, dur=1))
            total += count % 1000
            count += 1
        await asyncio.sleep(0.05)
    await log.close()
    print(count, total, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
