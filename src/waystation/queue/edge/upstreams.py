"""Links to all storage servers of the map: opened, kept, reopened.

Rule 1: every server of the map has one shared link. With `dedicated` each client also has its own
        link to every server that it uses, up to a limit; later clients share. Requests of the edge
        itself use the shared link.
Rule 2: a broken shared link is retried after 0.1 s, then later each time, up to `BACKOFF_MAX_S`. A
        server without it counts as down, so its dedicated links are closed too.
Rule 3: the certificate of a server's link must carry that server's name.
Rule 4: a link on which nothing arrives for `SILENCE_S`, despite pings, is closed.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from waystation.base.tasks import Tasks
from waystation.net.tls import Tls
from waystation.queue.cluster.link_connection import LinkConnection, Links
from waystation.queue.cluster.slot_map import Node, NodeId, SlotMap
from waystation.queue.edge.dedicated_links import DedicatedLinks
from waystation.queue.wire.link import REQUESTS_FROM, Body, Frame
from waystation.queue.wire.link_messages import Cping, Cpong

BACKOFF_MIN_S: Final = 0.1
BACKOFF_MAX_S: Final = 5.0
CONNECT_S: Final = 10.0
POLL_S: Final = 0.02
PING_S: Final = 2.0
SILENCE_S: Final = 10.0
_HOP_WEIGHT: Final = 0.2  # of the newest sample in the mean


class LinkEvents(Protocol):
    def link_up(self, node_id: NodeId) -> None: ...

    def link_down(self, node_id: NodeId) -> None: ...

    def link_congested(self, node_id: NodeId, *, is_congested: bool) -> None: ...

    def stream_down(self, node_id: NodeId, stream: int) -> None: ...

    def stream_congested(self, node_id: NodeId, stream: int, *, is_congested: bool) -> None: ...

    def frame_arrived(self, node_id: NodeId, frame: Frame) -> None: ...


class _Upstream:
    """One server's shared link; `LinkHandler` of its connection."""

    def __init__(self, node: Node, events: LinkEvents, loop: asyncio.AbstractEventLoop) -> None:
        self.node = node
        self.line: LinkConnection | None = None
        self.gone: asyncio.Future[None] | None = None
        self.heard_at = 0.0
        self.pinged_at: float | None = None
        self.hop_s = 0.0
        self._events = events
        self._loop = loop
        self.on_lost: Callable[[NodeId], None] | None = None

    def ready(self, line: LinkConnection) -> None:
        if line.peer_name != f"node-{self.node.node_id}":
            line.abort()
            return
        self.line = line
        self.heard_at = self._loop.time()
        self.pinged_at = None
        self._events.link_up(self.node.node_id)

    def arrived(self, line: LinkConnection, frame: Frame) -> None:
        if line is not self.line:
            return
        self.heard_at = self._loop.time()
        if isinstance(frame.body, Cpong) and self.pinged_at is not None:
            took_s = self.heard_at - self.pinged_at
            self.pinged_at = None
            self.hop_s += (took_s - self.hop_s) * (_HOP_WEIGHT if self.hop_s else 1.0)
        self._events.frame_arrived(self.node.node_id, frame)

    def lost(self, line: LinkConnection) -> None:
        if line is self.line:
            self.line = None
            if self.on_lost is not None:
                self.on_lost(self.node.node_id)
            self._events.link_down(self.node.node_id)
        if self.gone is not None and not self.gone.done():
            self.gone.set_result(None)

    def congested(self, line: LinkConnection, *, is_congested: bool) -> None:
        if line is self.line:
            self._events.link_congested(self.node.node_id, is_congested=is_congested)

    def look(self, epoch: int) -> None:
        """Rule 4."""
        line = self.line
        if line is None:
            return
        mono = self._loop.time()
        if mono - self.heard_at > SILENCE_S:
            line.abort()
        elif self.pinged_at is None:
            self.pinged_at = mono
            line.send_frame(REQUESTS_FROM, epoch, Cping())


class Upstreams:
    """Made within a running loop."""

    def __init__(
        self,
        events: LinkEvents,
        *,
        links: Links,
        tls: Callable[[], Tls],
        tasks: Tasks,
        dedicated_max: int = 0,
    ) -> None:
        self._events = events
        self._links = links
        self._tls = tls
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._epoch = 0
        self._upstreams: dict[NodeId, _Upstream] = {}
        self._running: dict[NodeId, asyncio.Task[None]] = {}
        self._contexts: dict[NodeId, Tls] = {}
        self.own = DedicatedLinks(events, links=links, tasks=tasks, links_max=dedicated_max)
        tasks.keep("links' pings", self._ping)

    def learned(self, slot_map: SlotMap) -> None:
        """Rule 1."""
        self._epoch = slot_map.epoch
        for node_id, node in slot_map.nodes.items():
            known = self._upstreams.get(node_id)
            if known is not None and (known.node.host, known.node.port) == (node.host, node.port):
                known.node = node
                continue
            self._drop(node_id)
            self._upstreams[node_id] = upstream = _Upstream(node, self._events, self._loop)
            upstream.on_lost = self.own.server_lost
            self._running[node_id] = self._tasks.keep(
                f"link to node {node_id}", partial(self._keep, upstream)
            )
        for node_id in self._upstreams.keys() - slot_map.nodes.keys():
            self._drop(node_id)

    @property
    def hop_s(self) -> float:
        """Mean round trip to the servers."""
        hops = [one.hop_s for one in self._upstreams.values() if one.hop_s]
        return sum(hops) / len(hops) if hops else 0.0

    def send(self, node_id: NodeId, stream: int, epoch: int, body: Body) -> None:
        upstream = self._upstreams.get(node_id)
        if upstream is None or upstream.line is None:
            return
        if stream < REQUESTS_FROM and self.own.takes(node_id, stream, body):
            context = self._contexts[node_id]
            self.own.send(upstream.node, stream, epoch, body, context)
        else:
            upstream.line.send_frame(stream, epoch, body)

    async def settle(self, within_s: float) -> bool:
        """Whether every server of the map is linked within the time."""
        for _ in range(round(within_s / POLL_S)):
            if len(self) == len(self._upstreams):
                return True
            await asyncio.sleep(POLL_S)
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
        self.own.server_lost(node_id)
        if upstream.line is not None:
            upstream.line.abort()

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_S)
            for upstream in self._upstreams.values():
                upstream.look(self._epoch)

    async def _keep(self, upstream: _Upstream) -> None:
        loop = self._loop
        pause_s = BACKOFF_MIN_S
        while True:
            upstream.gone = loop.create_future()
            try:
                context = self._contexts[upstream.node.node_id] = self._tls()
                async with asyncio.timeout(CONNECT_S):
                    await self._links.connect(upstream, upstream.node, context)
                began = loop.time()
                await upstream.gone
                if loop.time() - began > BACKOFF_MAX_S:
                    pause_s = BACKOFF_MIN_S
            except (OSError, TimeoutError):
                pass
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, BACKOFF_MAX_S)
