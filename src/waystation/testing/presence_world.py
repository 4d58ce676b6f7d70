"""Parties in one process and one seed: nodes, their Redis, guests on bad networks, misfortune.

What runs is the server of presence as it is in production, with its HTTP/2 and on its Redis store;
what is simulated are Redis itself and the ways to it, sockets, processes that die or stand still,
and the clock.
`presence_world_truth` says what is checked.

    world = PresenceWorld(seed)
    run_sim(world.main(), world.clock)
    assert not world.complaints

`make_store` and the attributes in capitals are where a test plants a mistake; others are planted in
the modules of presence themselves.
"""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any, Final

from tests.sim.sockets import Luck as NetworkLuck
from tests.sim.sockets import SimNetwork
from waystation.presence.model import PartyId
from waystation.presence.settings import Presence
from waystation.testing.loop import SimClock
from waystation.testing.presence_world_guest import Guest
from waystation.testing.presence_world_node import SimNode
from waystation.testing.presence_world_redis import RedisModel
from waystation.testing.presence_world_truth import Truth
from waystation.testing.presence_world_way import Luck, RedisWay, WorldStore

NODES: Final = 3
TTL_S: Final = 4.0
LEASE_S: Final = 3.0
COMPLAINTS_MAX: Final = 20


class PresenceWorld:
    def __init__(self, seed: int, *, troubled_s: float = 14.0, only: str = "") -> None:
        """`only` one kind of misfortune instead of whatever the seed draws."""
        self.seed = seed
        self._only = only
        self.clock = SimClock()
        self.rng = rng = random.Random(seed)
        self.luck = Luck(rng)
        self._network_luck = NetworkLuck(
            rng=rng,
            slow_share=self.luck.slow_share,
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
        self.truth = Truth()
        self.parties = [PartyId(party) for party in range(1, rng.choice((2, 3)))]
        for party_id in self.parties:
            self.redis.listen(b"pp:{%016x}:bell" % party_id, self._published)
        self.nodes = [SimNode(self, f"node.{number}") for number in range(1, NODES + 1)]
        self.guests = [
            Guest(self, number, rng.choice(self.parties)) for number in range(1, rng.randint(5, 9))
        ]
        self.network: SimNetwork
        self.history: list[str] = []
        self.complaints: list[str] = []
        self.over = False
        self._tasks: dict[asyncio.Task[None], None] = {}

    def make_store(self, way: RedisWay) -> WorldStore:
        settings = self.settings
        return WorldStore(way, log_max=settings.party_log, linger_s=settings.party_linger_s)

    # --- what everybody uses ---------------------------------------------------------------------

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
        fact = self.truth.published(party_id, data, self.now_s)
        for mistake in self.truth.mistakes:
            self.complain(mistake)
        self.truth.mistakes.clear()
        if fact is None:
            return
        entry = fact.entry
        self.say(f"{party_id}: {entry.seq} {entry.kind.name} {entry.session_id} ({entry.code})")
        if entry.kind.name == "LEAVE":
            for guest in self.guests:
                if guest.member == (entry.client_id, entry.session_id):
                    guest.removed(fact)

    def check_reset(self, party_id: PartyId, epoch: int, seq: int) -> None:
        """A LIST at a position that nobody wrote: only an empty party has one."""
        if seq:
            self.complain(f"a LIST at {seq} of party {party_id}, which nobody wrote")

    # --- a run -----------------------------------------------------------------------------------

    async def main(self) -> None:
        self.network = SimNetwork(self._network_luck)
        for node in self.nodes:
            await node.start()
        for guest in self.guests:
            guest.wants_in = True
            self.spawn(guest.name, guest.live())
        self.spawn("misfortune", self._misfortune())
        self.spawn("whims", self._whims())
        await asyncio.sleep(self._troubled_s)
        await self._calm_down()
        if not self.complaints:
            await self._go_home()
        self.over = True
        for node in self.nodes:
            if node.life is not None and node.life.alive:
                await node.life.close()
        await asyncio.sleep(1.0)

    async def _calm_down(self) -> None:
        self.luck.calm = self._network_luck.calm = True
        self.say("calm")
        await asyncio.sleep(2.0)
        for node in self.nodes:
            if not node.up and not node.gone:
                await node.start()
        for guest in self.guests:
            guest.stubborn = False
        # Whoever is hidden may be the last one alive: until then nobody sees to others' sessions.
        while any(node.up and node.life and node.life.way.broken for node in self.nodes):  # noqa: ASYNC110
            await asyncio.sleep(0.5)
        # Leases end, sessions of the dead expire, everybody comes back and hears of it.
        await asyncio.sleep(LEASE_S + 2 * TTL_S + 2.0)
        for guest in self.guests:
            guest.check_at_rest()
        self._check_accounts()

    async def _go_home(self) -> None:
        """Everybody leaves; then nothing of anybody is left."""
        for guest in self.guests:
            if not guest.gone_for_good and guest.wants_in:
                guest.leave()
        await asyncio.sleep(4.0)
        for guest in self.guests:
            guest.check_at_rest()
        for node in self.nodes:
            if node.life is None or not node.up:
                continue
            registry = node.life.server.broker.registry
            if registry.sessions or registry.parties:
                self.complain(f"{node.name} still holds sessions or parties")
        self._check_accounts()

    def _check_accounts(self) -> None:
        for node in self.nodes:
            if node.life is None or not node.up:
                continue
            broker = node.life.server.broker
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

    # --- bad luck --------------------------------------------------------------------------------

    async def _misfortune(self) -> None:
        rng = self.rng
        names = ("kill", "hide", "hiccup", "sleep", "restart", "outage")
        weights = [rng.choice((0, 1, 3)) for _ in names[:-1]] + [rng.choice((0, 0, 1))]
        if self._only:
            weights = [int(name == self._only) for name in names]
        if not any(weights):
            return
        while not self.luck.calm:
            await asyncio.sleep(rng.expovariate(0.8))
            if self.luck.calm:
                return
            node = rng.choice(self.nodes)
            life = node.life
            if life is None or not node.up:
                continue
            match rng.choices(names, weights)[0]:
                case "kill":
                    node.kill()
                    after_s = rng.choice((0.2, 2.0, 6.0, 60.0))
                    others = [one for one in self.nodes if not one.gone and one is not node]
                    if after_s > self._troubled_s and others:
                        node.gone = True  # for good: somebody else must see to its sessions
                    else:
                        self.spawn("revival", self._revive(node, after_s))
                case "hide":
                    seconds = rng.choice((1.0, 2.5, 5.0, 9.0))
                    self.say(f"{node.name} does not reach Redis for {seconds} s")
                    life.way.break_for(seconds)
                case "hiccup":
                    life.way.break_for(0.0)
                case "sleep":
                    seconds = rng.choice((1.0, 2.5, 5.0))
                    self.say(f"{node.name} sleeps for {seconds} s")
                    life.sleep()
                    asyncio.get_running_loop().call_later(seconds, life.wake)
                case "restart":
                    self.spawn("restart", node.restart())
                case _:
                    seconds = rng.choice((1.0, 3.0, 6.0))
                    self.say(f"Redis is away for {seconds} s")
                    for other in self.nodes:
                        if other.life is not None and other.up:
                            other.life.way.break_for(seconds)

    async def _revive(self, node: SimNode, after_s: float) -> None:
        await asyncio.sleep(after_s)
        if not node.up and not self.over:
            await node.start()

    async def _whims(self) -> None:
        """What guests do, and what their networks do to them."""
        rng = self.rng
        names = ("leave", "cut", "vanish", "takeover", "stall", "signal", "list", "stubborn")
        weights = (6, 6, 1, 2, 1, 6, 1, 1)
        while not self.luck.calm:
            await asyncio.sleep(rng.expovariate(6.0))
            guest = rng.choice(self.guests)
            if guest.gone_for_good or self.luck.calm:
                continue
            if not guest.wants_in:
                guest.come_back()
                continue
            match rng.choices(names, weights)[0]:
                case "leave":
                    guest.leave()
                case "cut":
                    guest.cut()
                case "vanish":
                    guest.vanish()
                case "takeover":
                    guest.take_over()
                case "stall":
                    guest.stall(rng.choice((0.5, 1.0)))
                case "signal":
                    guest.signal()
                case "list":
                    guest.ask_for_list()
                case _:
                    guest.be_stubborn()
