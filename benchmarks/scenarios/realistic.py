"""Direct and stored notifications as they come: many user agents, many different senders.

10,000 user agents are connected; 1,000 senders write their requests as their libraries do, three
out of four with a VAPID token that was never used before, and one out of four over a connection
that was never used before. `mixed_load` plans all POSTs from a seed before the clock starts.
"""

import random
import time
from time import perf_counter
from typing import Any

from benchmarks.fleet import Agent, Fleet
from benchmarks.load import LoadProcesses, Phases
from benchmarks.measurement import Measurement, percentile
from benchmarks.mixed_load import MixedLoad, RealisticScale, senders_of
from benchmarks.senders import number_of, until
from benchmarks.target import Target, per_operation_us
from benchmarks.wire import Said

DIRECT, STORED, CATCHING_UP = "realistic direct", "realistic stored", "realistic catching up"
STORED_TTL_S = 3600  # at least: a library's default of 0 seconds is never stored
WARM_UP = 10  # one POST for so many that count
_QUIET_CPU = 0.05  # of a core
_QUIET_TIMEOUT_S = 60.0


def jobs_of(target: Target, scale: RealisticScale) -> list[dict[str, Any]]:
    """One for each load process, with its share of everything."""

    def share(total: int) -> int:
        return -(-total // scale.processes)

    return [
        {
            "ws_url": target.ws_url,
            "endpoint_url": target.endpoint_url,
            "agents": share(scale.agents),
            "app_servers": share(scale.app_servers),
            "posts": share(scale.posts),
            "stored_posts": share(scale.stored_posts),
            "in_flight": share(scale.in_flight),
            "patience_s": scale.patience_s,
            "seed": scale.seed * 1000 + number,
            "address": f"127.0.0.{2 + number}",  # each has 28,000 ports of its own
        }
        for number in range(scale.processes)
    ]


def run(target: Target, scale: RealisticScale) -> list[Measurement]:
    with LoadProcesses(__name__, jobs_of(target, scale)) as load_processes:
        load_processes.expect("ready")
        until_quiet(target)
        start = target.look()
        load_processes.go()
        load_processes.expect("direct")
        direct = target.look()
        load_processes.go()
        load_processes.expect("away")
        until_quiet(target)
        away = target.look()
        load_processes.go()
        load_processes.expect("stored")
        stored = target.look()
        load_processes.go()
        load_processes.expect("done")
        done = target.look()
        results = load_processes.results()
    delivered, saved = results_of(results, "direct"), results_of(results, "stored")
    back = sum(one["caught_up"] for one in results)
    return [
        measurement_of(
            DIRECT,
            "notification acked",
            delivered,
            per_operation_us(start, direct, delivered["received"]),
            operations=delivered["received"],
        ),
        measurement_of(
            STORED,
            "POST answered 201",
            saved,
            per_operation_us(away, stored, saved["accepted"]),
            operations=saved["accepted"],
        ),
        Measurement(
            scenario=CATCHING_UP,
            operation="notification acked",
            operations=back,
            seconds=max(one["catch_up_s"] for one in results),
            cpu_us=per_operation_us(stored, done, back),
            notes=f"{scale.agents} user agents return",
        ),
    ]


def until_quiet(target: Target) -> None:
    """What a server still does for those who came or went is not part of what follows."""
    before = target.look()
    deadline = perf_counter() + _QUIET_TIMEOUT_S
    while before is not None and perf_counter() < deadline:
        time.sleep(0.5)
        after = target.look()
        if after is None or after.cpu_s - before.cpu_s < 0.5 * _QUIET_CPU:
            return
        before = after


def results_of(results: list[dict[str, Any]], phase: str) -> dict[str, Any]:
    """Sums over the load processes, and all latencies together."""
    mine = [one[phase] for one in results]
    return {
        **{
            name: sum(one[name] for one in mine)
            for name in ("received", "accepted", "lost", "again", "busy", "opened")
        },
        "seconds": max(one["seconds"] for one in mine),
        "latencies_ms": [value for one in mine for value in one["latencies_ms"]],
        "frame_ms": [value for one in mine for value in one["frame_ms"]],
    }


def measurement_of(
    scenario: str, operation: str, found: dict[str, Any], cpu_us: float | None, *, operations: int
) -> Measurement:
    rare = {"answered 503": found["busy"], "came twice": found["again"]}
    return Measurement(
        scenario=scenario,
        operation=operation,
        operations=operations,
        seconds=found["seconds"],
        cpu_us=cpu_us,
        p50_ms=percentile(found["latencies_ms"], 0.5),
        p99_ms=percentile(found["latencies_ms"], 0.99),
        frame_ms=percentile(found["frame_ms"], 0.5),
        lost=found["lost"],
        notes=", ".join(
            [f"{found['opened'] / operations:.0%} of the POSTs on a new connection"]
            + [f"{count} {what}" for what, count in rare.items() if count]
        ),
    )


class Crowd:
    """The user agents of one load process, its senders, and what has arrived."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job = job
        self._patience_s: float = job["patience_s"]
        self.rng = random.Random(job["seed"])
        self.senders = senders_of(job["app_servers"], self.rng)
        self.received: set[int] = set()
        self.frame_ms: list[float] = []
        self.again = 0
        self.posts = self.load()
        self.fleet = Fleet(
            job["ws_url"],
            [sender.key.public_text for sender in self.senders],
            job["agents"],
            on_notification=self._on_notification,
            local_address=job["address"],
        )

    async def connect(self) -> None:
        await self.fleet.connect_all(register=True)
        for number, agent in enumerate(self.fleet.agents):
            self.senders[number % len(self.senders)].endpoints.append(agent.endpoint)

    def load(self) -> MixedLoad:
        """A new one: nothing was posted, nothing has arrived."""
        self.received, self.frame_ms, self.again = set(), [], 0
        self.posts = MixedLoad(
            self._job["endpoint_url"], self.senders, self.rng, in_flight=self._job["in_flight"]
        )
        return self.posts

    def _on_notification(self, _: Agent, said: Said) -> None:
        number = number_of(said.data)
        if number in self.received:
            self.again += 1
            return
        self.received.add(number)
        self.frame_ms.append((perf_counter() - self.posts.sent_at[number]) * 1000)

    async def post_direct(self, phases: Phases, posts: int) -> None:
        """Says `ready` when everything is planned and warm."""
        warm_up = self.posts.plan(max(1, posts // WARM_UP))
        await self.posts.connect()
        await self.posts.run(warm_up)
        await self.receive_all()
        self.posts.check()
        self.load()
        plan = self.posts.plan(posts)
        await phases.ready()
        await self.posts.run(plan)
        await self.receive_all()

    async def receive_all(self) -> None:
        """As long as something arrives there is hope."""
        seen = -1
        while not self.all_received() and len(self.received) != seen:
            seen = len(self.received)
            await until(self.all_received, self._patience_s)

    def all_received(self) -> bool:
        return self.received >= self.posts.accepted

    def found(self) -> dict[str, Any]:
        self.posts.check()
        return {
            "received": len(self.received),
            "accepted": len(self.posts.accepted),
            "lost": len(self.posts.accepted - self.received),
            "again": self.again,
            "busy": self.posts.statuses[503],
            "opened": self.posts.connections_opened,
            "seconds": self.posts.seconds,
            "latencies_ms": self.posts.latencies_ms,
            "frame_ms": self.frame_ms,
        }


async def load(job: dict[str, Any], phases: Phases) -> dict[str, Any]:
    crowd = Crowd(job)
    await crowd.connect()
    await crowd.post_direct(phases, job["posts"])
    await phases.step("direct")
    direct = crowd.found()
    crowd.posts.close()

    await crowd.fleet.hang_up()
    posts = crowd.load()
    plan = posts.plan(job["stored_posts"], ttl_s_min=STORED_TTL_S)
    await posts.connect()
    await phases.step("away")
    await posts.run(plan)
    await phases.step("stored")
    began = perf_counter()
    await crowd.fleet.connect_all(register=True)
    await crowd.receive_all()
    catch_up_s = perf_counter() - began
    phases.done()
    stored = crowd.found()
    posts.close()
    await crowd.fleet.hang_up()
    return {
        "direct": direct,
        "stored": {**stored, "frame_ms": []},
        "caught_up": len(crowd.received),
        "catch_up_s": catch_up_s,
    }
