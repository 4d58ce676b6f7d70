"""A cluster as operators run it: servers are added and removed, two edges have one address.

Every step is a command of the product: `waystation cluster init|join|add|move|drain`, `waystation
serve queue|edge`. Only the first shares of the slots are written into the map at once: nothing is
in them yet, and three thousand moves take minutes.
"""

import asyncio
import contextlib
import json
import subprocess
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import msgspec

from tests.e2e.platform import BIN, PORTS, Serve, clean_environment
from tests.ports import free_ports
from waystation.client.queue.address import ServerAddress
from waystation.queue.cluster.cluster_store import ClusterStore
from waystation.queue.cluster.slot_map import NodeId, SlotMap
from waystation.queue.model import slot_letters
from waystation.storage.open import open_cluster_store
from waystation.storage.settings import Store

COMMAND_LIMIT_S = 90
MEMBERS_MAX = 8
EDGE_HOSTS = ("127.0.0.1", "127.0.0.2")
EDGE_PORT, LINK_PORT = 6, 7  # after the base


class Fleet:
    def __init__(self, root: Path, **settings: Any) -> None:
        self._root = root
        self._store = f"embedded://{root / 'map'}"
        self._settings = settings
        self._token = root / "token"
        self._lookers = 0  # at the map
        self._opened: asyncio.Task[ClusterStore]
        self._closing: asyncio.Task[None] | None = None
        self._stack = contextlib.ExitStack()
        self._bases = free_ports(PORTS * MEMBERS_MAX)  # together, so that no two overlap
        self._edge_base = self._base(0)
        self.servers: dict[int, Serve] = {}
        self.edges: list[Serve] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _base(self, number: int) -> int:
        assert number < MEMBERS_MAX
        return self._bases + PORTS * number

    # Members

    def make(self, servers: int) -> None:
        """The cluster and its first members; nothing runs yet."""
        said = self.run("init", "--store", self._store, "--link", self._enlist(1), node=1)
        self._token.write_text(said.split()[-1])
        edges = self._root / "edges.token"
        self.run("token", "--edge", "--out", str(edges), node=1)
        for _ in range(servers - 1):
            self.join()
        for number, host in enumerate(EDGE_HOSTS):
            folder = self._root / f"edge-{number}"
            self.run("join", "--token-file", str(edges), "--edge", data_dir=folder)
            edge = Serve(
                folder,
                roles=("edge",),
                port_base=self._edge_base,
                host=host,
                ops__host=host,
                edge__drain_s=0.1,
                queue__identity_algorithm="ed25519",
                **self._settings,
            )
            self._stack.callback(edge.close)
            self.edges.append(edge)

    def join(self) -> int:
        """One more server, which has no slots yet."""
        number = len(self.servers) + 1
        link = ("--link", self._enlist(number))
        self.run("join", "--token-file", str(self._token), *link, node=number)
        return number

    def _enlist(self, number: int) -> str:
        base = self._base(number)
        server = Serve(
            self.folder(number),
            # Two controllers: whichever server is killed, one of them is left.
            roles=("queue", "controller") if number <= 2 else ("queue",),
            port_base=base,
            queue__drain_s=0.1,
            queue__identity_algorithm="ed25519",
            **self._settings,
        )
        self._stack.callback(server.close)
        self.servers[number] = server
        return f"127.0.0.1:{base + LINK_PORT}"

    def folder(self, node: int) -> Path:
        return self._root / f"node-{node}"

    def start(self) -> None:
        with ThreadPoolExecutor() as pool:  # side by side, as on machines of their own
            list(pool.map(Serve.start, self.servers.values()))
        for edge in self.edges:
            edge.start()

    def address(self, first: int = 0) -> ServerAddress:
        """Of both edges; a client tries them in this order."""
        serving = json.loads((self.edges[0].data_dir / "run" / "serve.json").read_text())
        address = ServerAddress.parse(serving["queue_address"])
        hosts = EDGE_HOSTS[first:] + EDGE_HOSTS[:first]
        return msgspec.structs.replace(address, hosts=hosts)

    # The map

    def run(self, command: str, *words: str, node: int = 1, data_dir: Path | None = None) -> str:
        """`waystation cluster …` as a member."""
        where = ("--data-dir", str(data_dir or self.folder(node)))
        done = subprocess.run(
            [BIN / "waystation", "cluster", command, *where, *words],
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def move(self, moves: Mapping[int, int], slot_map: SlotMap) -> None:
        """Slots to servers, as a plan in a file: what was planned and not begun goes on."""
        wanted = {one.slot: int(one.target) for one in slot_map.planned} | dict(moves)
        plan = {
            "form": "waystation-plan/1",
            "moves": [
                {"slot": slot, "source": int(slot_map.slots[slot].owner), "target": target}
                for slot, target in wanted.items()
                if slot_map.slots[slot].owner != target
            ],
        }
        path = self._root / "plan.json"
        path.write_bytes(msgspec.json.encode(plan))
        self.run("move", "--plan", str(path))

    @contextlib.asynccontextmanager
    async def map(self) -> AsyncGenerator[ClusterStore]:
        """One for all who look at the same time: a process can open it once."""
        if not self._lookers:
            self._opened = asyncio.create_task(self._open())
        self._lookers += 1
        try:
            yield await asyncio.shield(self._opened)
        finally:
            self._lookers -= 1
            if not self._lookers:
                self._closing = asyncio.create_task(self._close(self._opened))
                await asyncio.shield(self._closing)

    async def _open(self) -> ClusterStore:
        if self._closing is not None:
            await self._closing
        return await open_cluster_store(self._store, data_dir=self._root, settings=Store())

    async def _close(self, opened: "asyncio.Task[ClusterStore]") -> None:
        await (await opened).close()
        self._closing = None

    async def share(self, owner: Callable[[int], int]) -> None:
        """Who has which slot, before anything runs."""
        async with self.map() as store:
            before = await store.read()
            slots = tuple(
                msgspec.structs.replace(one, owner=NodeId(owner(slot)))
                for slot, one in enumerate(before.slots)
            )
            after = msgspec.structs.replace(before, slots=slots).as_one_change(before)
            assert await store.commit(after)

    async def until(self, reached: Callable[[SlotMap], bool], within_s: float) -> SlotMap:
        async with self.map() as store:
            try:
                async with asyncio.timeout(within_s):
                    while not reached(slot_map := await store.read()):  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                    return slot_map
            except TimeoutError:
                slot_map = await store.read()
                raise AssertionError(f"not within {within_s} s: {described(slot_map)}") from None


def described(slot_map: SlotMap) -> str:
    owned = Counter(one.owner for _, one in slot_map.owned)
    in_step = sum(one.in_step for _, one in slot_map.owned)
    moving = [f"{slot_letters(slot)} {one}" for slot, one in slot_map.moving()][:5]
    statuses = {node.node_id: node.status for node in slot_map.nodes.values()}
    return (
        f"epoch {slot_map.epoch}, owners {dict(owned)}, {in_step} in step, {statuses},"
        f" {len(slot_map.planned)} planned, moving {moving}"
    )


def quiet(slot_map: SlotMap) -> bool:
    """Nothing moves and nothing is planned."""
    return not slot_map.planned and not any(slot_map.moving())
