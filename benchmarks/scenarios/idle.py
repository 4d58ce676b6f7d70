"""Subscribed user agents that say nothing: memory of the server for each, and its CPU meanwhile.

A server that was busy before has room left over from that, so a fresh one is measured.
"""

import asyncio
import resource
import time
from typing import Any

from benchmarks.fleet import Fleet
from benchmarks.load import LoadProcesses, Phases
from benchmarks.measurement import Measurement
from benchmarks.senders import AppServers
from benchmarks.target import Scale, Target

SPARE_DESCRIPTORS = 200
ADDRESSES = 4  # 127.0.0.x to connect from: one has 28,000 ports at most
QUIET_S = 2.0


def run(target: Target, scale: Scale) -> Measurement:
    """Several load processes, because each may open only so many sockets; so may each worker."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    share = max(1, min(scale.idle, soft - SPARE_DESCRIPTORS, 10_000))
    shares = [share] * (scale.idle // share) + ([scale.idle % share] if scale.idle % share else [])
    jobs = [
        {"ws_url": target.ws_url, "count": count, "address": f"127.0.0.{1 + number % ADDRESSES}"}
        for number, count in enumerate(shares)
    ]
    with LoadProcesses(__name__, jobs) as load_processes:
        load_processes.expect("ready")
        before = target.look()
        began = time.perf_counter()
        load_processes.go()
        load_processes.expect("connected")
        seconds = time.perf_counter() - began
        time.sleep(0.5)
        connected = target.look()
        time.sleep(QUIET_S)
        quiet = target.look()
        load_processes.go()
        load_processes.expect("done")
        load_processes.results()
    kib = notes = None
    if before is not None and connected is not None and quiet is not None:
        kib = (connected.anonymous_kib - before.anonymous_kib) / scale.idle
        share_of_core = (quiet.cpu_s - connected.cpu_s) / QUIET_S
        with_store = (connected.pss_kib - before.pss_kib) / scale.idle
        notes = (
            f"{with_store:.2f} KiB with the store's mapped file; {scale.idle} connections,"
            f" {connected.pss_kib / 1024:.0f} MiB in all, {share_of_core:.1%} of a core while idle"
        )
    return Measurement(
        scenario="idle",
        operation="connection",
        operations=scale.idle,
        seconds=seconds,
        kib=kib,
        notes=notes or "",
    )


async def load(job: dict[str, Any], phases: Phases) -> dict[str, Any]:
    fleet = Fleet(job["ws_url"], AppServers(1).public, job["count"], local_address=job["address"])
    await phases.ready()
    await fleet.connect_all(register=True)
    await phases.step("connected")
    lost = sum(agent.connection is None or agent.connection.closed for agent in fleet.agents)
    phases.done()
    await fleet.hang_up()
    await asyncio.sleep(0)
    return {"lost": lost}
