"""Messages end to end: SEND, on disk, OK; MSG to the recipient; ACK, gone from the disk, OK.

Each pair has a queue, two connections and one message under way. The sender signs with Ed25519, as
clients do; a body has the full size.
"""

import asyncio
from time import perf_counter
from typing import Any

from benchmarks.load import Phases, measured
from benchmarks.measurement import Measurement, percentile
from benchmarks.queue_target import QueueScale, QueueTarget
from benchmarks.target import per_operation_us
from waystation.client.queue.address import ServerAddress
from waystation.client.queue.client import QueueClient
from waystation.client.queue.connection import ConnectionSettings
from waystation.client.queue.events import Received
from waystation.client.queue.keys import PrivateKey
from waystation.client.queue.queue_secrets import SenderQueue
from waystation.client.queue.tls import client_context

BODY_BYTES = 16_000


def run(target: QueueTarget, scale: QueueScale) -> Measurement:
    job = {"address": target.address, "pairs": scale.pairs, "seconds": scale.seconds}
    (result,), before, after = measured(__name__, [job], target.look)
    return Measurement(
        scenario="queue: messages",
        operation="message acknowledged",
        operations=result["received"],
        seconds=result["seconds"],
        cpu_us=per_operation_us(before, after, result["received"]),
        p50_ms=result["p50_ms"],
        p99_ms=result["p99_ms"],
        frame_ms=result["frame_ms"],
        lost=result["lost"],
        notes="five blocks a message; p50 is SEND to OK, frame is SEND to MSG",
    )


async def load(job: dict[str, Any], phases: Phases) -> dict[str, Any]:
    address = ServerAddress.parse(job["address"])
    tls = client_context(any_suite=True)
    settings = ConnectionSettings(connect_timeout_s=60, request_timeout_s=60, patience_s=60)
    sent_ms: list[float] = []
    arrived_ms: list[float] = []
    lost = 0

    def client() -> QueueClient:
        made = QueueClient(address, settings=settings, tls=tls)
        made.start()
        return made

    pairs: list[tuple[QueueClient, QueueClient, SenderQueue]] = []
    for _ in range(job["pairs"]):
        sender, recipient = client(), client()
        queue = await recipient.create()
        there = SenderQueue(queue.sender_id, PrivateKey.generate())
        await sender.secure_as_sender(there)
        pairs.append((sender, recipient, there))
    await phases.ready()
    began = perf_counter()
    deadline = began + job["seconds"]

    async def exchange(sender: QueueClient, recipient: QueueClient, there: SenderQueue) -> None:
        nonlocal lost
        number = 0
        while perf_counter() < deadline:
            body = number.to_bytes(8).ljust(BODY_BYTES, b"\xa5")
            asked = perf_counter()
            sending = asyncio.ensure_future(sender.send(there, body))
            event = await recipient.receive()
            arrived_ms.append((perf_counter() - asked) * 1000)
            await sending
            sent_ms.append((perf_counter() - asked) * 1000)
            lost += not (isinstance(event, Received) and event.body == body)
            if isinstance(event, Received):
                lost += not await recipient.ack(event)
            number += 1

    await asyncio.gather(*(exchange(*pair) for pair in pairs))
    seconds = perf_counter() - began
    phases.done()
    for sender, recipient, _ in pairs:
        await asyncio.gather(sender.close(), recipient.close())
    return {
        "received": len(arrived_ms),
        "lost": lost,
        "seconds": seconds,
        "p50_ms": percentile(sent_ms, 0.5),
        "p99_ms": percentile(sent_ms, 0.99),
        "frame_ms": percentile(arrived_ms, 0.5),
    }
