"""Nodes for the scenarios: on both stores, and on Redis as a cluster (P-106).

The store in memory is that of the tests in virtual time.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.presence.kit import Node, PresenceClient, open_store, until
from tests.servers.redis import RedisServer, redis_cluster, redis_server, redis_url
from waystation.base.clock import SystemClock
from waystation.presence.model import Status
from waystation.presence.settings import Presence
from waystation.presence.store import PresenceStore

__all__ = ["redis_cluster", "redis_server", "redis_url"]

STORES = [
    pytest.param("embedded", id="embedded"),
    pytest.param("redis", id="redis", marks=pytest.mark.redis),
    pytest.param("cluster", id="cluster", marks=pytest.mark.redis),
]


class NodeSetup:
    """Starts nodes and clients; after the test nothing is left in the store (P-064)."""

    def __init__(self, store_kind: str, tmp_path: Path, url: str = "") -> None:
        self.url = url
        self.store_kind = store_kind
        self.tmp_path = tmp_path
        self.nodes: list[Node] = []
        self.presence_clients: list[PresenceClient] = []
        self.stores: list[PresenceStore] = []

    async def node(self, **settings: Any) -> Node:
        node_settings = {
            name: settings.pop(name)
            for name in ("authority", "tls", "port", "clock", "node_id")
            if name in settings
        }
        presence = Presence(**settings)
        clock = node_settings.get("clock") or SystemClock()
        store = await open_store(self.store_kind, presence, self.tmp_path, clock, self.url)
        self.stores.append(store)
        node = await Node(presence, store, **node_settings).start()
        self.nodes.append(node)
        return node

    def presence_client(
        self, node: Node, client: int, session: int | None = None, **more: Any
    ) -> PresenceClient:
        presence_client = PresenceClient(node.target, client, session, **more)
        self.presence_clients.append(presence_client)
        return presence_client

    async def member(self, node: Node, client: int, **fields: Any) -> PresenceClient:
        """A client that has joined; its welcome is read and acknowledged."""
        auto = fields.pop("auto", False)
        where = {name: fields.pop(name) for name in ("session", "party") if name in fields}
        presence_client = self.presence_client(node, client, **where)
        presence_client.auto = auto
        await presence_client.join(**fields)
        await presence_client.welcomed()
        return presence_client

    async def close(self) -> None:
        for presence_client in self.presence_clients:
            await presence_client.disconnect()
        try:
            for node in self.nodes:
                await self._empty(node)
        finally:
            for node in self.nodes:
                await node.stop()
            for store in self.stores:
                await store.close()

    async def _empty(self, node: Node) -> None:
        broker = node.server.broker
        registry = broker.registry
        with contextlib.suppress(TimeoutError):
            await until(lambda: not registry.open_streams, 5)
        for session in list(registry.sessions.values()):
            await broker.session_end.remove(session, Status.REMOVED_BY_ADMIN)
        await until(lambda: not registry.parties and not len(registry.wheel), 5)
        await asyncio.sleep(0)

        assert not registry.sessions
        assert not registry.open_streams


@pytest.fixture(params=STORES)
async def node_setup(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[NodeSetup]:
    store_kind: str = request.param
    url = ""
    if store_kind == "redis":
        url = request.getfixturevalue("redis_url")
    elif store_kind == "cluster":
        servers: list[RedisServer] = request.getfixturevalue("redis_cluster")
        url = f"redis+cluster://127.0.0.1:{servers[0].port}"
    node_setup = NodeSetup(store_kind, tmp_path, url)
    yield node_setup
    await node_setup.close()
