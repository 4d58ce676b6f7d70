"""POST → 201 with one POST under way, to a connected user agent: the time without a queue."""

import asyncio
from typing import Any

from benchmarks.fleet import Fleet
from benchmarks.load import Phases, measured
from benchmarks.measurement import Measurement, percentile
from benchmarks.senders import AppServers, PostLoad
from benchmarks.target import Scale, Target, per_operation_us


def run(target: Target, scale: Scale, *, fresh: bool = False) -> Measurement:
    job = {
        "ws_url": target.ws_url,
        "endpoint_url": target.endpoint_url,
        "posts": scale.latency_posts,
        "fresh": fresh,
    }
    (result,), before, after = measured(__name__, [job], target.look)
    return Measurement(
        scenario="one in flight, new tokens" if fresh else "one in flight",
        operation="POST",
        operations=result["posts"],
        seconds=result["seconds"],
        cpu_us=per_operation_us(before, after, result["posts"]),
        p50_ms=result["p50_ms"],
        p99_ms=result["p99_ms"],
    )


async def load(job: dict[str, Any], phases: Phases) -> dict[str, Any]:
    # The fresh tokens end the run; with reused ones the time does, at about the same count.
    app_servers = AppServers(1, fresh_tokens=job["posts"] if job["fresh"] else 0)
    fleet = Fleet(job["ws_url"], app_servers.public, 8)
    await fleet.connect_all(register=True)
    app_servers.sign(fleet.agents[0].endpoint)
    targets = [(agent.endpoint, agent.key) for agent in fleet.agents]
    reusing = AppServers(0)  # warming up must not use the fresh tokens
    reusing.reuse(app_servers)
    warm_up = PostLoad(job["endpoint_url"], targets, reusing, ttl_s=60)
    await warm_up.connect(1)
    await warm_up.run(0.1)
    warm_up.close()
    posts = PostLoad(job["endpoint_url"], targets, app_servers, ttl_s=60)
    await posts.connect(1)
    await phases.ready()
    await posts.run(30.0 if job["fresh"] else job["posts"] * 0.0005)
    phases.done()
    await asyncio.sleep(0.1)
    posts.close()
    posts.check()
    await fleet.hang_up()
    return {
        "posts": len(posts.accepted),
        "seconds": posts.seconds,
        "p50_ms": percentile(posts.latencies_ms, 0.5),
        "p99_ms": percentile(posts.latencies_ms, 0.99),
    }
