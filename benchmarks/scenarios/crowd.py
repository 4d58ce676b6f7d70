"""A hundred thousand user agents over six workers: connected, quiet for ten minutes, then some are
posted to. Memory of each, what keeping them alive costs, and what a POST costs among them.
"""

import time
from typing import Any

import msgspec

from benchmarks.fleet import Agent, Fleet
from benchmarks.load import LoadProcesses, Phases
from benchmarks.measurement import Measurement, percentile
from benchmarks.process_tree import Usage
from benchmarks.senders import AppServers, PostLoad, number_of, until
from benchmarks.target import Target, per_operation_us
from benchmarks.wire import Said

WORKERS = "6"
ADDRESSES = 8  # 127.0.0.x to connect from: one has 28,000 ports at most


class CrowdScale(msgspec.Struct, frozen=True, kw_only=True):
    """How much of everything."""

    agents: int = 100_000
    processes: int = 10  # a process may open 20,000 descriptors
    hold_s: float = 600.0
    senders: int = 32
    seconds: float = 10.0  # of posting, to the agents of the first process


CROWD_QUICK = CrowdScale(agents=10_000, processes=2, hold_s=20.0, seconds=3.0)
CROWD_SMOKE = CrowdScale(agents=20, processes=2, hold_s=0.1, senders=2, seconds=0.2)


def run(target: Target, scale: CrowdScale) -> list[Measurement]:
    """Two rows: holding them, and posting among them."""
    jobs = [
        {
            "ws_url": target.ws_url,
            "endpoint_url": target.endpoint_url,
            "agents": scale.agents // scale.processes,
            "address": f"127.0.0.{1 + number % ADDRESSES}",
            "senders": 0 if number else scale.senders,
            "seconds": scale.seconds,
        }
        for number in range(scale.processes)
    ]
    with LoadProcesses(__name__, jobs) as load:
        load.expect("ready")
        before = target.look()
        began = time.perf_counter()
        load.go()
        load.expect("connected")
        connecting_s = time.perf_counter() - began
        time.sleep(min(1.0, scale.hold_s))
        connected = target.look()
        time.sleep(scale.hold_s)
        held = target.look()
        load.go()
        load.expect("done")
        after = target.look()
        results = load.results()
    posted = results[0]
    return [
        Measurement(
            scenario="crowd, held",
            operation="user agent",
            operations=scale.agents,
            seconds=scale.hold_s,
            kib=_kib_each(before, held, scale.agents),
            lost=sum(result["gone"] for result in results),
            notes=_notes(before, connected, held, scale, connecting_s),
        ),
        Measurement(
            scenario="crowd, direct",
            operation="notification acked",
            operations=posted["received"],
            seconds=posted["seconds"],
            cpu_us=per_operation_us(held, after, posted["received"]),
            p50_ms=posted["p50_ms"],
            p99_ms=posted["p99_ms"],
            lost=posted["lost"],
            notes=f"to {jobs[0]['agents']:,} of {scale.agents:,} connected user agents",
        ),
    ]


def _kib_each(before: Usage | None, held: Usage | None, agents: int) -> float | None:
    if before is None or held is None:
        return None
    return (held.anonymous_kib - before.anonymous_kib) / agents


def _notes(
    before: Usage | None,
    connected: Usage | None,
    held: Usage | None,
    scale: CrowdScale,
    connecting_s: float,
) -> str:
    if before is None or connected is None or held is None:
        return ""
    with_store = (held.pss_kib - before.pss_kib) / scale.agents
    share = (held.cpu_s - connected.cpu_s) / scale.hold_s
    return (
        f"connected in {connecting_s:.0f} s; {with_store:.2f} KiB with the store's mapped file;"
        f" {held.pss_kib / 1024:.0f} MiB in all; {share:.1%} of a core for pings and answers"
    )


async def load(job: dict[str, Any], phases: Phases) -> dict[str, Any]:
    app_servers = AppServers(8)
    received: set[int] = set()

    def on_notification(_: Agent, said: Said) -> None:
        received.add(number_of(said.data))

    fleet = Fleet(
        job["ws_url"],
        app_servers.public,
        job["agents"],
        on_notification=on_notification,
        local_address=job["address"],
    )
    await phases.ready()
    await fleet.connect_all(register=True)
    app_servers.sign(fleet.agents[0].endpoint)
    await phases.step("connected")
    gone = sum(agent.connection is None or agent.connection.closed for agent in fleet.agents)
    posted: dict[str, Any] = {}
    if job["senders"]:
        targets = [(agent.endpoint, agent.key) for agent in fleet.agents]
        posts = PostLoad(job["endpoint_url"], targets, app_servers, ttl_s=60)
        await posts.connect(job["senders"])
        await posts.run(job["seconds"])
        await until(lambda: received >= posts.accepted, 5)
        posts.close()
        posts.check()
        posted = {
            "received": len(received),
            "lost": len(posts.accepted - received),
            "seconds": posts.seconds,
            "p50_ms": percentile(posts.latencies_ms, 0.5),
            "p99_ms": percentile(posts.latencies_ms, 0.99),
        }
    phases.done()
    await fleet.hang_up()
    return {"gone": gone, **posted}
