"""What waits costs memory: connections that say nothing, and queues that nobody asks for.

A server that was busy before has room left over from that, so a fresh one is measured. Pages of the
store's mapped file are not counted for queues: the system takes them back when it needs them.
"""

import asyncio
import time
from typing import Any

from benchmarks.load import LoadProcesses, Phases
from benchmarks.measurement import Measurement
from benchmarks.queue_target import QueueScale, QueueTarget, close_all, connections
from benchmarks.scenarios.queue_blocks import new_queue
from waystation.client.queue.connection import Connection

QUIET_S = 1.0
UNDER_WAY = 64  # queues that are made at once
SUBSCRIBING = 16  # connections at once: a burst of blocks leaves room behind that is none of theirs
WARM = 500  # queues before the first look: the first ones pay for buffers and caches
MAKERS = 4


def run(target: QueueTarget, scale: QueueScale) -> list[Measurement]:
    job = {"address": target.address, "connections": scale.idle, "queues": scale.queues}
    with LoadProcesses(__name__, [job]) as load_processes:
        load_processes.expect("ready")
        before = target.look()
        began = time.perf_counter()
        load_processes.go()
        load_processes.expect("queues")
        made_s = time.perf_counter() - began
        time.sleep(QUIET_S)
        made = target.look()
        began = time.perf_counter()
        load_processes.go()
        load_processes.expect("connected")
        connected_s = time.perf_counter() - began
        time.sleep(QUIET_S)
        connected = target.look()
        load_processes.go()
        load_processes.expect("done")
        load_processes.results()
    queue_kib = connection_kib = None
    queues_cpu_us = connections_cpu_us = None
    if before is not None and made is not None and connected is not None:
        queue_kib = (made.anonymous_kib - before.anonymous_kib) / scale.queues
        connection_kib = (connected.anonymous_kib - made.anonymous_kib) / scale.idle
        queues_cpu_us = (made.cpu_s - before.cpu_s) * 1e6 / scale.queues
        connections_cpu_us = (connected.cpu_s - made.cpu_s) * 1e6 / scale.idle
    return [
        Measurement(
            scenario="queue: idle queues",
            operation="queue made",
            operations=scale.queues,
            seconds=made_s,
            cpu_us=queues_cpu_us,
            notes="" if queue_kib is None else f"{queue_kib:.3f} KiB a queue stay in memory",
        ),
        Measurement(
            scenario="queue: idle connections",
            operation="connection with a subscription",
            operations=scale.idle,
            seconds=connected_s,
            cpu_us=connections_cpu_us,
            kib=connection_kib,
            notes=f"{scale.idle} connections; CPU is that of TLS, both hellos and NEW",
        ),
    ]


async def load(job: dict[str, Any], phases: Phases) -> dict[str, Any]:
    makers = await connections(job["address"], MAKERS)
    room = asyncio.Semaphore(UNDER_WAY)

    async def make(number: int) -> None:
        async with room:
            await new_queue(makers[number % MAKERS])

    await asyncio.gather(*(make(number) for number in range(min(WARM, job["queues"]))))
    await phases.ready()
    await asyncio.gather(*(make(number) for number in range(job["queues"])))
    await close_all(makers)
    await phases.step("queues")
    idle = await connections(job["address"], job["connections"])
    few = asyncio.Semaphore(SUBSCRIBING)

    async def subscribe(connection: Connection) -> None:
        async with few:
            await new_queue(connection, subscribe=True)

    await asyncio.gather(*map(subscribe, idle))
    await phases.step("connected")
    phases.done()
    await close_all(idle)
    return {}
