"""A simulated node: the presence server of production, on simulated sockets and Redis."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import structlog

from tests.sim.presence.network import SimRedisConnection
from tests.sim.sockets import SimHost, SimNetLoop, SimNetwork, SimSocket
from waystation.base.tasks import Tasks
from waystation.net.http2.limits import Limits
from waystation.net.http2.port import StreamHandler
from waystation.net.http2.server import Http2Server
from waystation.presence.reports import Reports
from waystation.presence.store import Owner
from waystation.presence.transport.server import PresenceServer
from waystation.telemetry.events import RecordedEvents
from waystation.telemetry.hashes import EventHashes
from waystation.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from tests.sim.presence.world import PresenceWorld

PORT: Final = 50051
LIMITS: Final = Limits(send_high_bytes=300, send_low_bytes=100)  # what a client does not read
QUIET: Any = structlog.wrap_logger(
    None, wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL)
)


class InOrder(set[Any]):
    """A set with a fixed order of iteration: memory addresses must not decide anything."""

    def __init__(self) -> None:
        super().__init__()
        self._order: dict[Any, None] = {}

    def add(self, element: Any, /) -> None:
        super().add(element)
        self._order[element] = None

    def discard(self, element: Any, /) -> None:
        super().discard(element)
        self._order.pop(element, None)

    def clear(self) -> None:
        super().clear()
        self._order.clear()

    def __iter__(self) -> Any:
        return iter(list(self._order))


class StoppableHost(SimHost):
    """A process that may be stopped and go on later, or lose its machine."""

    def __init__(self, network: SimNetwork, name: str) -> None:
        super().__init__(network, name)
        self.asleep = False

    def _take_turn(self) -> None:
        if not self.asleep:
            super()._take_turn()

    def wake(self) -> None:
        self.asleep = False
        self._take_turn()

    def fall_silent(self) -> None:
        """The machine is gone, and the kernel of no peer notices."""
        for held in list(self._by_fd.values()):
            if isinstance(held, SimSocket):
                held.vanish()


class NodeProcess:
    """One run of the node: from its start to its end."""

    def __init__(self, world: "PresenceWorld", name: str, number: int) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self._asleep = False
        self._held: list[Callable[[], None]] = []
        self.redis_connection = SimRedisConnection(world.redis, world.faults, self)
        self.store = world.make_store(self.redis_connection)
        self.tasks = Tasks(self._failed)
        self.metrics = Metrics()
        self.reports = Reports(
            sink=RecordedEvents(),
            hashes=EventHashes(bytes(32)),
            metrics=self.metrics,
            clock=world.clock,
            log=QUIET,
        )
        self.reports.trouble = self._trouble
        self._host = StoppableHost(world.network, name)
        self._net = SimNetLoop(self._host, clock=world.clock)
        self.server = PresenceServer(
            world.settings,
            self.store,
            owner=Owner(name, number),
            clock=world.clock,
            reports=self.reports,
            tasks=self.tasks,
            make_port=self._make_port,
            shared=self.store,
            endpoints=(name, ""),
        )
        self.server.broker.registry.open_streams = InOrder()
        tick = self.server.broker.periodic_work.tick
        self.server.broker.periodic_work.tick = lambda: not self._asleep and tick()

    def _make_port(self, routes: Mapping[str, StreamHandler]) -> Http2Server:
        return Http2Server(
            routes,
            self._host.listening(PORT),
            net=self._net,
            clock=self.world.clock,
            limits=LIMITS,
            on_failure=lambda exc: self._trouble("stream", exc),
        )

    def _failed(self, task: str, error: BaseException) -> None:
        if self.alive:
            self.world.complain(f"{self.name}: {task}: {error!r}")

    def _trouble(self, what: str, error: BaseException) -> None:
        if self.alive:
            self.world.complain(f"{self.name}: {what}: {error!r}")

    # --- sleep -----------------------------------------------------------------------------------

    def when_awake(self, call: Callable[[], None]) -> None:
        if self._asleep:
            self._held.append(call)
        elif self.alive:
            call()

    def sleep(self) -> None:
        self._asleep = self._host.asleep = True

    def wake(self) -> None:
        """What waited is worked off; timers come out at the next tick, before or after it."""
        self._asleep = False
        held, self._held = self._held, []
        for call in held:
            self.when_awake(call)
        self._host.wake()

    # --- ends ------------------------------------------------------------------------------------

    def kill(self) -> None:
        """As `kill -9` does: nothing is said, nothing is saved."""
        self.alive = False
        self.redis_connection.die()
        server = self.server
        if server._ticking is not None:
            server._ticking.cancel()
        self.world.spawn(f"end of {self.name}", self._end())
        if self.world.rng.random() < 0.3:
            self._host.fall_silent()
        self._net.kill()

    async def _end(self) -> None:
        await self.tasks.close()

    async def close(self) -> None:
        """As SIGTERM does, with a drain that takes no time."""
        await self.server.drain(0.0)
        await self.server.close()
        await self.tasks.close()
        await self.store.close()
        self.alive = False
        self._net.kill()
        self.redis_connection.die()


class SimNode:
    def __init__(self, world: "PresenceWorld", name: str) -> None:
        self.world = world
        self.name = name
        self.runs = 0
        self.process: NodeProcess | None = None
        self.gone = False  # for good

    async def start(self) -> None:
        self.runs += 1
        process = NodeProcess(self.world, self.name, self.runs)
        self.process = process
        while process.alive and not self._started(process):
            try:
                await process.server.start()
            except Exception as exc:
                self.world.say(f"{self.name} does not start: {exc}")
                process.kill()
                await asyncio.sleep(0.3)
                if self.process is process and not self.world.over:
                    await self.start()
                return

    def _started(self, process: NodeProcess) -> bool:
        return process.server.state != "starting"

    @property
    def unreachable(self) -> bool:
        """Whether the node runs without its connection to Redis."""
        process = self.process
        return self.up and process is not None and process.redis_connection.broken

    @property
    def up(self) -> bool:
        process = self.process
        return process is not None and process.alive and process.server.state != "closed"

    def kill(self) -> None:
        if self.process is not None and self.process.alive:
            self.world.say(f"{self.name} is killed")
            self.process.kill()

    async def restart(self) -> None:
        process = self.process
        if process is not None and process.alive:
            self.world.say(f"{self.name} is restarted")
            await process.close()
        await self.start()
