"""A block to the queue server and a block back, each kind with one step more than the last.

| kind | what the server does for it |
|---|---|
| uvloop | TLS of uvloop, the block goes back as it came |
| carrier | TLS of our server's carrier, the block goes back as it came |
| plain | the server: a PING is read, a PONG written |
| encrypted | the same, with the inner encryption of blocks both ways |
| signed | that, with an Ed25519 signature to verify and a queue to look up (QUE) |
| stored | encrypted, with a message of 16 000 bytes on disk (SEND to a queue without a key) |

Each connection has one block under way. Differences are prices: plain − carrier is reading and
dispatch, encrypted − plain the inner encryption, signed − encrypted the signature, stored −
encrypted the store.
"""

import asyncio
from time import perf_counter
from typing import Any

from benchmarks.load import Phases, measured
from benchmarks.measurement import Measurement, percentile
from benchmarks.queue_target import QueueScale, QueueTarget, connections
from benchmarks.target import per_operation_us
from benchmarks.wire import LoadError
from waystation.client.queue.answers import Ids, Info, Ok, Pong, Refused
from waystation.client.queue.block import BLOCK_BYTES
from waystation.client.queue.commands import Inspect, New, Ping, Send
from waystation.client.queue.connection import Connection
from waystation.client.queue.keys import PrivateKey
from waystation.client.queue.tls import client_context

KINDS = ("plain", "encrypted", "signed", "stored")
FLOORS = ("uvloop", "carrier")
BODY = b"\xa5" * 16_000


def run(target: QueueTarget, scale: QueueScale, kind: str) -> Measurement:
    job = {
        "address": target.address,
        "kind": kind,
        "connections": scale.connections,
        "seconds": scale.seconds,
    }
    (result,), before, after = measured(__name__, [job], target.look)
    return Measurement(
        scenario=f"queue: blocks, {kind}",
        operation="pair of blocks",
        operations=result["pairs"],
        seconds=result["seconds"],
        cpu_us=per_operation_us(before, after, result["pairs"]),
        p50_ms=result["p50_ms"],
        p99_ms=result["p99_ms"],
    )


async def load(job: dict[str, Any], phases: Phases) -> dict[str, Any]:
    workers = await (_echo_workers(job) if job["kind"] in FLOORS else _workers(job))
    latencies_ms: list[float] = []
    await phases.ready()
    began = perf_counter()
    deadline = began + job["seconds"]

    async def work(step: Any) -> None:
        while perf_counter() < deadline:
            asked = perf_counter()
            await step()
            latencies_ms.append((perf_counter() - asked) * 1000)

    await asyncio.gather(*(work(step) for step, _ in workers))
    seconds = perf_counter() - began
    phases.done()
    for _, close in workers:
        await close()
    return {
        "pairs": len(latencies_ms),
        "seconds": seconds,
        "p50_ms": percentile(latencies_ms, 0.5),
        "p99_ms": percentile(latencies_ms, 0.99),
    }


async def _echo_workers(job: dict[str, Any]) -> list[tuple[Any, Any]]:
    host, _, port = job["address"].partition(":")
    block = BODY.ljust(BLOCK_BYTES, b"#")
    made: list[tuple[Any, Any]] = []
    for _ in range(job["connections"]):
        reader, writer = await asyncio.open_connection(
            host, int(port), ssl=client_context(any_suite=True), server_hostname=""
        )

        async def step(
            reader: asyncio.StreamReader = reader, writer: asyncio.StreamWriter = writer
        ) -> None:
            writer.write(block)
            await reader.readexactly(BLOCK_BYTES)

        async def close(writer: asyncio.StreamWriter = writer) -> None:
            writer.transport.abort()

        made.append((step, close))
    return made


async def _workers(job: dict[str, Any]) -> list[tuple[Any, Any]]:
    opened = await connections(
        job["address"], job["connections"], inner_encryption=job["kind"] != "plain"
    )
    made: list[tuple[Any, Any]] = []
    for connection in opened:
        step = {"signed": _signed, "stored": _stored}.get(job["kind"], _ping)
        made.append((await step(connection), connection.close))
    await asyncio.sleep(0)
    return made


async def _ping(connection: Connection) -> Any:
    async def step() -> None:
        if not isinstance(await connection.ask(Ping()), Pong):
            raise LoadError("PING was not answered by PONG")

    return step


async def _signed(connection: Connection) -> Any:
    ids, key = await new_queue(connection)

    async def step() -> None:
        answer = await connection.ask(Inspect(), entity_id=ids.recipient_id, key=key)
        if not isinstance(answer, Info):
            raise LoadError("QUE was not answered by INFO")

    return step


async def _stored(connection: Connection) -> Any:
    """Into a new queue when the last one is full (one in a hundred and twenty-eight)."""
    ids, _ = await new_queue(connection)

    async def step() -> None:
        nonlocal ids
        answer = await connection.ask(Send(BODY), entity_id=ids.sender_id)
        if isinstance(answer, Refused):
            ids, _ = await new_queue(connection)
        elif not isinstance(answer, Ok):
            raise LoadError("SEND was not answered by OK")

    return step


async def new_queue(connection: Connection, *, subscribe: bool = False) -> tuple[Ids, PrivateKey]:
    key, dh = PrivateKey.generate(), PrivateKey.generate("x25519")
    new = New(recipient_key=key.public, dh=dh.public, subscribe=subscribe)
    ids = await connection.ask(new, key=key)
    if not isinstance(ids, Ids):
        raise LoadError("NEW was refused")
    return ids, key
