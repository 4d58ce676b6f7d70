"""A cluster of queue servers that is measured: an edge, storage servers, a controller.

Made with the commands that an operator uses; the first shares are written into the map at once.
"""

import asyncio
import contextlib
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from waystation.client.local_server import PORTS, LocalServer, free_port_base
from waystation.queue.cluster.slot_map import NodeId
from waystation.queue.model import (
    AuthKey,
    BoxKey,
    KeyKind,
    Message,
    MessageId,
    Queue,
    RecipientId,
    SenderId,
    day_of,
)
from waystation.storage.open import open_cluster_store, open_queue_store
from waystation.storage.settings import Store

from .process_tree import Usage, usage

COMMAND_LIMIT_S = 90
START_LIMIT_S = 120.0  # five processes at once on a busy machine
SETTLE_LIMIT_S = 300
LINK_PORT = 7  # after the base
_WAYSTATION = (sys.executable, "-m", "waystation.cli.main")
MESSAGE_EVERY = 10  # of the queues in a crowd every tenth has a message
QUIET = ("--log-level", "warning")


class ClusterTarget(msgspec.Struct, frozen=True, kw_only=True):
    address: str  # smp://…, of the edge
    store_url: str
    root: Path
    edge: int  # pids
    servers: tuple[int, ...]

    def look(self) -> Usage | None:
        return usage((self.edge, *self.servers))

    def look_edge(self) -> Usage:
        return usage((self.edge,))


class ClusterScale(msgspec.Struct, frozen=True, kw_only=True):
    """How much of everything."""

    seconds: float = 5.0
    pairs: int = 32
    moves: int = 20
    crowds: tuple[int, ...] = (10, 1_000, 10_000)  # queues in the slot that moves


CLUSTER_QUICK = ClusterScale(seconds=1.5, pairs=16, moves=8, crowds=(10, 1_000))
CLUSTER_SMOKE = ClusterScale(seconds=0.2, pairs=2, moves=2, crowds=(10,))


def command(*words: str, data_dir: Path) -> str:
    """`waystation cluster …`"""
    done = subprocess.run(
        [*_WAYSTATION, "cluster", words[0], "--data-dir", str(data_dir), *words[1:]],
        capture_output=True,
        text=True,
        timeout=COMMAND_LIMIT_S,
        check=True,
    )
    return done.stdout


@contextlib.contextmanager
def own_cluster(
    servers: int, *, followed: bool = False, crowds: Sequence[int] = ()
) -> Iterator[ClusterTarget]:
    """One edge and so many servers in a temporary directory; the controller runs beside the first
    server. `followed`: each slot has a follower that confirms every change. `crowds`: there are
    only so many slots, and so many queues lie in each."""
    env = {
        "WAYSTATION_CONTROLLER__REPLICAS": str(int(followed)),
        "WAYSTATION_QUEUE__IDENTITY_ALGORITHM": "ed25519",
    }
    with contextlib.ExitStack() as stack:
        where = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="waystation-bench-", ignore_cleanup_errors=True)
        )
        root = Path(where)
        store_url = f"embedded://{root / 'map'}"
        bases = _apart(servers + 1)
        nodes = [
            LocalServer(
                root / f"node-{number}",
                port_base=bases[number],
                roles=("queue", "controller") if number == 1 else ("queue",),
                options=QUIET,
                env=env,
            )
            for number in range(1, servers + 1)
        ]
        edge = LocalServer(
            root / "edge", port_base=bases[0], roles=("edge",), options=QUIET, env=env
        )
        _make(store_url, nodes, edge)
        asyncio.run(_share(store_url, root, servers, len(crowds)))
        if crowds:
            asyncio.run(_crowd(nodes[0].data_dir, crowds))
        for one in (*nodes, edge):
            stack.callback(one.close)
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda node: node.start(START_LIMIT_S), nodes))
        asyncio.run(_settled(store_url, root, followed=followed))
        edge.start(START_LIMIT_S)
        serving = msgspec.json.decode((edge.data_dir / "run" / "serve.json").read_bytes())
        yield ClusterTarget(
            address=serving["queue_address"],
            store_url=store_url,
            root=root,
            edge=edge.pid,
            servers=tuple(node.pid for node in nodes),
        )


def _apart(count: int) -> list[int]:
    """Port bases that do not reach into each other."""
    bases: list[int] = []
    while len(bases) < count:
        base = free_port_base()
        if all(abs(base - other) >= PORTS for other in bases):
            bases.append(base)
    return bases


def _make(store_url: str, nodes: Sequence[LocalServer], edge: LocalServer) -> None:
    links = [f"127.0.0.1:{node.port_base + LINK_PORT}" for node in nodes]
    first = nodes[0].data_dir
    command("init", "--store", store_url, "--link", links[0], data_dir=first)
    tokens = first / "token", first / "edge-token"
    command("token", "--out", str(tokens[0]), data_dir=first)
    command("token", "--edge", "--out", str(tokens[1]), data_dir=first)
    for node, link in zip(nodes[1:], links[1:], strict=True):
        command("join", "--token-file", str(tokens[0]), "--link", link, data_dir=node.data_dir)
    command("join", "--token-file", str(tokens[1]), "--edge", data_dir=edge.data_dir)


async def _crowd(data_dir: Path, crowds: Sequence[int]) -> None:
    """Into the store of a server that does not run yet."""
    store = await open_queue_store("embedded:./store", data_dir=data_dir, settings=Store())
    key, body = AuthKey(KeyKind.ED25519, bytes(32)), b"\xa5" * 16_000
    try:
        for slot, count in enumerate(crowds):
            first = slot << 4
            queues = [
                Queue(
                    recipient_id=RecipientId(first.to_bytes(2) + secrets.token_bytes(22)),
                    recipient_keys=(key,),
                    box_key=BoxKey(bytes(32)),
                    sender_id=SenderId(first.to_bytes(2) + secrets.token_bytes(22)),
                )
                for _ in range(count)
            ]
            await asyncio.gather(*map(store.create, queues))
            full = (
                store.append(
                    queue.recipient_id,
                    Message(MessageId(secrets.token_bytes(24)), int(time.time()), body=body),
                    quota=128,
                    day_s=day_of(int(time.time())),
                )
                for queue in queues[::MESSAGE_EVERY]
            )
            await asyncio.gather(*full)
    finally:
        await store.close()


async def _share(store_url: str, root: Path, servers: int, few: int) -> None:
    """Slots in turn to each server. Nothing is in them yet, so nothing has to move. With `few` the
    first server has so many, and the rest belongs to nobody."""
    store = await open_cluster_store(store_url, data_dir=root, settings=Store())
    try:
        before = await store.read()
        slots = tuple(
            msgspec.structs.replace(
                one, owner=NodeId(int(slot < few) if few else 1 + slot % servers)
            )
            for slot, one in enumerate(before.slots)
        )
        shared = msgspec.structs.replace(before, slots=slots)
        assert await store.commit(shared.as_one_change(before))
    finally:
        await store.close()


async def _settled(store_url: str, root: Path, *, followed: bool) -> None:
    """Until the controller has seen every server, and followers are in step."""
    store = await open_cluster_store(store_url, data_dir=root, settings=Store())
    try:
        async with asyncio.timeout(SETTLE_LIMIT_S):
            while True:
                now = await store.read()
                up = all(node.status == "up" for node in now.nodes.values())
                if up and (not followed or all(one.in_step for _, one in now.owned)):
                    return
                await asyncio.sleep(0.1)
    finally:
        await store.close()
