"""The stored path: POSTs to user agents that are away; they return, and all must be there."""

from time import perf_counter
from typing import Any

from benchmarks.fleet import Agent, Fleet
from benchmarks.load import LoadProcesses, Phases
from benchmarks.measurement import Measurement, percentile
from benchmarks.senders import AppServers, PostLoad, number_of, until
from benchmarks.target import Scale, Target, per_operation_us
from benchmarks.wire import Said


def run(target: Target, scale: Scale) -> list[Measurement]:
    """Two rows: storing, and catching up."""
    job = {
        "ws_url": target.ws_url,
        "endpoint_url": target.endpoint_url,
        "agents": scale.stored_agents,
        "senders": scale.stored_senders,
        "app_servers": scale.app_servers,
        "seconds": scale.seconds,
    }
    with LoadProcesses(__name__, [job]) as load_processes:
        load_processes.expect("ready")
        before = target.look()
        load_processes.go()
        load_processes.expect("stored")
        between = target.look()
        load_processes.go()
        load_processes.expect("done")
        after = target.look()
        (result,) = load_processes.results()
    notes = f"{result['busy']} answered 503" if result["busy"] else ""
    return [
        Measurement(
            scenario="stored",
            operation="POST answered 201",
            operations=result["accepted"],
            seconds=result["seconds"],
            cpu_us=per_operation_us(before, between, result["accepted"]),
            p50_ms=result["p50_ms"],
            p99_ms=result["p99_ms"],
            lost=result["lost"],
            notes=notes,
        ),
        Measurement(
            scenario="stored, catching up",
            operation="notification acked",
            operations=result["received"],
            seconds=result["catch_up_s"],
            cpu_us=per_operation_us(between, after, result["received"]),
            notes=f"{scale.stored_agents} user agents return at once"
            + (f", {result['again']} came twice" if result["again"] else ""),
        ),
    ]


async def load(job: dict[str, Any], phases: Phases) -> dict[str, Any]:
    app_servers = AppServers(job["app_servers"])
    received: set[int] = set()
    again = 0

    def on_notification(_: Agent, said: Said) -> None:
        nonlocal again
        number = number_of(said.data)
        again += number in received
        received.add(number)

    fleet = Fleet(job["ws_url"], app_servers.public, job["agents"], on_notification=on_notification)
    await fleet.connect_all(register=True)
    app_servers.sign(fleet.agents[0].endpoint)
    await fleet.hang_up()
    posts = PostLoad(
        job["endpoint_url"],
        [(agent.endpoint, agent.key) for agent in fleet.agents],
        app_servers,
        ttl_s=3600,
    )
    await posts.connect(job["senders"])
    await phases.ready()
    await posts.run(job["seconds"])
    await phases.step("stored")
    began = perf_counter()
    await fleet.connect_all(register=True)
    # As long as something arrives there is hope; silence for five seconds is the end.
    seen = -1
    while not received >= posts.accepted and len(received) != seen:
        seen = len(received)
        await until(lambda: received >= posts.accepted, 5)
    catch_up_s = perf_counter() - began
    phases.done()
    posts.close()
    posts.check()
    await fleet.hang_up()
    return {
        "accepted": len(posts.accepted),
        "received": len(received),
        "lost": len(posts.accepted - received),
        "again": again,
        "busy": posts.statuses[503],
        "seconds": posts.seconds,
        "catch_up_s": catch_up_s,
        "p50_ms": percentile(posts.latencies_ms, 0.5),
        "p99_ms": percentile(posts.latencies_ms, 0.99),
    }
