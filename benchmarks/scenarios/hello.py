"""Connect, hello, register: what it costs to become a subscribed user agent."""

from time import perf_counter
from typing import Any

from benchmarks.fleet import Fleet
from benchmarks.load import Phases, measured
from benchmarks.measurement import Measurement
from benchmarks.senders import AppServers
from benchmarks.target import Scale, Target, per_operation_us

AT_ONCE = 64


def run(target: Target, scale: Scale) -> Measurement:
    job = {"ws_url": target.ws_url, "count": scale.hellos}
    (result,), before, after = measured(__name__, [job], target.look)
    return Measurement(
        scenario="hello",
        operation="connect + hello + register",
        operations=scale.hellos,
        seconds=result["seconds"],
        cpu_us=per_operation_us(before, after, scale.hellos),
        notes=f"{AT_ONCE} at once",
    )


async def load(job: dict[str, Any], phases: Phases) -> dict[str, Any]:
    fleet = Fleet(job["ws_url"], AppServers(1).public, job["count"])
    await phases.ready()
    began = perf_counter()
    await fleet.connect_all(register=True, at_once=AT_ONCE)
    seconds = perf_counter() - began
    phases.done()
    await fleet.hang_up()
    return {"seconds": seconds}
