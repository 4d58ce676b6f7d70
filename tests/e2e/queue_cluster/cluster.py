"""A cluster of queue servers on one machine: real processes behind one address.

Everything is done as a person would: `waystation cluster init`, `cluster join`, `serve queue`,
`serve edge`, `cluster add`.
"""

import asyncio
import contextlib
import json
import subprocess
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from tests.e2e.platform import BIN, PORTS, Serve, clean_environment
from tests.ports import free_ports
from waystation.client.queue.address import ServerAddress
from waystation.queue.cluster.cluster_store import ClusterStore
from waystation.queue.cluster.slot_map import NodeId
from waystation.queue.model import slot_of
from waystation.storage.open import open_cluster_store
from waystation.storage.settings import Store

COMMAND_LIMIT_S = 60
MOVE_LIMIT_S = 60


class Cluster:
    def __init__(self, root: Path, servers: int, **settings: Any) -> None:
        """`settings` are those of the last server."""
        self._root = root
        self._store = f"embedded://{root / 'map'}"
        self._bases = [free_ports(PORTS) for _ in range(servers)]
        self.servers = [
            Serve(
                self.folder(number),
                roles=("queue", "controller") if number == 1 else ("queue",),
                port_base=base,
                queue__drain_s=0.1,
                queue__identity_algorithm="ed25519",
                **(settings if number == servers else {}),
            )
            for number, base in enumerate(self._bases, 1)
        ]
        self.edge = Serve(self.folder(0), roles=("edge",), queue__drain_s=0.1)

    def folder(self, node: int) -> Path:
        return self._root / (f"node-{node}" if node else "edge")

    def make(self) -> None:
        """Members, and slots for each; before anything runs."""
        said = self.run("init", "--store", self._store, "--link", self._link(1), node=1)
        token = self._root / "token"
        token.write_text(said.split()[-1])
        token.chmod(0o600)
        for node in range(2, len(self.servers) + 1):
            self.run("join", "--token-file", str(token), "--link", self._link(node), node=node)
        self.run("join", "--token-file", str(token), "--edge", node=0)
        asyncio.run(self._spread())

    async def _spread(self) -> None:
        """Slots in turn to each server. Nothing is in them yet, so nothing has to move."""
        async with self.map() as store:
            before = await store.read()
            count = len(self.servers)
            slots = tuple(
                msgspec.structs.replace(one, owner=NodeId(1 + slot % count))
                for slot, one in enumerate(before.slots)
            )
            after = msgspec.structs.replace(before, slots=slots).as_one_change(before)
            assert await store.commit(after)

    @contextlib.asynccontextmanager
    async def map(self) -> AsyncGenerator[ClusterStore]:
        store = await open_cluster_store(self._store, data_dir=self._root, settings=Store())
        try:
            yield store
        finally:
            await store.close()

    async def owner_of(self, recipient_id: bytes) -> int:
        async with self.map() as store:
            return (await store.read()).slots[slot_of(recipient_id)].owner

    async def moved(self, slot: int, node: int) -> None:
        """Until the map says that this server has the slot, and nothing is under way."""
        async with asyncio.timeout(MOVE_LIMIT_S), self.map() as store:
            while True:
                one = (await store.read()).slots[slot]
                if (one.owner, one.state) == (node, "S"):
                    return
                await asyncio.sleep(0.05)

    def _link(self, node: int) -> str:
        return f"127.0.0.1:{self._bases[node - 1] + 7}"

    def run(self, *words: str, node: int = 1) -> str:
        """`waystation cluster …` as this member."""
        command, *rest = words
        member = ("--data-dir", str(self.folder(node)))
        done = subprocess.run(
            [BIN / "waystation", "cluster", command, *member, *rest],
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @property
    def address(self) -> ServerAddress:
        serving = json.loads((self.folder(0) / "run" / "serve.json").read_text())
        return ServerAddress.parse(serving["queue_address"])


@contextlib.contextmanager
def cluster(root: Path, servers: int = 3, **settings: Any) -> Generator[Cluster]:
    made = Cluster(root, servers, **settings)
    made.make()
    with contextlib.ExitStack() as stack:
        members = [*made.servers, made.edge]
        for member in members:
            stack.callback(member.close)
        with ThreadPoolExecutor() as pool:  # side by side, as on machines of their own
            list(pool.map(Serve.start, members))
        yield made
