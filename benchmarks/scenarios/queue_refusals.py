"""Whether a refusal tells by its time what exists: a wrong key against an id that nobody has.

Q-110 (queues §5.9): for each kind of key that a queue has and each kind that is presented, the two
differ by less than 30 %. Each queue is asked as its recipient (QUE) and as its sender (SEND) with a
key that is not its own; in between the same is asked of an id that does not exist. The two take
turns on one connection, so both meet the same load, and medians are compared.
"""

import secrets
import statistics
from time import perf_counter
from typing import Any

from benchmarks.load import Phases, measured
from benchmarks.measurement import Measurement
from benchmarks.queue_target import QueueScale, QueueTarget, close_all, connections
from benchmarks.target import per_operation_us
from benchmarks.wire import LoadError
from waystation.client.queue.answers import Ids, Ok, Refused
from waystation.client.queue.commands import Command, Inspect, Key, New, Send
from waystation.client.queue.connection import Connection
from waystation.client.queue.keys import KeyKind, PrivateKey

KINDS: tuple[KeyKind, ...] = ("ed25519", "ed448", "x25519")
BAR = 0.3  # how far the ratio may be from 1
WARM = 10  # of each, not counted


def run(target: QueueTarget, scale: QueueScale) -> list[Measurement]:
    """A row for each kind of key that is presented; what queues have varies within it."""
    rows: list[Measurement] = []
    for used in KINDS:
        job = {"address": target.address, "used": used, "asked": scale.refusals}
        (result,), before, after = measured(__name__, [job], target.look)
        ratios: list[float] = result["ratios"]
        held = all(abs(ratio - 1) <= BAR for ratio in ratios)
        rows.append(
            Measurement(
                scenario=f"queue: refusals, {used}",
                operation="refused command",
                operations=result["operations"],
                seconds=result["seconds"],
                cpu_us=per_operation_us(before, after, result["operations"]),
                p50_ms=result["p50_ms"],
                notes=f"an unknown id takes {min(ratios):.2f}–{max(ratios):.2f} × a wrong key"
                f" ({'within' if held else 'NOT within'} 30 %)",
            )
        )
    return rows


async def load(job: dict[str, Any], phases: Phases) -> dict[str, Any]:
    opened = await connections(job["address"], 1)
    (connection,) = opened
    wrong = PrivateKey.generate(job["used"])
    queues = [await _secured(connection, held) for held in KINDS]
    await phases.ready()
    began = perf_counter()
    ratios: list[float] = []
    times_ms: list[float] = []
    operations = 0
    for ids in queues:
        for command, entity_id in ((Inspect(), ids.recipient_id), (Send(b""), ids.sender_id)):
            known: list[float] = []
            unknown: list[float] = []
            for number in range(WARM + job["asked"]):
                for taken, asked in ((known, entity_id), (unknown, secrets.token_bytes(24))):
                    taken_ms = await _refused_ms(connection, command, asked, wrong)
                    operations += 1
                    if number >= WARM:
                        taken.append(taken_ms)
            ratios.append(statistics.median(unknown) / statistics.median(known))
            times_ms += known
    seconds = perf_counter() - began
    phases.done()
    await close_all(opened)
    return {
        "operations": operations,
        "seconds": seconds,
        "ratios": ratios,
        "p50_ms": statistics.median(times_ms),
    }


async def _refused_ms(
    connection: Connection, command: Command, entity_id: bytes, key: PrivateKey
) -> float:
    asked = perf_counter()
    answer = await connection.ask(command, entity_id=entity_id, key=key)
    taken_ms = (perf_counter() - asked) * 1000
    if not isinstance(answer, Refused) or answer.error_reply.code != "AUTH":
        raise LoadError("a wrong key was not refused with AUTH")
    return taken_ms


async def _secured(connection: Connection, kind: KeyKind) -> Ids:
    """A queue whose recipient and whose sender have keys of this kind."""
    key, sender, dh = (PrivateKey.generate(one) for one in (kind, kind, "x25519"))
    new = New(recipient_key=key.public, dh=dh.public, subscribe=False)
    ids = await connection.ask(new, key=key)
    if not isinstance(ids, Ids):
        raise LoadError("NEW was refused")
    answer = await connection.ask(Key(sender.public), entity_id=ids.recipient_id, key=key)
    if not isinstance(answer, Ok):
        raise LoadError("KEY was refused")
    return ids
