"""The bridge to FCM: POST → FCM's double → 201; and what a bridge that hangs does to the others."""

import asyncio
import json
from typing import Any

from benchmarks.load import LoadProcesses, Phases, measured
from benchmarks.measurement import Measurement, percentile
from benchmarks.scenarios import direct
from benchmarks.senders import AppServers, PostLoad
from benchmarks.target import Scale, Target, per_operation_us
from benchmarks.vendor import Vendor
from waystation.client.http import HttpClient


def run(target: Target, vendor: Vendor, scale: Scale) -> Measurement:
    seen = vendor.connections_seen()
    (result,), before, after = measured(__name__, [_job(target, scale)], target.look)
    return Measurement(
        scenario="bridged",
        operation="message taken by FCM's double",
        operations=result["taken"],
        seconds=result["seconds"],
        cpu_us=per_operation_us(before, after, result["taken"]),
        p50_ms=result["p50_ms"],
        p99_ms=result["p99_ms"],
        lost=0,
        notes=f"{vendor.connections_seen() - seen} connection to FCM and its token service",
    )


def beside_a_hang(target: Target, vendor: Vendor, scale: Scale) -> Measurement:
    """Direct notifications while senders wait for a bridge that never answers."""
    vendor.hang()
    try:
        with LoadProcesses(__name__, [_job(target, scale) | {"hangs": True}]) as hanging:
            hanging.expect("ready")
            hanging.go()
            measurement = direct.run(target, scale)
    finally:
        vendor.answer()
    return Measurement(
        scenario="direct, a bridge hangs",
        operation=measurement.operation,
        operations=measurement.operations,
        seconds=measurement.seconds,
        cpu_us=None,  # of both
        p50_ms=measurement.p50_ms,
        p99_ms=measurement.p99_ms,
        lost=measurement.lost,
        notes=f"{scale.senders} senders to bridged devices at the same time",
    )


def _job(target: Target, scale: Scale) -> dict[str, Any]:
    return {
        "endpoint_url": target.endpoint_url,
        "devices": scale.agents,
        "senders": scale.senders,
        "seconds": scale.seconds,
        "hangs": False,
    }


async def load(job: dict[str, Any], phases: Phases) -> dict[str, Any]:
    app_servers = AppServers(1)
    (key,) = app_servers.public
    endpoints = await _registered(job["endpoint_url"], job["devices"], key)
    app_servers.sign(endpoints[0])
    posts = PostLoad(
        job["endpoint_url"], [(endpoint, key) for endpoint in endpoints], app_servers, ttl_s=60
    )
    await posts.connect(job["senders"])
    await phases.ready()
    await posts.run(job["seconds"])
    phases.done()
    posts.close()
    if not job["hangs"]:
        posts.check()
    return {
        "taken": len(posts.accepted),
        "seconds": posts.seconds,
        "p50_ms": percentile(posts.latencies_ms or [0.0], 0.5),
        "p99_ms": percentile(posts.latencies_ms or [0.0], 0.99),
    }


async def _registered(endpoint_url: str, devices: int, key: str) -> list[str]:
    async def register(number: int) -> str:
        answer = await http.request(
            "POST",
            f"{endpoint_url}/v1/fcm/app/registration",
            headers={"Content-Type": "application/json"},
            body=json.dumps({"token": f"device-{number}", "key": key}).encode(),
        )
        return json.loads(answer.body)["endpoint"]

    async with HttpClient() as http:
        return list(await asyncio.gather(*(register(number) for number in range(devices))))
