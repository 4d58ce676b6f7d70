"""Simulates presence in one process from one seed: nodes, Redis, clients, networks, faults.

The presence server of production runs with its HTTP/2 and its Redis store. Simulated are Redis
itself, the connections to it, sockets, processes that die or stop, and the clock. `party_history`
says what is checked.

    world = PresenceWorld(seed)
    run_sim(world.main(), world.clock)
    assert not world.complaints

A test plants a mistake by `make_store`, by the attributes in capitals, or in the modules of
presence.
"""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any, Final

from tests.sim.presence.client import SimClient
from tests.sim.presence.network import FaultRates, SimPresenceStore, SimRedisConnection
from tests.sim.presence.node import SimNode
from tests.sim.presence.party_history import PartyHistories
from tests.sim.presence.redis import RedisModel
from tests.sim.sockets import Luck as NetworkFaults
from tests.sim.sockets import SimNetwork
from waystation.presence.model import PartyId
from waystation.presence.settings import Presence
from waystation.testing.loop import SimClock

NODES: Final = 3
TTL_S: Final = 4.0
LEASE_S: Final = 3.0
COMPLAINTS_MAX: Final = 20


class PresenceWorld:
    def __init__(self, seed: int, *, troubled_s: float = 14.0, only: str = "") -> None:
        """`only`: one kind of fault instead of those that the seed draws."""
        self.seed = seed
        self._only = only
        self.clock = SimClock()
        self.rng = rng = random.Random(seed)
        self.faults = FaultRates(rng)
        self._network_faults = NetworkFaults(
            rng=rng,
            slow_share=self.faults.slow_share,
            slow_s=0.3,
            window_bytes=rng.choice((2000, 65_536)),
        )
        self.ttl_s = TTL_S
        self.ping_s = TTL_S / 3
        self._troubled_s = troubled_s
        lag = rng.choice((12, 1024))
        self.settings = Presence(
            session_ttl_s=TTL_S,
            session_ttl_min_s=1.0,
            join_timeout_s=2.0,
            join_burst=10_000,
            rate_burst=10_000,
            max_inflight=rng.choice((4, 256)),
            max_lag=lag,
            party_log=rng.choice((16, 4096)) if lag == 12 else 4096,
            party_linger_s=rng.choice((2.0, 60.0)),
            signal_enabled=rng.random() < 0.5,
            update_after_s=1.0,
            resume_token_grace_s=3.0,
            write_stall_s=1.5,
            slow_window_s=5.0,
            cursor_save_s=0.5,
            heartbeat_s=0.9,
            self_fence_s=2.2,
            lease_s=LEASE_S,
            gap_check_s=1.0,
            sweep_s=0.8,
            store_busy_s=0.3,
            store_outage_grace_s=LEASE_S,
        )
        self.redis = RedisModel(self.clock)
        self.histories = PartyHistories()
        self.parties = [PartyId(party) for party in range(1, rng.choice((2, 3)))]
        for party_id in self.parties:
            self.redis.listen(b"pp:{%016x}:bell" % party_id, self._published)
        self.nodes = [SimNode(self, f"node.{number}") for number in range(1, NODES + 1)]
        self.clients = [
            SimClient(self, number, rng.choice(self.parties))
            for number in range(1, rng.randint(5, 9))
        ]
        self.network: SimNetwork
        self.history: list[str] = []
        self.complaints: list[str] = []
        self.over = False
        self._tasks: dict[asyncio.Task[None], None] = {}

    def make_store(self, redis_connection: SimRedisConnection) -> SimPresenceStore:
        settings = self.settings
        return SimPresenceStore(
            redis_connection, log_max=settings.party_log, linger_s=settings.party_linger_s
        )

    # --- shared ----------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        return self.clock.elapsed_s

    def say(self, line: str) -> None:
        self.history.append(f"{self.now_s:8.3f} {line}")

    def complain(self, what: str) -> None:
        self.say(f"! {what}")
        if len(self.complaints) < COMPLAINTS_MAX:
            self.complaints.append(f"seed {self.seed}, {self.now_s:.3f} s: {what}")

    def spawn(self, name: str, coro: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coro, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.complain(f"{task.get_name()}: {error!r}")

    def _published(self, channel: bytes, data: bytes) -> None:
        party_id = PartyId(int(channel[4:20], 16))
        fact = self.histories.published(party_id, data, self.now_s)
        for mistake in self.histories.mistakes:
            self.complain(mistake)
        self.histories.mistakes.clear()
        if fact is None:
            return
        entry = fact.entry
        self.say(f"{party_id}: {entry.seq} {entry.kind.name} {entry.session_id} ({entry.code})")
        if entry.kind.name == "LEAVE":
            for client in self.clients:
                if client.member == (entry.client_id, entry.session_id):
                    client.removed(fact)

    def check_reset(self, party_id: PartyId, epoch: int, seq: int) -> None:
        """A LIST at an unwritten position: right only for an empty party."""
        if seq:
            self.complain(f"a LIST at {seq} of party {party_id}, which nobody wrote")

    # --- a run -----------------------------------------------------------------------------------

    async def main(self) -> None:
        self.network = SimNetwork(self._network_faults)
        for node in self.nodes:
            await node.start()
        for client in self.clients:
            client.wants_to_be_joined = True
            self.spawn(client.name, client.live())
        self.spawn("misfortune", self._inject_faults())
        self.spawn("whims", self._act_at_random())
        await asyncio.sleep(self._troubled_s)
        await self._stop_faults()
        if not self.complaints:
            await self._all_leave()
        self.over = True
        for node in self.nodes:
            if node.process is not None and node.process.alive:
                await node.process.close()
        await asyncio.sleep(1.0)

    async def _stop_faults(self) -> None:
        self.faults.calm = self._network_faults.calm = True
        self.say("calm")
        await asyncio.sleep(2.0)
        for node in self.nodes:
            if not node.up and not node.gone:
                await node.start()
        for client in self.clients:
            client.no_acks = False
        # A node without Redis may be the last one: until it is back, no node expires sessions.
        while any(node.unreachable for node in self.nodes):  # noqa: ASYNC110
            await asyncio.sleep(0.5)
        # Time for leases to end, sessions of dead nodes to expire, and clients to reconnect.
        await asyncio.sleep(LEASE_S + 2 * TTL_S + 2.0)
        for client in self.clients:
            client.check_at_rest()
        self._check_accounts()

    async def _all_leave(self) -> None:
        """All clients leave; then no session or party remains."""
        for client in self.clients:
            if not client.lost_for_good and client.wants_to_be_joined:
                client.leave()
        await asyncio.sleep(4.0)
        for client in self.clients:
            client.check_at_rest()
        for node in self.nodes:
            if node.process is None or not node.up:
                continue
            registry = node.process.server.broker.registry
            if registry.sessions or registry.parties:
                self.complain(f"{node.name} still holds sessions or parties")
        self._check_accounts()

    def _check_accounts(self) -> None:
        for node in self.nodes:
            if node.process is None or not node.up:
                continue
            broker = node.process.server.broker
            counters = broker.counters
            inflight = sum(len(one.delivery.inflight) for one in broker.registry.sessions.values())
            known = (
                counters.acked
                + counters.dropped
                + counters.superseded
                + counters.abandoned
                + inflight
            )
            if counters.out != known:
                self.complain(f"{node.name}: {counters.out} went out and {known} are accounted for")

    # --- faults ----------------------------------------------------------------------------------

    async def _inject_faults(self) -> None:
        rng = self.rng
        names = ("kill", "hide", "hiccup", "sleep", "restart", "outage")
        weights = [rng.choice((0, 1, 3)) for _ in names[:-1]] + [rng.choice((0, 0, 1))]
        if self._only:
            weights = [int(name == self._only) for name in names]
        if not any(weights):
            return
        while not self.faults.calm:
            await asyncio.sleep(rng.expovariate(0.8))
            if self.faults.calm:
                return
            node = rng.choice(self.nodes)
            process = node.process
            if process is None or not node.up:
                continue
            match rng.choices(names, weights)[0]:
                case "kill":
                    node.kill()
                    after_s = rng.choice((0.2, 2.0, 6.0, 60.0))
                    others = [one for one in self.nodes if not one.gone and one is not node]
                    if after_s > self._troubled_s and others:
                        node.gone = True  # for good: another node must expire its sessions
                    else:
                        self.spawn("revival", self._revive(node, after_s))
                case "hide":
                    seconds = rng.choice((1.0, 2.5, 5.0, 9.0))
                    self.say(f"{node.name} does not reach Redis for {seconds} s")
                    process.redis_connection.break_for(seconds)
                case "hiccup":
                    process.redis_connection.break_for(0.0)
                case "sleep":
                    seconds = rng.choice((1.0, 2.5, 5.0))
                    self.say(f"{node.name} sleeps for {seconds} s")
                    process.sleep()
                    asyncio.get_running_loop().call_later(seconds, process.wake)
                case "restart":
                    self.spawn("restart", node.restart())
                case _:
                    seconds = rng.choice((1.0, 3.0, 6.0))
                    self.say(f"Redis is away for {seconds} s")
                    for other in self.nodes:
                        if other.process is not None and other.up:
                            other.process.redis_connection.break_for(seconds)

    async def _revive(self, node: SimNode, after_s: float) -> None:
        await asyncio.sleep(after_s)
        if not node.up and not self.over:
            await node.start()

    async def _act_at_random(self) -> None:
        """Random actions of clients and faults of their networks."""
        rng = self.rng
        names = ("leave", "cut", "vanish", "takeover", "stall", "signal", "list", "no_acks")
        weights = (6, 6, 1, 2, 1, 6, 1, 1)
        while not self.faults.calm:
            await asyncio.sleep(rng.expovariate(6.0))
            client = rng.choice(self.clients)
            if client.lost_for_good or self.faults.calm:
                continue
            if not client.wants_to_be_joined:
                client.join_again()
                continue
            match rng.choices(names, weights)[0]:
                case "leave":
                    client.leave()
                case "cut":
                    client.cut()
                case "vanish":
                    client.vanish()
                case "takeover":
                    client.take_over()
                case "stall":
                    client.stall(rng.choice((0.5, 1.0)))
                case "signal":
                    client.signal()
                case "list":
                    client.request_list()
                case _:
                    client.stop_acknowledging()
