"""Storage servers on real stores: slots move and followers take over under load.

Real LMDB stores, the real replication core and its driver; the links between the servers are
queues in memory that can be cut.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from waystation.base.clock import SystemClock
from waystation.base.errors import UnavailableError
from waystation.base.tasks import Tasks
from waystation.queue.cluster.controller import Controller, Terms
from waystation.queue.cluster.effects import SendAck, SendFrame
from waystation.queue.cluster.replication_driver import ReplicationDriver
from waystation.queue.cluster.slot_map import Move, Node, NodeId, SlotMap
from waystation.queue.model import Queue
from waystation.storage.embedded.queue import EmbeddedQueueStore
from waystation.storage.memory.cluster_store import MemoryClusterStore
from waystation.storage.settings import Store
from waystation.testing.conformance.queue_samples import drained, new_message, new_queue, send

SETTINGS = Store(map_bytes=64 << 20, sync=False)
SLOTS = (5, 6)
PATIENCE_S = 30.0
A, B, C = NodeId(1), NodeId(2), NodeId(3)


class Server:
    """One storage server."""

    def __init__(self, cluster: "Cluster", node_id: NodeId, queues: EmbeddedQueueStore) -> None:
        self.node_id = node_id
        self.queues = queues
        self.failures: list[BaseException] = []
        self._cluster = cluster
        self._clock = SystemClock()
        self._start()

    def _start(self) -> None:
        self.alive = True
        self.tasks = Tasks(lambda _name, error: self.failures.append(error))
        self.replication_driver = ReplicationDriver(
            self.node_id,
            store=self._cluster.store,
            rows=self.queues,
            links=self,
            clock=self._clock,
            tasks=self.tasks,
        )

    def send(self, peer: NodeId, message: SendFrame | SendAck) -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(self._cluster.deliver, self, peer, message)

    async def die(self) -> None:
        """Its process is gone: nothing of it acts any more, its disk stays."""
        self.alive = False
        self.queues.tap(None)
        await self.tasks.close()
        for other in self._cluster.servers.values():
            if other.alive:
                other.replication_driver.link_lost(self.node_id)


class Cluster:
    def __init__(self) -> None:
        self.store = MemoryClusterStore(SystemClock())
        self.servers: dict[NodeId, Server] = {}

    def deliver(self, sender: Server, to: NodeId, message: SendFrame | SendAck) -> None:
        receiver = self.servers[to]
        if not (sender.alive and receiver.alive):
            return
        if isinstance(message, SendFrame):
            receiver.replication_driver.frame_arrived(
                sender.node_id, message.copy, message.slot, message.move, message.frame
            )
        else:
            receiver.replication_driver.ack_arrived(
                sender.node_id, message.copy, message.seq, message.broken
            )

    def server_of(self, slot: int) -> Server | None:
        serving = [
            one
            for one in self.servers.values()
            if one.alive and one.replication_driver.serves(slot)
        ]
        assert len(serving) <= 1, f"{len(serving)} servers serve slot {slot}"
        return serving[0] if serving else None

    async def append(self, queue: Queue, slot: int, body: bytes) -> None:
        """As a client does it: until somebody says OK."""
        while True:
            server = self.server_of(slot)
            if server is None or not server.replication_driver.begin(slot):
                await asyncio.sleep(0.01)
                continue
            try:
                async with asyncio.timeout(5):
                    await send(server.queues, queue, new_message(body), quota=100_000)
                return
            except (UnavailableError, TimeoutError):
                await asyncio.sleep(0.01)
            finally:
                if server.alive:
                    server.replication_driver.end(slot)

    async def change(self, step: Callable[[SlotMap], SlotMap]) -> None:
        while True:
            before = await self.store.read()
            if await self.store.commit(step(before).as_one_change(before)):
                return

    async def control(self, terms: Terms) -> None:
        core, clock = Controller(terms), SystemClock()
        while True:
            ages = await self.store.ages()
            proposal = core.decide(await self.store.read(), ages, clock.mono())
            if proposal is not None:
                await self.store.commit(proposal.slot_map)
            await asyncio.sleep(0.05)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster()
    slot_map = SlotMap()
    for node_id in (A, B, C):
        slot_map = slot_map.with_node(
            Node(node_id=node_id, host=f"n{node_id}", port=1, fingerprint=bytes(32))
        )
    slot_map = slot_map.claimed(SLOTS, A).as_one_change(SlotMap())
    assert await made.store.commit(slot_map)
    for node_id in (A, B, C):
        queues = await EmbeddedQueueStore.open(tmp_path / str(node_id), settings=SETTINGS)
        made.servers[node_id] = Server(made, node_id, queues)
    for server in made.servers.values():
        await server.replication_driver.start()
    yield made
    for server in made.servers.values():
        if server.alive:
            await server.die()
        await server.queues.close()
        assert server.failures == []


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 what is waited for has no event
            await asyncio.sleep(0.01)


async def test_a_slot_moves_round_while_messages_come_in(cluster: Cluster) -> None:
    """Q-123"""
    queues = {slot: new_queue(slot=slot) for slot in SLOTS}
    for queue in queues.values():
        assert await cluster.servers[A].queues.create(queue)
    control = asyncio.create_task(cluster.control(Terms()))
    sent: dict[int, int] = dict.fromkeys(SLOTS, 0)
    enough = asyncio.Event()

    async def load(slot: int) -> None:
        while not enough.is_set():
            await cluster.append(queues[slot], slot, b"%d" % sent[slot])
            sent[slot] += 1
            await asyncio.sleep(0.002)

    loads = [asyncio.create_task(load(slot)) for slot in SLOTS]
    for target in (B, C, A, B):
        await cluster.change(
            lambda now, to=target: now.planning([Move(slot, to) for slot in SLOTS])
        )
        await until(
            lambda to=target: all(
                cluster.servers[to].replication_driver.serves(slot) for slot in SLOTS
            )
        )
    enough.set()
    await asyncio.wait_for(asyncio.gather(*loads), PATIENCE_S)
    control.cancel()

    for slot, queue in queues.items():
        assert cluster.server_of(slot) is cluster.servers[B]
        held = cluster.servers[B].queues
        bodies = [int(one.body or b"-1") for one in await drained(held, queue)]
        # A client that was not answered sends again: doubled, never lost, never out of order.
        assert sorted(set(bodies)) == list(range(sent[slot]))
        assert bodies == sorted(bodies)
        assert sent[slot] > 20


async def test_a_follower_in_step_has_every_answer_when_its_owner_dies(cluster: Cluster) -> None:
    """Q-127"""
    [slot, other] = SLOTS
    queue = new_queue(slot=slot)
    assert await cluster.servers[A].queues.create(queue)
    await cluster.change(lambda now: now.followed(slot, B))
    await until(lambda: cluster.servers[A].replication_driver.slot_map.slots[slot].in_step)
    answered = 0
    enough = asyncio.Event()

    async def load() -> None:
        nonlocal answered
        while not enough.is_set():
            await cluster.append(queue, slot, b"%d" % answered)
            answered += 1
            await asyncio.sleep(0.002)

    loading = asyncio.create_task(load())
    await until(lambda: answered > 50)
    await cluster.servers[A].die()
    await cluster.change(lambda now: now.promoted(slot))
    cluster.servers[B].replication_driver.saw_epoch((await cluster.store.read()).epoch)
    before = answered
    await until(lambda: answered > before + 20)
    enough.set()
    await asyncio.wait_for(loading, PATIENCE_S)

    assert cluster.server_of(slot) is cluster.servers[B]
    assert cluster.server_of(other) is None
    bodies = [int(one.body or b"-1") for one in await drained(cluster.servers[B].queues, queue)]
    assert sorted(set(bodies)) == list(range(answered))
    assert bodies == sorted(bodies)
