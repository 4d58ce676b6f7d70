"""One address, many servers: what an edge costs, what more servers give, how long a move is felt.

Messages are those of `queue: messages`: the same clients send them to one server alone, to one
behind an edge, to four behind it, and to four whose slots have followers in step.

A move is felt by whoever sends to a queue in the slot at that moment: a client sends one message
after the other while the slot goes to the other server, and the longest wait of each move counts.
Crowds are queues that lie in the slot and are moved with it.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.cluster_target import ClusterScale, ClusterTarget
from benchmarks.load import Phases, measured
from benchmarks.measurement import Measurement, percentile
from benchmarks.queue_target import QueueTarget
from benchmarks.scenarios import queue_messages
from benchmarks.target import per_operation_us
from waystation.client.queue.address import ServerAddress
from waystation.client.queue.client import QueueClient
from waystation.client.queue.connection import ConnectionSettings
from waystation.client.queue.events import Received
from waystation.client.queue.keys import PrivateKey
from waystation.client.queue.queue_secrets import RecipientQueue, SenderQueue
from waystation.client.queue.tls import client_context
from waystation.queue.cluster.slot_map import Move, NodeId
from waystation.queue.model import slot_of
from waystation.storage.open import open_cluster_store
from waystation.storage.settings import Store

ALONE = "cluster: messages, one server alone"
BODY = b"\xa5" * 16_000
TRIES_MAX = 50


def messages(target: QueueTarget | ClusterTarget, scale: ClusterScale, what: str) -> Measurement:
    job = {"address": target.address, "pairs": scale.pairs, "seconds": scale.seconds}
    looks: list[float] = []

    def look() -> Any:
        if isinstance(target, ClusterTarget):
            looks.append(target.look_edge().cpu_s)
        return target.look()

    (result,), before, after = measured(queue_messages.__name__, [job], look)
    received = result["received"]
    cpu_us = per_operation_us(before, after, received)
    notes = ""
    if looks and cpu_us is not None and received:
        at_edge = (looks[-1] - looks[0]) * 1e6 / received
        notes = f"at the edge {at_edge:.0f} µs, at the servers {cpu_us - at_edge:.0f} µs"
    return Measurement(
        scenario=what,
        operation="message acknowledged",
        operations=received,
        seconds=result["seconds"],
        cpu_us=cpu_us,
        p50_ms=result["p50_ms"],
        p99_ms=result["p99_ms"],
        frame_ms=result["frame_ms"],
        lost=result["lost"],
        notes=notes,
        against="" if what == ALONE else ALONE,
    )


def moves(target: ClusterTarget, scale: ClusterScale, slot: int) -> Measurement:
    """Of the slot in which the crowd of this number lies."""
    crowd = scale.crowds[slot]
    job = {
        "address": target.address,
        "store_url": target.store_url,
        "root": str(target.root),
        "moves": scale.moves,
        "slot": slot,
    }
    (result,), before, after = measured(__name__, [job], target.look)
    pauses, spans = result["pauses_ms"], result["spans_ms"]
    return Measurement(
        scenario=f"cluster: moves, {crowd:,} queues in the slot",
        operation="slot moved",
        operations=len(spans),
        seconds=result["seconds"],
        cpu_us=per_operation_us(before, after, len(spans)),
        p50_ms=percentile(pauses, 0.5),
        p99_ms=percentile(pauses, 0.99),
        lost=result["lost"],
        notes=(
            f"longest wait of a sender in each move: p90 {percentile(pauses, 0.9):.0f} ms, most"
            f" {max(pauses):.0f} ms, between moves {result['usual_ms']:.0f} ms; a whole move"
            f" {percentile(spans, 0.5):.0f} ms; CPU with the messages sent meanwhile"
        ),
    )


async def load(job: dict[str, Any], phases: Phases) -> dict[str, Any]:
    settings = ConnectionSettings(connect_timeout_s=60, request_timeout_s=60, patience_s=60)
    tls = client_context(any_suite=True)
    address = ServerAddress.parse(job["address"])
    store = await open_cluster_store(job["store_url"], data_dir=Path(job["root"]), settings=Store())
    async with (
        QueueClient(address, settings=settings, tls=tls) as sender,
        QueueClient(address, settings=settings, tls=tls) as recipient,
    ):
        slot = job["slot"]
        queue = await _queue_in(recipient, slot)
        talk = _Talk(sender, recipient, queue)
        talking = asyncio.create_task(talk.on())
        usual: list[float] = []
        pauses: list[float] = []
        spans: list[float] = []
        await phases.ready()
        began = perf_counter()
        for _ in range(job["moves"]):
            await talk.for_a_while()
            usual.extend(talk.taken())
            asked = perf_counter()
            await _move(store, slot)
            spans.append((perf_counter() - asked) * 1000)
            await talk.for_a_while()
            pauses.append(max(talk.taken()))
        seconds = perf_counter() - began
        phases.done()
        talk.over = True
        await talking
    await store.close()
    return {
        "pauses_ms": pauses,
        "spans_ms": spans,
        "usual_ms": percentile(usual, 0.5),
        "seconds": seconds,
        "lost": talk.lost,
    }


class _Talk:
    """One message after the other, received and acknowledged."""

    def __init__(self, sender: QueueClient, recipient: QueueClient, queue: RecipientQueue) -> None:
        self._sender = sender
        self._recipient = recipient
        self._there = SenderQueue(queue.sender_id, PrivateKey.generate())
        self._waits_ms: list[float] = []
        self._answered = asyncio.Event()
        self.over = False
        self.lost = 0

    async def on(self) -> None:
        await self._sender.secure_as_sender(self._there)
        number = 0
        while not self.over:
            body = number.to_bytes(8).ljust(len(BODY), b"\xa5")
            asked = perf_counter()
            await self._sender.send(self._there, body)
            self._waits_ms.append((perf_counter() - asked) * 1000)
            self._answered.set()
            event = await self._recipient.receive()
            self.lost += not (isinstance(event, Received) and event.body == body)
            assert isinstance(event, Received)
            await self._recipient.ack(event)
            number += 1

    def taken(self) -> Sequence[float]:
        waits, self._waits_ms = self._waits_ms, []
        return waits

    async def for_a_while(self, messages: int = 5) -> None:
        for _ in range(messages):
            self._answered.clear()
            await self._answered.wait()


async def _move(store: Any, slot: int) -> None:
    """To the server that has it not; returns when the map says so."""
    target = NodeId(3 - (await store.read()).slots[slot].owner)
    for _ in range(TRIES_MAX):
        if await store.commit((await store.read()).planning([Move(slot, target)])):
            break
    while True:
        one = (await store.read()).slots[slot]
        if one.owner == target and one.state == "S":
            return
        await asyncio.sleep(0.002)


async def _queue_in(recipient: QueueClient, slot: int) -> RecipientQueue:
    """The edge chooses among the few slots there are."""
    while True:
        queue = await recipient.create()
        if slot_of(queue.recipient_id) == slot:
            return queue
        await recipient.delete(queue)
