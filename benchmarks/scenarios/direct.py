"""The direct path: POST → frame → ack, to user agents that are connected."""

from time import perf_counter
from typing import Any

from benchmarks.fleet import Agent, Fleet
from benchmarks.load import Phases, measured
from benchmarks.measurement import Measurement, percentile
from benchmarks.senders import AppServers, PostLoad, number_of, until
from benchmarks.target import Scale, Target, per_operation_us
from benchmarks.wire import Said


def run(target: Target, scale: Scale, *, fresh: bool = False) -> Measurement:
    """`fresh`: no VAPID token is used twice, so the server verifies every one."""
    job = {
        "ws_url": target.ws_url,
        "endpoint_url": target.endpoint_url,
        "agents": scale.agents,
        "senders": scale.senders,
        "app_servers": scale.app_servers,
        "seconds": scale.seconds,
        "fresh_tokens": int(scale.tokens_per_s * scale.seconds) if fresh else 0,
    }
    (result,), before, after = measured(__name__, [job], target.look)
    rare = {"answered 503": result["busy"], "came twice": result["again"]}
    return Measurement(
        scenario="direct, new tokens" if fresh else "direct",
        operation="notification acked",
        operations=result["received"],
        seconds=result["seconds"],
        cpu_us=per_operation_us(before, after, result["received"]),
        p50_ms=result["p50_ms"],
        p99_ms=result["p99_ms"],
        lost=result["lost"],
        frame_ms=result["frame_ms"],
        notes=", ".join(f"{count} {what}" for what, count in rare.items() if count),
    )


async def load(job: dict[str, Any], phases: Phases) -> dict[str, Any]:
    app_servers = AppServers(job["app_servers"], fresh_tokens=job["fresh_tokens"])
    received: set[int] = set()
    frame_ms: list[float] = []
    again = 0

    def on_notification(_: Agent, said: Said) -> None:
        nonlocal again
        number = number_of(said.data)
        if number in received:
            again += 1
            return
        received.add(number)
        frame_ms.append((perf_counter() - posts.sent_at[number]) * 1000)

    fleet = Fleet(job["ws_url"], app_servers.public, job["agents"], on_notification=on_notification)
    await fleet.connect_all(register=True)
    app_servers.sign(fleet.agents[0].endpoint)
    posts = PostLoad(
        job["endpoint_url"],
        [(agent.endpoint, agent.key) for agent in fleet.agents],
        app_servers,
        ttl_s=60,
    )
    await posts.connect(job["senders"])
    await phases.ready()
    await posts.run(job["seconds"])
    await until(lambda: received >= posts.accepted, 5)
    phases.done()
    posts.close()
    posts.check()
    await fleet.hang_up()
    return {
        "received": len(received),
        "lost": len(posts.accepted - received),
        "again": again,
        "busy": posts.statuses[503],
        "seconds": posts.seconds,
        "p50_ms": percentile(posts.latencies_ms, 0.5),
        "p99_ms": percentile(posts.latencies_ms, 0.99),
        "frame_ms": percentile(frame_ms, 0.5),
    }
