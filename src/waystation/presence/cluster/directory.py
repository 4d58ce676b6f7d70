"""`NodeDirectory` of the cluster protocol: tells clients which nodes accept sessions.

Ready nodes are ordered by a hash of party and node: participants of one party tend to use the same
node, and a node that is added or removed moves few of them.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from waystation.net.http2.methods import Caller, GrpcError, Service
from waystation.net.http2.port import GrpcStatus
from waystation.presence.errors import NotAllowedError
from waystation.presence.grants import Authority, bearer
from waystation.presence.store import PresenceNode
from waystation.presence.transport.rpc import method, unauthenticated
from waystation.presence.wire.presence_cluster_pb2 import (
    FENCED,
    NODE_DRAINING,
    NODE_STATE_UNSPECIFIED,
    READY,
    ListNodesRequest,
    Node,
    NodeList,
)

SERVICE: Final = "partypresence.cluster.v1.NodeDirectory"
CHANGES_APART_S: Final = 0.1
LIMIT_MAX: Final = 1000
WATCHERS_MAX: Final = 10_000
STATES: Final = {"ready": READY, "draining": NODE_DRAINING, "fenced": FENCED}


def node_row(node: PresenceNode) -> Node:
    """A node as a message of the cluster protocol."""
    return Node(
        node_id=node.node_id,
        incarnation=node.incarnation,
        client_endpoint=node.client_endpoint,
        peer_endpoint=node.peer_endpoint,
        zone=node.zone,
        state=STATES.get(node.state, NODE_STATE_UNSPECIFIED),
        sessions=node.sessions,
        max_sessions=node.max_sessions,
        version=node.version,
    )


def ranked(
    nodes: Sequence[PresenceNode], party_id: int, *, prefer_zone: str = ""
) -> list[PresenceNode]:
    """The nodes that accept sessions, best first."""

    def weight(node: PresenceNode) -> tuple[bool, bytes]:
        name = f"{party_id:x}/{node.node_id}".encode()
        return node.zone == prefer_zone, hashlib.blake2b(name, digest_size=8).digest()

    ready = [node for node in nodes if node.state == "ready"]
    return sorted(ready, key=weight, reverse=True)


class NodeDirectory:
    def __init__(
        self, nodes: Callable[[], Sequence[PresenceNode]], authority: Authority | None
    ) -> None:
        self._nodes = nodes
        self._authority = authority
        self._revision = 0
        self._watchers = 0
        self._changed = asyncio.Event()

    def changed(self) -> None:
        self._revision += 1
        self._changed.set()
        self._changed = asyncio.Event()

    @property
    def service(self) -> Service:
        methods = {
            "ListNodes": method(self._list, ListNodesRequest, NodeList),
            "WatchNodes": method(self._watch, ListNodesRequest, NodeList, many_out=True),
        }
        return Service(SERVICE, methods)

    async def _admit(self, caller: Caller) -> None:
        if self._authority is None:
            return
        try:
            await self._authority.verify(bearer(caller.authorization))
        except NotAllowedError:
            unauthenticated()

    async def _list(self, request: ListNodesRequest, caller: Caller) -> NodeList:
        await self._admit(caller)
        return self._answer(request)

    async def _watch(self, request: ListNodesRequest, caller: Caller) -> AsyncIterator[NodeList]:
        await self._admit(caller)
        if self._watchers >= WATCHERS_MAX:
            raise GrpcError(
                GrpcStatus.RESOURCE_EXHAUSTED, f"{WATCHERS_MAX} watchers (limit {WATCHERS_MAX})"
            )
        self._watchers += 1
        try:
            while True:
                changed = self._changed
                yield self._answer(request)
                await changed.wait()
                await asyncio.sleep(CHANGES_APART_S)
        finally:
            self._watchers -= 1

    def _answer(self, request: ListNodesRequest) -> NodeList:
        nodes = ranked(self._nodes(), request.party_id, prefer_zone=request.prefer_zone)
        wanted = nodes[: request.limit or LIMIT_MAX]
        return NodeList(nodes=[node_row(node) for node in wanted], revision=self._revision)
