"""What one more user agent costs that follows a broadcast: a frame for each version it is told.

The versions come from `benchmarks.megaphone`, because every server of this protocol can poll one.
A server of somebody else is started with that URL, a short poll interval and a short ping interval
(broadcasts leave with the ping); ours is started so.

Rule 1: there is a new version for every ping tick, so no tick sends a Ping: a frame is all that is
        measured, as with the floor (nchan).
Rule 2: it is done with many user agents and with a tenth of them, and the difference counts:
        polling and an idle server's own work are the same in both.
"""

import asyncio
import contextlib
from time import perf_counter
from typing import Any

from benchmarks.fleet import Agent, Fleet
from benchmarks.load import Phases, measured
from benchmarks.measurement import Measurement
from benchmarks.megaphone import BROADCAST
from benchmarks.senders import AppServers, until
from benchmarks.target import Scale, Target
from waystation.client.http import HttpClient

TICK_S = 1.0
LATE_S = 0.5  # a server may round its ticks up
PUBLISH_S = 0.3
SETTINGS = {
    "CONNECT__MEGAPHONE_POLL_INTERVAL_S": "0.2",
    "CONNECT__AUTO_PING_INTERVAL_S": str(TICK_S),
}


def run(target: Target, scale: Scale, megaphone_url: str) -> Measurement:
    many, many_cpu_s = _follow(target, scale, megaphone_url, scale.broadcast_agents)
    few, few_cpu_s = _follow(target, scale, megaphone_url, max(1, scale.broadcast_agents // 10))
    cpu_us = None
    notes = f"{scale.broadcast_agents} user agents against a tenth of them"
    more = many["frames"] - few["frames"]
    if many_cpu_s is not None and few_cpu_s is not None and more > 0:
        cpu_us = (many_cpu_s - few_cpu_s) * 1e6 / more
    pings = many["pings"] + few["pings"]
    return Measurement(
        scenario="broadcast",
        operation="frame",
        operations=many["frames"],
        seconds=many["seconds"],
        cpu_us=cpu_us,
        lost=many["lost"] + few["lost"],
        notes=notes + (f"; {pings} Pings came in between" if pings else ""),
    )


def _follow(
    target: Target, scale: Scale, megaphone_url: str, agents: int
) -> tuple[dict[str, Any], float | None]:
    job = {
        "ws_url": target.ws_url,
        "agents": agents,
        "ticks": scale.broadcasts,
        "megaphone_url": megaphone_url,
    }
    (result,), before, after = measured(__name__, [job], target.look)
    if before is None or after is None:
        return result, None
    return result, after.cpu_s - before.cpu_s


async def load(job: dict[str, Any], phases: Phases) -> dict[str, Any]:
    run_id = f"{perf_counter():.6f}"  # versions of an earlier run must not look like ours
    mark = f'"{run_id}.'.encode()
    frames = published = 0
    last: dict[int, bytes] = {}  # what each has heard of last

    def on_broadcast(agent: Agent, text: bytes) -> None:
        nonlocal frames
        at = text.find(mark)
        if at >= 0:
            frames += 1
            last[id(agent)] = text[at:]

    fleet = Fleet(job["ws_url"], AppServers(1).public, job["agents"])
    fleet.on_broadcast = on_broadcast
    everybody = job["agents"]
    async with HttpClient() as http:

        async def publish() -> None:
            nonlocal published
            published += 1
            version = f"{run_id}.{published}".encode()
            await http.request("PUT", job["megaphone_url"] + "/", body=version)

        async def publish_on() -> None:
            while True:
                await asyncio.sleep(PUBLISH_S)
                await publish()

        def all_heard_the_last() -> bool:
            end = b'"%b.%d"' % (run_id.encode(), published)
            return len(last) == everybody and all(text.startswith(end) for text in last.values())

        await publish()
        await fleet.connect_all(register=False)
        follow = b'{"messageType":"broadcast_subscribe","broadcasts":{"%b":"none"}}'
        for agent in fleet.agents:
            assert agent.connection is not None
            agent.connection.say(follow % BROADCAST.encode())
        await until(lambda: len(last) == everybody, 30)
        publishing = asyncio.create_task(publish_on())
        await asyncio.sleep(2.5 * TICK_S)  # a Ping that was under way has its Pong
        await phases.ready()
        began, frames_before, pings_before = perf_counter(), frames, _pings(fleet)
        await asyncio.sleep(job["ticks"] * TICK_S + LATE_S)
        seconds, counted = perf_counter() - began, frames - frames_before
        pings = _pings(fleet) - pings_before
        phases.done()
        publishing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await publishing
        await until(all_heard_the_last, 10)
        lost = 0 if all_heard_the_last() else 1
    await fleet.hang_up()
    await asyncio.sleep(0)
    return {"frames": counted, "seconds": seconds, "lost": lost, "pings": pings}


def _pings(fleet: Fleet) -> int:
    return sum(agent.connection.pings for agent in fleet.agents if agent.connection is not None)
