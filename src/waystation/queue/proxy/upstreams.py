"""Links to all storage servers of the map: opened, kept, opened again.

Rule 1: every server of the map has one link, and no other has any.
Rule 2: a link that broke is tried again after 0.1 s, then later each time, up to `BACKOFF_MAX_S`.
Rule 3: whoever answers under a server's address must show that server's name.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, Protocol

from waystation.base.tasks import Tasks
from waystation.queue.cluster.link_line import LinkLine
from waystation.queue.cluster.slot_map import Node, NodeId, SlotMap
from waystation.queue.wire.link import Body, Frame

BACKOFF_MIN_S: Final = 0.1
BACKOFF_MAX_S: Final = 5.0
CONNECT_S: Final = 10.0
LOOK_S: Final = 0.02


class Hears(Protocol):
    def link_up(self, node_id: NodeId) -> None: ...

    def link_down(self, node_id: NodeId) -> None: ...

    def heard(self, node_id: NodeId, frame: Frame) -> None: ...


class _Upstream:
    """One server's link; `LinkHandler` of its line."""

    def __init__(self, node: Node, hears: Hears) -> None:
        self.node = node
        self.line: LinkLine | None = None
        self.gone: asyncio.Future[None] | None = None
        self._hears = hears

    def ready(self, line: LinkLine) -> None:
        if line.peer_name != f"node-{self.node.node_id}":
            line.abort()
            return
        self.line = line
        self._hears.link_up(self.node.node_id)

    def arrived(self, line: LinkLine, frame: Frame) -> None:
        if line is self.line:
            self._hears.heard(self.node.node_id, frame)

    def lost(self, line: LinkLine) -> None:
        if line is self.line:
            self.line = None
            self._hears.link_down(self.node.node_id)
        if self.gone is not None and not self.gone.done():
            self.gone.set_result(None)


class Upstreams:
    def __init__(
        self,
        hears: Hears,
        *,
        tls: Callable[[], ssl.SSLContext],
        tasks: Tasks,
    ) -> None:
        self._hears = hears
        self._tls = tls
        self._tasks = tasks
        self._upstreams: dict[NodeId, _Upstream] = {}
        self._running: dict[NodeId, asyncio.Task[None]] = {}

    def learned(self, slot_map: SlotMap) -> None:
        """Rule 1."""
        for node_id, node in slot_map.nodes.items():
            known = self._upstreams.get(node_id)
            if known is not None and (known.node.host, known.node.port) == (node.host, node.port):
                known.node = node
                continue
            self._drop(node_id)
            self._upstreams[node_id] = upstream = _Upstream(node, self._hears)
            self._running[node_id] = self._tasks.spawn(
                f"link to node {node_id}", self._keep(upstream)
            )
        for node_id in self._upstreams.keys() - slot_map.nodes.keys():
            self._drop(node_id)

    def send(self, node_id: NodeId, stream: int, epoch: int, body: Body) -> None:
        upstream = self._upstreams.get(node_id)
        if upstream is not None and upstream.line is not None:
            upstream.line.send(stream, epoch, body)

    async def settle(self, within_s: float) -> bool:
        """Whether every server of the map is linked, now or soon."""
        for _ in range(round(within_s / LOOK_S)):
            if len(self) == len(self._upstreams):
                return True
            await asyncio.sleep(LOOK_S)
        return False

    def close(self) -> None:
        for node_id in list(self._upstreams):
            self._drop(node_id)

    def __len__(self) -> int:
        return sum(upstream.line is not None for upstream in self._upstreams.values())

    def _drop(self, node_id: NodeId) -> None:
        upstream = self._upstreams.pop(node_id, None)
        if upstream is None:
            return
        self._running.pop(node_id).cancel()
        if upstream.line is not None:
            upstream.line.abort()

    async def _keep(self, upstream: _Upstream) -> None:
        loop = asyncio.get_running_loop()
        pause_s = BACKOFF_MIN_S
        while True:
            upstream.gone = loop.create_future()
            try:
                async with asyncio.timeout(CONNECT_S):
                    await loop.create_connection(
                        lambda: LinkLine(upstream, is_server=False),
                        upstream.node.host,
                        upstream.node.port,
                        ssl=self._tls(),
                        server_hostname="",
                    )
                began = loop.time()
                await upstream.gone
                if loop.time() - began > BACKOFF_MAX_S:
                    pause_s = BACKOFF_MIN_S
            except (OSError, TimeoutError):
                pass
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, BACKOFF_MAX_S)
