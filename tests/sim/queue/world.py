"""A queue cluster with its edges in one thread, from one seed, with all the bad luck there is.

Production code runs from the edge's core over links, ownership and dispatch to the rows of the
embedded store; simulated are time, connections, disks, the store of the map, and clients. Checkers
know what every client was told:

1. every message whose sender was told `OK` is delivered, in the order in which one sender sent;
2. a message whose ACK was answered is never delivered again;
3. an id that was told to a client leads to its queue through every edge, until it is deleted;
4. every command is answered, or its connection ends; nobody is told END or AUTH for no reason;
5. when the bad luck ends, every slot is served, and whoever subscribed gets what waits.

`replication_world` has the storage servers' cores alone, and many more seeds.
"""

import asyncio
import random
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

import msgspec

from tests.sim.queue.clients import (
    ContactOwner,
    LinkReader,
    NotifierClient,
    OlderAddress,
    Recipient,
    Sender,
    SmpClient,
    older_queue,
)
from tests.sim.queue.edges import EdgeNode
from tests.sim.queue.servers import LINK_PORT, LifeTasks, StorageNode
from tests.sim.sockets import Luck, SimNetLoop, SimNetwork
from waystation.base.errors import UnavailableError
from waystation.net.loop import Port
from waystation.queue.cluster.controller import Terms
from waystation.queue.cluster.controller_driver import ControllerDriver
from waystation.queue.cluster.slot_map import Move, Node, NodeId, SlotMap
from waystation.queue.edge.upstreams import PING_S, SILENCE_S
from waystation.queue.errors import QueueStoreUnavailableError
from waystation.queue.identity import ensure_identity
from waystation.queue.model import SLOTS, Slot, slot_letters
from waystation.storage.memory.cluster_store import MemoryClusterStore
from waystation.testing.loop import SimClock, SimLoop, run_sim

T = TypeVar("T")
TROUBLED_S = 20.0
CALM_S = 30.0
SENDING_S = 8.0  # of the calm
NOTICED_S = SILENCE_S + PING_S + 1.0  # a machine that vanished just before the calm, by edges


class WorldError(AssertionError):
    """A checker's complaint, with the seed."""


class _Map:
    """The store of the map as one process reaches it: answers take time, or get lost."""

    def __init__(self, world: "EdgeWorld", name: str) -> None:
        self._world = world
        self._name = name

    async def _reach(self, call: Callable[[], Awaitable[T]]) -> T:
        world = self._world
        await asyncio.sleep(world.chance.uniform(0.0005, 0.01))
        if world.clock.mono() < world.hidden.get(self._name, 0.0):
            raise QueueStoreUnavailableError("the store of the map is not reached")
        answer = await call()
        await asyncio.sleep(world.chance.uniform(0.0005, 0.01))
        if not world.calm and world.chance.random() < 0.02:
            raise QueueStoreUnavailableError("the answer was lost")
        return answer

    async def read(self) -> SlotMap:
        return await self._reach(self._world.maps.read)

    async def epoch(self) -> int:
        return await self._reach(self._world.maps.epoch)

    async def commit(self, slot_map: SlotMap) -> bool:
        return await self._reach(lambda: self._world.commit(slot_map))

    async def renew(self, node_id: NodeId) -> None:
        await self._reach(lambda: self._world.maps.renew(node_id))

    async def ages(self) -> Mapping[NodeId, float]:
        return await self._reach(self._world.maps.ages)

    async def lead(self, holder: str, ttl_s: float) -> bool:
        return await self._reach(lambda: self._world.maps.lead(holder, ttl_s))

    async def resign(self, holder: str) -> None:
        await self._reach(lambda: self._world.maps.resign(holder))

    async def close(self) -> None:
        """Nothing is open."""


class _NearLuck(Luck):
    """Of machines that stand beside each other, as those of a cluster do."""

    def delay_s(self) -> float:
        slow = self.hits(self.slow_share)
        return self.rng.uniform(0.05, 0.6) if slow else self.rng.uniform(0.0005, 0.01)


class _KeepingLoop(SimLoop):
    def __init__(self, clock: SimClock, *, until_s: float) -> None:
        super().__init__(clock, until_s=until_s)
        self._kept: set[asyncio.Task[Any]] = set()

    def create_task(self, coro: Any, **how: Any) -> "asyncio.Task[Any]":
        """Kept until it ends: what a dead process waits for has no owner left."""
        task = super().create_task(coro, **how)
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)
        return task


class _Lines:
    """What processes log becomes a part of the world's history."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def info(self, event: str, /, **fields: object) -> None:
        self._say(f"{event} {fields}")

    warning = info


class EdgeWorld:
    older_queues = 0  # in each slot; with any, all slots were one server's before the cluster
    id_mode: Literal["hybrid", "refs"]
    upstream_mode: Literal["shared", "dedicated"]

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = chance = random.Random(seed)
        self.clock = SimClock()
        self.id_mode = chance.choice(("hybrid", "refs"))
        self.upstream_mode = chance.choice(("shared", "dedicated"))
        self.map_interval_s = chance.choice((0.5, 2.0))
        self.replicas = chance.choice((0, 1))
        self.calm = self.is_over = False
        self._calm_at = 0.0
        self.may_send = True
        self.history: list[str] = []
        self.complaint: str | None = None
        self.hidden: dict[str, float] = {}  # who does not reach the store of the map, until when
        self.moves = self.promotions = 0
        self.slots = [Slot(one) for one in chance.sample(range(4096), chance.randint(4, 8))]
        self.maps = MemoryClusterStore(self.clock)
        self.lines = _Lines(self.say)
        self.recipients: list[Recipient] = []
        self.visitors: list[LinkReader] = []
        self.network: SimNetwork
        self.people: Port  # of all clients
        self.servers: dict[NodeId, StorageNode] = {}
        self.edges: list[EdgeNode] = []
        self._people: LifeTasks

    # Life

    def live(self) -> None:
        with tempfile.TemporaryDirectory(prefix="edge-world-") as folder:
            run_sim(self._live(Path(folder)), self.clock, loop_class=_KeepingLoop)

    async def _live(self, folder: Path) -> None:
        self.network = SimNetwork(_NearLuck(rng=self.chance, slow_share=0.02, piece_share=0.05))
        self.people = Port(SimNetLoop(self.network.host("people"), clock=self.clock))
        self._identity = ensure_identity(folder / "edges", host="edges", algorithm="ed25519")
        count = self.chance.choice((2, 3, 4))
        try:
            for node_id in (NodeId(one) for one in range(1, count + 1)):
                self.servers[node_id] = StorageNode(self, node_id, folder)
            await self._begin()
            await self._wait(TROUBLED_S)
            self._calm_down()
            await self._wait(SENDING_S)
            self.may_send = False
            await self._wait(CALM_S - SENDING_S)
            self._check_end(await self.maps.read())
        finally:
            self.is_over = True
            self._people.kill()
            for node in self._nodes:
                node.kill()
            await asyncio.sleep(0.1)
            for server in self.servers.values():
                server.close()

    async def _begin(self) -> None:
        chance = self.chance
        slot_map = SlotMap()
        for node_id in self.servers:
            slot_map = slot_map.with_node(
                Node(node_id=node_id, host=f"node-{node_id}", port=LINK_PORT, fingerprint=bytes(32))
            )
        first, *_ = self.servers
        for slot in self.slots:
            owner = first if self.older_queues else chance.choice([*self.servers])
            slot_map = slot_map.claimed([slot], owner)
        if self.older_queues:
            older = msgspec.structs.replace(slot_map.nodes[first], references_left=SLOTS)
            slot_map = slot_map.with_node(older)
            self._fill(self.servers[first])
        slot_map = slot_map.as_one_change(SlotMap())
        await self.maps.commit(slot_map)
        for server in self.servers.values():
            server.start()
        self.edges = [
            EdgeNode(self, f"edge-{number}", self._identity)
            for number in range(chance.choice((1, 2)))
        ]
        for edge in self.edges:
            edge.start()
        self._people = people = LifeTasks(self.task_failed)
        terms = Terms(replicas=self.replicas, follower_patience_s=20.0)
        controller_driver = ControllerDriver(
            self.map_for("controller"), terms, holder="c", clock=self.clock, lines=self.lines
        )
        people.spawn("controller", controller_driver.run())
        for recipient in self.recipients:  # of older queues
            self._has_queue(recipient)
            self._let_live(recipient)
        for visitor in self.visitors:
            self._let_live(visitor)
        for number in range(chance.randint(2, 4)):
            recipient = Recipient(self, f"recipient {number}", self._has_queue)
            self.recipients.append(recipient)
            self._let_live(recipient)
        for number in range(chance.randint(1, 2)):
            contact = ContactOwner(self, f"contact {number}")
            visitor = LinkReader(self, f"visitor {number}", contact)
            self.visitors.append(visitor)
            self._let_live(contact)
            self._let_live(visitor)
        people.spawn("misfortune", self._misfortunes())

    def _fill(self, server: StorageNode) -> None:
        """With queues that are older than the cluster, some of which somebody uses."""
        for slot in self.slots:
            owner = Recipient(self, f"older recipient of slot {slot}", self._has_queue)
            self.recipients.append(owner)
            address = older_queue(self, slot, None)
            visitor = LinkReader(self, f"visitor of slot {slot}", OlderAddress(address))
            self.visitors.append(visitor)
            unused = [older_queue(self, slot, None) for _ in range(self.older_queues)]
            server.hold([older_queue(self, slot, owner), address, *unused])

    def _has_queue(self, recipient: Recipient) -> None:
        assert recipient.queue is not None
        number = self.recipients.index(recipient)
        self._let_live(Sender(self, f"sender {number}", recipient.queue))
        self._let_live(NotifierClient(self, f"notified {number}", recipient))

    def _let_live(self, person: SmpClient) -> None:
        self._people.spawn(person.name, person.live())

    async def _wait(self, for_s: float) -> None:
        until = self.clock.mono() + for_s
        while self.clock.mono() < until:
            await asyncio.sleep(0.25)
            if self.complaint is not None:
                raise WorldError(self.complaint)

    @property
    def may_wait(self) -> bool:
        """Whether a client may still be told to try again later."""
        return not self.calm or self.clock.mono() < self._calm_at + NOTICED_S

    def _calm_down(self) -> None:
        self._calm_at = self.clock.mono()
        self.calm = self.network.luck.calm = True
        self.hidden.clear()
        for node in self._nodes:
            if not node.is_up:
                node.start()
        self.say("calm")

    # What processes ask for

    def say(self, line: str) -> None:
        self.history.append(f"{self.clock.mono():9.3f} {line}")

    def complain(self, what: str) -> NoReturn:
        if self.complaint is None:
            tail = "\n".join(self.history[-40:])
            ways = f"{self.id_mode}, {self.upstream_mode}, {len(self.edges)} edges"
            self.complaint = f"seed {self.seed} ({ways}): {what}\n{tail}"
        raise WorldError(self.complaint)

    def task_failed(self, name: str, error: BaseException) -> None:
        if self.complaint is None and not self.is_over:
            self.complaint = f"seed {self.seed}: {name} failed: {error!r}"
            raise error

    def map_for(self, name: str) -> _Map:
        return _Map(self, name)

    async def patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await call()
            except UnavailableError:
                await asyncio.sleep(0.2)

    def disk_s(self) -> float:
        slow = not self.calm and self.chance.random() < 0.05
        return self.chance.uniform(0.1, 0.5) if slow else self.chance.uniform(0.001, 0.01)

    def some_edge(self) -> EdgeNode | None:
        up = [edge for edge in self.edges if edge.is_up]
        return self.chance.choice(up) if up else None

    async def commit(self, proposal: SlotMap) -> bool:
        before = await self.maps.read()
        counted = await self.maps.commit(proposal)
        for slot in self.slots:
            was, now = before.slots[slot], proposal.slots[slot]
            if counted and was != now:
                self.say(f"epoch {proposal.epoch}: slot {slot} {was} → {now}")
                if was.owner != now.owner:
                    self.moves += was.state == "F"
                    self.promotions += was.state != "F"
        return counted

    # Misfortune

    async def _misfortunes(self) -> None:
        await asyncio.sleep(self.chance.uniform(1.0, 3.0))
        while not self.calm:
            await self._misfortune()
            await asyncio.sleep(self.chance.expovariate(1.2))

    async def _misfortune(self) -> None:
        chance = self.chance
        kinds = ("kill", "edge", "hide", "cut", "move", "drain")
        match chance.choices(kinds, (3, 1, 1, 5, 10, 1))[0]:
            case "kill":
                up = [one for one in self.servers.values() if one.is_up]
                if len(up) > 1:
                    victim, vanished = chance.choice(up), chance.random() < 0.2
                    self.say(f"{victim.name} is killed{' and vanishes' if vanished else ''}")
                    victim.kill(vanished=vanished)
                    self._revive(victim, chance.choice((0.2, 2.0, 12.0)))
            case "edge":
                edge = self.some_edge()
                if edge is not None:
                    self.say(f"{edge.name} is killed")
                    edge.kill()
                    self._revive(edge, chance.choice((0.1, 1.0)))
            case "hide":
                name = chance.choice([one.name for one in self._nodes])
                self.hidden[name] = self.clock.mono() + chance.choice((0.5, 3.0, 12.0))
                self.say(f"{name} does not reach the store of the map")
            case "cut":
                self._cut_one()
            case "move":
                await self._plan([chance.choice(self.slots)])
            case _:
                await self._plan(self.slots)

    @property
    def _nodes(self) -> list[StorageNode | EdgeNode]:
        return [*self.servers.values(), *self.edges]

    def _cut_one(self) -> None:
        """Some connection of a node breaks."""
        hosts = [node.host for node in self._nodes if node.is_up and node.host is not None]
        if sockets := [sock for host in hosts for sock in host.sockets()]:
            self.chance.choice(sockets).cut()

    def _revive(self, node: StorageNode | EdgeNode, after_s: float) -> None:
        def revive() -> None:
            if not node.is_up and not self.is_over and not self.calm:
                self.say(f"{node.name} is back")
                node.start()

        asyncio.get_running_loop().call_later(after_s, revive)

    async def _plan(self, slots: list[Slot]) -> None:
        before = await self.maps.read()
        moves = [Move(slot, self.chance.choice([*self.servers])) for slot in slots]
        await self.maps.commit(before.planning(moves))

    # The end

    def _check_end(self, slot_map: SlotMap) -> None:
        for slot in self.slots:
            serving = [one.name for one in self.servers.values() if one.serves(slot)]
            if len(serving) != 1:
                one = slot_map.slots[slot]
                self.complain(f"slot {slot_letters(slot)} is served by {serving}: {one}")
        for recipient in self.recipients:
            queue = recipient.queue
            if queue is None:
                self.complain(f"{recipient.name} never got a queue")
            missing = [body for body in queue.accepted if body not in queue.delivered]
            if missing:
                self.complain(f"{recipient.name}: accepted and not delivered: {missing}")
            order = [body for body in queue.delivered if body in queue.accepted]
            if order != sorted(order):
                self.complain(f"{recipient.name}: out of order: {order}")
