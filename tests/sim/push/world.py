"""A whole push service in one process and one seed: nodes, store, network, user agents, chaos.

`PushWorld(seed)` draws everything from the seed: how many nodes, their settings, what goes wrong
and when. `main` lets it live through the chaos and a quiet minute in which nothing fails and
everybody is connected and acks; then `broken_promises` says what was not kept.

    world = PushWorld(seed)
    run_sim(world.main(), world.clock)
    assert not world.broken_promises()

The `make_…` methods and `replay` are where a test plants a mistake.
"""

import asyncio
import random
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Literal

from tests.sim.push.checkers import History, Post, broken_promises
from tests.sim.push.clients import SimAppServer, SimUserAgent
from tests.sim.push.nodes import ConnectNode, EndpointNode, SimKeys, endpoint_path
from tests.sim.push.relay import SimRelay
from tests.sim.sockets import Luck, SimNetLoop, SimNetwork
from waystation.base.clock import Clock
from waystation.net.http1.message import Request, Response
from waystation.push.connect.driver import ConnectDriver
from waystation.push.connect.journal_replay import replay
from waystation.push.connect.session_context import SessionContext
from waystation.push.connect.unacked_saver import UnackedSaver
from waystation.push.endpoint.router import Router
from waystation.push.milestone_writer import MilestoneWriter
from waystation.push.model import ChannelId, MessageId, Uaid
from waystation.push.settings import Connect
from waystation.push.store import PushStore
from waystation.push.wire.relay import Relay
from waystation.storage.memory.push import MemoryPushStore
from waystation.testing.faults import FaultyStore, StoreLuck
from waystation.testing.loop import SimClock

ON_THE_WAY_S = 15.0  # until then, what began in the chaos may still fail because of it
QUIET_S = 60.0
QUIET_MAX_S = 300.0


class PushWorld:
    def __init__(self, seed: int, *, chaos_s: float = 20.0) -> None:
        self.seed = seed
        self.clock = SimClock()
        self.rng = rng = random.Random(seed)
        self.history = History(self.clock)
        self._chaos_s = chaos_s
        self.settings = Connect(
            delivery_window=rng.choice((1, 2, 128)),
            stored_batch_max=rng.choice((2, 3, 10)),
            msg_limit=rng.choice((0, 0, 0, 0, 12)),
            auto_ping_interval_s=8.0,
            auto_ping_timeout_s=2.0,
            open_handshake_timeout_s=10.0,
            max_commands=rng.choice((1, 16)),
            send_buffer_high_bytes=(high := rng.choice((1024, 65_536))),
            # A mark above the limit is refused at start-up, so no world has one.
            send_buffer_max_bytes=max(high, rng.choice((4096, 1_048_576))),
            inflight_journal=rng.choice(("write", "write", "write", "fsync")),
        )
        self.sort_keys: Literal["unique", "autopush"] = rng.choice(("unique", "autopush"))
        self.journal_fails = rng.choice((0.0, 0.0, 0.02))
        self.journal_compacts = rng.choice((0.0, 0.1))
        self.skewed = rng.random() < 0.15
        self._harsh = rng.random() < 0.5  # else nothing is lost between nodes, only late
        self.secret = rng.choice((b"", b"a secret that all nodes know"))  # without: HTTP, no link
        failing = rng.choice((0.0, 0.01, 0.03))
        self._luck = Luck(
            rng,
            slow_s=rng.choice((0.3, 2.0)),
            cut_share=rng.choice((0.003, 0.01)) if self._harsh else 0.0,
            window_bytes=rng.choice((1500, 65_536)),
        )
        self._store_luck = StoreLuck(
            rng,
            wait_s=rng.choice((0.03, 0.3)),
            slow_s=rng.choice((0.5, 4.0)),
            fails_before=failing,
            fails_after=failing,
        )
        self.keys = SimKeys(self)
        self.dancing = False
        self.quiet = False
        self.quiet_at_s = 0.0
        self.posts: dict[int, Post] = {}
        self.channels: list[tuple[Uaid, ChannelId, bytes]] = []
        self.connect_nodes: list[ConnectNode] = []
        self.places: dict[str, ConnectNode] = {}  # by node id
        self.near: dict[str, str] = {}  # the node id that an endpoint shares its process with
        self.endpoint_nodes: list[EndpointNode] = []
        self.app_servers: list[SimAppServer] = []
        self._tasks: dict[asyncio.Task[None], None] = {}

    # Where a test plants a mistake

    def make_backend(self) -> MemoryPushStore:
        return MemoryPushStore(self.clock)

    def make_store(self, source: str) -> FaultyStore:
        return FaultyStore(self._store, self._store_luck, self.history, source)

    def make_unacked_saver(
        self, store: PushStore, relay: Relay, clock: Clock, **ports: Any
    ) -> UnackedSaver:
        return UnackedSaver(
            store,
            relay,
            clock,
            concurrency=4,
            fresh_keys=self.sort_keys == "autopush",
            jitter=self.rng.random,
            **ports,
        )

    def make_driver(self, terms: SessionContext, **ports: Any) -> ConnectDriver:
        return ConnectDriver(terms, **ports)

    def make_router(
        self, store: PushStore, relay: Relay, milestones: MilestoneWriter, **ports: Any
    ) -> Router:
        return Router(store, relay, milestones, **ports)

    def make_relay(self, own_node_id: str, net: SimNetLoop, clock: Clock) -> Relay:
        return SimRelay(
            self.places,
            self.history,
            own_node_id=own_node_id,
            net=net,
            clock=clock,
            secret=self.secret,
        )

    async def replay(self, path: Path, saver: UnackedSaver) -> int:
        return await replay(path, saver)

    # A run

    async def main(self) -> None:
        with tempfile.TemporaryDirectory(prefix="waystation-sim-") as folder:
            self.folder = Path(folder)
            await self._live()

    async def _live(self) -> None:
        rng = self.rng
        self.loop = asyncio.get_running_loop()
        self._store = self.make_backend()
        self.sockets = SimNetwork(self._luck)
        for number in range(rng.choice((2, 3))):
            node = ConnectNode(self, f"c{number}", self._skew_ms())
            self.connect_nodes.append(node)
            self.places[node.node_id] = node
            node.start()
        # Of a flushed journal an endpoint would wait for ever when the node dies: in one process
        # it dies as well, and here it does not.
        if self.seed % 3 == 0 and self.settings.inflight_journal == "write":
            self.near["e0"] = self.connect_nodes[0].node_id
        self.endpoint_nodes += [EndpointNode(self, f"e{n}", self._skew_ms()) for n in range(2)]
        agents = [SimUserAgent(self, f"ua{n}") for n in range(rng.choice((2, 3, 4)))]
        self.app_servers += [SimAppServer(self, f"as{n}") for n in range(2)]
        chaos = self.spawn(self._chaos())
        posting = [self.spawn(server.live()) for server in self.app_servers]
        lives = [self.spawn(agent.live()) for agent in agents]
        watch = self.spawn(self._watch_limits())
        await asyncio.sleep(self._chaos_s)
        chaos.cancel()
        await self._last_dance(agents, lives)
        await self._calm_down()
        await asyncio.gather(*posting)
        await asyncio.sleep(ON_THE_WAY_S)
        await asyncio.gather(*(agent.settle() for agent in agents))
        await self._wait_until_done()
        await self._check_routes(agents)
        watch.cancel()
        for node in self.connect_nodes:
            if node.driver is not None:
                node.kill()
        for node in self.endpoint_nodes:
            node.kill()

    def _skew_ms(self) -> int:
        return self.rng.randint(-1500, 1500) if self.skewed else 0

    def spawn(self, coro: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = self.loop.create_task(coro)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self.task_failed("world", error)

    def request_failed(self, _request: Request, error: BaseException) -> Response:
        self.task_failed("request", error)
        return Response.of(500)

    def task_failed(self, name: str, error: BaseException) -> None:
        self.history.problem(f"task {name} failed: {error!r}")

    async def _watch_limits(self) -> None:
        while True:
            await asyncio.sleep(0.5 if not self.quiet else 10.0)
            for node in self.connect_nodes:
                node.check_limits()

    # Chaos

    async def _chaos(self) -> None:
        rng = self.rng
        while True:
            await asyncio.sleep(rng.expovariate(1 / 3))
            node = rng.choice(self.connect_nodes)
            match rng.choices(
                ("kill", "stop", "start", "part", "store down", "endpoint"), (3, 2, 5, 2, 1, 1)
            )[0]:
                case "kill":
                    if node.driver is not None or node.starting:
                        node.kill()
                case "stop":
                    if node.up:
                        await node.stop()
                case "start":
                    for down in self.connect_nodes:
                        if down.driver is None and not down.starting:
                            down.start()
                case "part":
                    if self._harsh:
                        await self._part(rng.choice(self.endpoint_nodes), node)
                case "store down":
                    self.history.note("store", "down")
                    self._store_luck.down = True
                    await asyncio.sleep(rng.random() * 3)
                    self._store_luck.down = False
                    self.history.note("store", "up")
                case _:
                    endpoint = rng.choice(self.endpoint_nodes)
                    endpoint.kill()
                    endpoint.start()

    async def _part(self, endpoint: EndpointNode, node: ConnectNode) -> None:
        self.history.note(endpoint.name, f"cannot reach {node.name}")
        self.sockets.part(endpoint.name, node.name)
        await asyncio.sleep(self.rng.random() * 5)
        self.sockets.join(endpoint.name, node.name)

    async def _last_dance(
        self, agents: list[SimUserAgent], lives: "list[asyncio.Task[None]]"
    ) -> None:
        """Nothing fails any more, but everything still takes its time."""
        self.history.note("world", "the last dance")
        self._luck.cut_share = 0.0
        self._store_luck.fails_before = self._store_luck.fails_after = 0.0
        self._store_luck.down = False
        self.journal_fails = 0.0
        self.sockets.join_all()
        self._start_all()
        self.dancing = True
        await asyncio.gather(*lives)
        await asyncio.gather(*(agent.dance() for agent in agents))
        if self.rng.random() < 0.5:
            self.rng.choice(self.connect_nodes).kill()

    async def _calm_down(self) -> None:
        self.history.note("world", "quiet from now on")
        self.quiet = True
        self.quiet_at_s = self.clock.elapsed_s
        self._luck.calm = True
        self._store_luck.calm = True
        self._start_all()

    def _start_all(self) -> None:
        for node in self.connect_nodes:
            if node.journal is not None:
                node.journal.calm()
            if node.driver is not None and not node.up:
                node.kill()  # it was stopping
            if node.driver is None and not node.starting:
                node.start()

    # The end

    async def _wait_until_done(self) -> None:
        await asyncio.sleep(QUIET_S)
        until = self.clock.elapsed_s + QUIET_MAX_S
        while await self._look_for_leftovers() and self.clock.elapsed_s < until:  # noqa: ASYNC110 time jumps
            await asyncio.sleep(5.0)

    async def _look_for_leftovers(self) -> bool:
        """What is in the store or in a journal although everybody is there and acks."""
        left: list[tuple[str, Uaid, MessageId]] = []
        now_ms = self.clock.now_ms()
        for uaid in {uaid: None for uaid, _, _ in self.channels}:
            rows = await self._store.fetch(uaid, now_ms=now_ms, after=None, limit=1000)
            left += [("the store", uaid, row.message_id) for row in rows]
        for node in self.connect_nodes:
            if node.journal is not None:
                left += [
                    (f"the journal of {node.name}", Uaid(b""), message_id)
                    for message_id in node.journal.unsettled_ids()
                ]
        self.history.left = left
        return bool(left)

    async def _check_routes(self, agents: list[SimUserAgent]) -> None:
        """Where a user agent is connected, its route leads; else nobody would tell it anything."""
        for agent in agents:
            record = await self._store.get_user_agent(agent.uaid) if agent.uaid else None
            if record is not None and agent.connected_to not in (None, record.node_id):
                self.history.problem(
                    f"{agent.name} is connected, but its route does not lead there"
                )

    def broken_promises(self) -> list[str]:
        return broken_promises(self.history, self.clock.now_ms())

    # For nodes and user agents

    def endpoint_for(
        self, uaid: Uaid, channel_id: ChannelId, key: bytes | None, simple: bool
    ) -> str:
        return endpoint_path(self.keys, uaid, channel_id)
