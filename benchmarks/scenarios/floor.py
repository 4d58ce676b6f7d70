"""POSTs that nobody does anything with: the same requests and connections as in `direct`."""

from typing import Any

from benchmarks.load import Phases, measured
from benchmarks.measurement import Measurement, percentile
from benchmarks.senders import AppServers, PostLoad
from benchmarks.target import Scale, Target, per_operation_us


def run(target: Target, scale: Scale, name: str = "floor") -> Measurement:
    job = {
        "endpoint_url": target.endpoint_url,
        "agents": scale.agents,
        "senders": scale.senders,
        "app_servers": scale.app_servers,
        "seconds": scale.seconds,
    }
    (result,), before, after = measured(__name__, [job], target.look)
    return Measurement(
        scenario=name,
        operation="POST",
        operations=result["posts"],
        seconds=result["seconds"],
        cpu_us=per_operation_us(before, after, result["posts"]),
        p50_ms=result["p50_ms"],
        p99_ms=result["p99_ms"],
    )


async def load(job: dict[str, Any], phases: Phases) -> dict[str, Any]:
    app_servers = AppServers(job["app_servers"])
    base = job["endpoint_url"]
    app_servers.sign(base)
    targets = [
        (f"{base}/wpush/v2/{'t' * 183}", app_servers.public[number % len(app_servers.public)])
        for number in range(job["agents"])
    ]
    posts = PostLoad(base, targets, app_servers, ttl_s=60)
    await posts.connect(job["senders"])
    await phases.ready()
    await posts.run(job["seconds"])
    phases.done()
    posts.close()
    posts.check()
    return {
        "posts": len(posts.accepted),
        "seconds": posts.seconds,
        "p50_ms": percentile(posts.latencies_ms, 0.5),
        "p99_ms": percentile(posts.latencies_ms, 0.99),
    }
