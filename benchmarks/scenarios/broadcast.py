"""A new version of a broadcast reaches every user agent that follows it.

The versions come from `benchmarks.megaphone`, because every server of this protocol can poll one.
A server of somebody else is started with that URL, a short poll interval and a short ping interval
(broadcasts leave with the ping); ours is started so.
"""

import asyncio
from time import perf_counter
from typing import Any

from benchmarks.fleet import Agent, Fleet
from benchmarks.load import Phases, measured
from benchmarks.measurement import Measurement
from benchmarks.megaphone import BROADCAST
from benchmarks.senders import AppServers, until
from benchmarks.target import Scale, Target, per_operation_us
from waystation.client.http import HttpClient

SETTINGS = {
    "CONNECT__MEGAPHONE_POLL_INTERVAL_S": "0.5",
    "CONNECT__AUTO_PING_INTERVAL_S": "1",
}


def run(target: Target, scale: Scale, megaphone_url: str) -> Measurement:
    job = {
        "ws_url": target.ws_url,
        "agents": scale.broadcast_agents,
        "broadcasts": scale.broadcasts,
        "megaphone_url": megaphone_url,
    }
    (result,), before, after = measured(__name__, [job], target.look)
    expected = scale.broadcast_agents * scale.broadcasts
    return Measurement(
        scenario="broadcast",
        operation="frame",
        operations=result["frames"],
        seconds=result["seconds"],
        cpu_us=per_operation_us(before, after, result["frames"]),
        lost=expected - result["frames"],
        notes=f"{scale.broadcasts} versions to {scale.broadcast_agents} user agents",
    )


async def load(job: dict[str, Any], phases: Phases) -> dict[str, Any]:
    run_id = f"{perf_counter():.6f}"  # versions of an earlier run must not look like ours
    versions = [f"{run_id}.{number}" for number in range(job["broadcasts"] + 1)]
    told: dict[str, set[int]] = {version: set() for version in versions}

    def on_broadcast(agent: Agent, text: bytes) -> None:
        for version in versions:
            if f'"{version}"'.encode() in text:
                told[version].add(id(agent))

    fleet = Fleet(job["ws_url"], AppServers(1).public, job["agents"])
    fleet.on_broadcast = on_broadcast
    async with HttpClient() as http:

        async def publish(version: str) -> None:
            await http.request("PUT", job["megaphone_url"] + "/", body=version.encode())

        await publish(versions[0])
        await fleet.connect_all(register=False)
        follow = b'{"messageType":"broadcast_subscribe","broadcasts":{"%b":"none"}}'
        for agent in fleet.agents:
            assert agent.connection is not None
            agent.connection.say(follow % BROADCAST.encode())
        everybody = job["agents"]
        await until(lambda: len(told[versions[0]]) == everybody, 30)
        await phases.ready()
        began = perf_counter()
        for version in versions[1:]:
            await publish(version)
            await until(lambda v=version: len(told[v]) == everybody, 30)
        seconds = perf_counter() - began
        phases.done()
    await fleet.hang_up()
    await asyncio.sleep(0)
    return {"frames": sum(len(told[version]) for version in versions[1:]), "seconds": seconds}
