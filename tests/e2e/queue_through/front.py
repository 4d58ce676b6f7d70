"""A cluster with the interface of one server: storage servers, and edges in front of them.

Every process is a worker without its supervisor, and the map is made by hand, so that a cluster
stands in a second; `tests/e2e/queue_cluster` does it with the commands that people use.
"""

import asyncio
import shutil
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple, Self

import msgspec

from tests.e2e.queue.process import LoneWorker, QueueServer
from tests.ports import free_ports
from waystation.queue.cluster.cluster_store import ClusterStore
from waystation.queue.cluster.membership import enrol, new_invitation
from waystation.queue.cluster.slot_map import NOBODY, Node, NodeId, SlotMap
from waystation.queue.identity import Identity, ensure_identity
from waystation.storage.open import open_cluster_store
from waystation.storage.settings import Store

MAP = Store(map_bytes=64 << 20)
MOVE_LIMIT_S = 60


class Way(NamedTuple):
    """How queues are found, and how links are shared."""

    id_mode: Literal["hybrid", "refs"]
    upstream_mode: Literal["shared", "dedicated"]

    def __str__(self) -> str:
        return f"{self.id_mode}-{self.upstream_mode}"


class Edge(LoneWorker):
    """`queue` are settings of `Queue`, `edge` those of `Edge`."""

    role = "edge"

    def __init__(self, data_dir: Path, queue: Mapping[str, object], **edge: object) -> None:
        self.port = base = free_ports(2)
        self.ops_port = base + 1
        self._queue = queue
        self._edge = {"port": base, "ops_port": base + 1, "drain_s": 0.1, **edge}
        super().__init__(data_dir)

    def sections(self) -> Mapping[str, Mapping[str, object]]:
        return {"queue": self._queue, "edge": self._edge, "store": {"map_bytes": 64 << 20}}


class Front:
    """What a test of one server needs to know of it is the first edge's."""

    def __init__(
        self, root: Path, way: Way, *, servers: int = 2, edges: int = 1, **settings: object
    ) -> None:
        self.root = root
        self.store_url = f"embedded://{root / 'map'}"
        invitation = new_invitation(self.store_url)
        queue = {"id_mode": way.id_mode, "proxy_private_hosts": True, **settings}
        self.servers = [QueueServer(root / f"node-{n + 1}", **queue) for n in range(servers)]
        names = [f"edge-{n + 1}" for n in range(edges)]
        self.edges = [
            Edge(
                root / name,
                {"identity_algorithm": "ed25519", **queue},
                upstream_mode=way.upstream_mode,
            )
            for name in names
        ]
        slot_map = SlotMap()
        for number, server in enumerate(self.servers, 1):
            enrol(server.data_dir / "keys", invitation, node_id=NodeId(number))
            node = Node(
                node_id=NodeId(number),
                host="127.0.0.1",
                port=server.link_port,
                fingerprint=bytes(32),
            )
            slot_map = slot_map.with_node(node)
        for edge in self.edges:
            enrol(edge.data_dir / "keys", invitation, node_id=NOBODY)
        slots = tuple(
            msgspec.structs.replace(one, owner=NodeId(1 + slot % servers))
            for slot, one in enumerate(slot_map.slots)
        )
        made = msgspec.structs.replace(slot_map, slots=slots).as_one_change(SlotMap())
        asyncio.run(self._commit(made))
        # One identity for all of them, as one address asks for.
        first = self.edges[0].data_dir / "keys" / "queue"
        algorithm = str(queue.get("identity_algorithm", "ed25519"))
        ensure_identity(first, host="", algorithm=algorithm)  # pyright: ignore[reportArgumentType]
        for edge in self.edges[1:]:
            shutil.copytree(first, edge.data_dir / "keys" / "queue")

    async def _commit(self, slot_map: SlotMap) -> None:
        async with self.map() as store:
            assert await store.commit(slot_map)

    @asynccontextmanager
    async def map(self) -> AsyncGenerator[ClusterStore]:
        store = await open_cluster_store(self.store_url, data_dir=self.root, settings=MAP)
        try:
            yield store
        finally:
            await store.close()

    async def move(self, slot: int) -> None:
        """To the next server, until the map says that it is there."""
        async with asyncio.timeout(MOVE_LIMIT_S), self.map() as store:
            before = await store.read()
            target = NodeId(before.slots[slot].owner % len(self.servers) + 1)
            while not await store.commit(before.preparing(slot, target)):
                before = await store.read()
            while (await store.read()).slots[slot].owner != target:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    def owner_of(self, slot: int) -> int:
        async def look() -> int:
            async with self.map() as store:
                return (await store.read()).slots[slot].owner

        return asyncio.run(look())

    @property
    def port(self) -> int:
        return self.edges[0].port

    @property
    def identity(self) -> Identity:
        return self.edges[0].identity

    @property
    def data_dir(self) -> Path:
        return self.edges[0].data_dir

    def start(self) -> None:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda one: one.start(), self.servers))
            list(pool.map(lambda one: one.start(), self.edges))

    def stop(self) -> None:
        for process in (*self.edges, *self.servers):
            process.stop()

    def close(self) -> None:
        for process in (*self.edges, *self.servers):
            process.close()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()
