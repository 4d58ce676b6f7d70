"""Storage servers of the simulated cluster: production code on a disk that survives a kill.

Replaced is what would touch the machine: the writer thread (group commit is a timer here), the
threads that verify signatures, and the source of ids, which all lie in slots of this world.
"""

import asyncio
import datetime
import random
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from tests.sim.sockets import SimHost, SimNetLoop, SimTls
from waystation.app.wiring.queue_cluster_links import QueueClusterLinks
from waystation.app.wiring.queue_cores import QueueCores
from waystation.queue.cluster import membership
from waystation.queue.cluster.link_connection import VANISHED_S, Links
from waystation.queue.cluster.replication_driver import ReplicationDriver
from waystation.queue.cluster.slot_map import NodeId
from waystation.queue.model import ID_BYTES, MessageId, Queue, RecipientId, Slot, slot_of
from waystation.queue.server.checks import Checks, Proof, Proven, prove
from waystation.queue.server.ids import IdMaker
from waystation.queue.server.observer import NoObserver
from waystation.queue.settings import Queue as QueueSettings
from waystation.storage.embedded import queue_layout
from waystation.storage.embedded.environment import Environment
from waystation.storage.embedded.free_space import FreeSpace
from waystation.storage.embedded.queue import EmbeddedQueueStore
from waystation.storage.embedded.queue_changes import QueueChanges
from waystation.storage.embedded.writer import Writer
from waystation.storage.settings import Store
from waystation.testing.loop import NodeTasks

if TYPE_CHECKING:
    from tests.sim.queue.world import EdgeWorld

MAP_BYTES = 16 << 20
SWEEP_S = 3.0
LINK_PORT = 5225
LOST_AFTER_S = 20.0  # longer than a queue may take to be made


@cache
def member_tls(name: str) -> SimTls:
    """What a member of the cluster shows. Of the same length whenever it is made."""
    key = Ed25519PrivateKey.generate()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), 1, now, now)
    shown = builder.sign(key, None).public_bytes(Encoding.DER)
    return SimTls(protocol=membership.ALPN, chain=(shown,))


class LifeTasks(NodeTasks):
    """Tasks of a process. What a dead one still asks for never begins."""

    def __init__(self, on_failure: Callable[[str, BaseException], None]) -> None:
        super().__init__(on_failure)
        self.is_dead = False

    def spawn(self, name: str, coro: Any) -> Any:
        if not self.is_dead:
            return super().spawn(name, coro)
        coro.close()
        never: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        never.cancel()
        return never

    def kill(self) -> None:
        self.is_dead = True
        super().kill()


class DiskWriter(Writer):
    """Group commit by the loop's timers. What a killed one had not committed is lost, and of what
    it had, nobody need have heard."""

    def __init__(self, env: Environment, disk_s: Callable[[], float]) -> None:
        self._disk_s = disk_s
        self._waiting: list[Any] = []
        self._is_writing = False
        self.is_dead = False
        super().__init__(
            env,
            FreeSpace(env, disk_reserve_bytes=0),
            commit_batch_max=64,
            queue_max=10_000,
            loop=asyncio.get_running_loop(),
        )

    def _start(self) -> None:
        """No thread."""

    def _hand_over(self) -> None:
        self._waiting += self._turn
        self._turn = []
        if self._waiting and not self._is_writing and not self.is_dead:
            self._is_writing = True
            self._loop.call_later(self._disk_s(), self._commit)

    def _commit(self) -> None:
        if self.is_dead:
            return
        group, self._waiting = self._waiting, []
        outcomes = self._perform(group)
        self._loop.call_later(self._disk_s() / 4, self._committed, outcomes)

    def _committed(self, outcomes: list[Any]) -> None:
        if not self.is_dead:
            self._is_writing = False
            self._resolve(outcomes)
            self._hand_over()


class TimedChecks(Checks):
    """Proofs that take a moment, in no thread."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(threads=0, loop=asyncio.get_running_loop())
        self._chance = chance

    def ask(self, proofs: list[Proof]) -> "asyncio.Future[list[Proven]]":
        answered: asyncio.Future[list[Proven]] = self._loop.create_future()
        self._loop.call_later(self._chance.uniform(0.0001, 0.003), self._prove, proofs, answered)
        return answered

    def _prove(self, proofs: list[Proof], answered: "asyncio.Future[list[Proven]]") -> None:
        if not answered.done():
            answered.set_result([prove(one) for one in proofs])


class DrawnIds(IdMaker):
    """Ids from the world's chance, all in slots that somebody owns."""

    def __init__(self, chance: random.Random, slots: list[Slot], *, hybrid: bool) -> None:
        super().__init__(hybrid=hybrid)
        self._chance = chance
        self._slots = slots

    def recipient(self, slot: Slot) -> RecipientId:
        return RecipientId(id_in(slot, self._chance))

    def message(self) -> MessageId:
        return MessageId(self._chance.randbytes(ID_BYTES))

    def _beside(self, recipient_id: RecipientId) -> bytes:
        slot = slot_of(recipient_id) if self._hybrid else self._chance.choice(self._slots)
        return id_in(slot, self._chance)


def id_in(slot: Slot, chance: random.Random) -> bytes:
    drawn = chance.randbytes(ID_BYTES - 1)
    return bytes((slot >> 4, (slot & 15) << 4 | drawn[0] & 15)) + drawn[1:]


class StorageNode:
    """One storage server: its disk stays, everything else ends with a life."""

    def __init__(self, world: "EdgeWorld", node_id: NodeId, folder: Path) -> None:
        self.world = world
        self.node_id = node_id
        self.name = f"node-{node_id}"
        self._env = Environment.open(
            folder / self.name,
            form=queue_layout.FORMAT,
            tables=queue_layout.TABLES,
            settings=Store(map_bytes=MAP_BYTES, sync=False),
        )
        self.is_up = False
        self.replication_driver: ReplicationDriver | None = None
        self._tasks: LifeTasks | None = None
        self._writer: DiskWriter | None = None
        self.host: SimHost | None = None
        self._net: SimNetLoop | None = None

    def hold(self, queues: Iterable[Queue]) -> None:
        """Queues of the time before the cluster."""
        changes = QueueChanges(self._env)
        with self._env.lmdb.begin(write=True) as txn:
            for queue in queues:
                assert changes.create(queue, txn)

    def start(self) -> None:
        self.is_up = True
        tasks = self._tasks = LifeTasks(self.world.task_failed)
        tasks.spawn("boot", self._boot(tasks))

    def kill(self, *, vanished: bool = False) -> None:
        self.is_up = False
        self.replication_driver = None
        if self.host is not None and vanished:
            self.host.vanish(VANISHED_S)
        if self._net is not None:
            self._net.kill()
        if self._writer is not None:
            self._writer.is_dead = True
        if self._tasks is not None:
            self._tasks.kill()

    def close(self) -> None:
        self._env.close()

    def serves(self, slot: int) -> bool:
        return (
            self.is_up
            and self.replication_driver is not None
            and self.replication_driver.serves(slot)
        )

    async def _boot(self, tasks: LifeTasks) -> None:
        world, clock = self.world, self.world.clock
        settings = QueueSettings(
            id_mode=world.id_mode,
            queue_quota=100_000,
            refs_sweep_interval_s=SWEEP_S,
            refs_lost_after_s=LOST_AFTER_S,
        )
        self.host = host = world.network.host(self.name)
        self._net = net = SimNetLoop(host, clock=clock)
        links, tls = Links(net), member_tls(self.name)
        writer = self._writer = DiskWriter(self._env, world.disk_s)
        store = EmbeddedQueueStore(self._env, writer)
        cores = QueueCores(
            settings=settings,
            store=store,
            checks=TimedChecks(world.chance),
            ids=DrawnIds(world.chance, world.slots, hybrid=world.id_mode == "hybrid"),
            observer=NoObserver(),
            clock=clock,
        )
        end = QueueClusterLinks(
            self.node_id,
            cores,
            rows=store,
            maps=world.map_for(self.name),
            links=links,
            context=tls,
            handshake=cast(Any, None),  # clients come through edges only
            tasks=tasks,
            clock=clock,
            lines=world.lines,
            rng=world.chance,
        )
        await world.patiently(end.start)
        self.replication_driver = end.replication_driver
        links.listen(host.listening(LINK_PORT), end.server, tls)
