"""Dedicated links: one for each client and server that it uses (`edge.upstream_mode`).

Rule 1: a link is opened with the client's `SOPEN` and closed with its `SCLOSE`. Frames sent while
        it is being opened wait, at most `WAITING_MAX`.
Rule 2: a broken link affects its client alone: `stream_down` reports it.
Rule 3: at most `links_max` links; later clients share.
"""

import asyncio
from typing import Final, Protocol

from waystation.base.tasks import Tasks
from waystation.net.tls import Tls
from waystation.queue.cluster.link_connection import LinkConnection, Links
from waystation.queue.cluster.slot_map import Node, NodeId
from waystation.queue.wire.link import Body, Frame
from waystation.queue.wire.link_messages import Sclose, Sopen

CONNECT_S: Final = 10.0
WAITING_MAX: Final = 2048  # more than one client may have in flight

_Key = tuple[NodeId, int]


class StreamEvents(Protocol):
    def stream_down(self, node_id: NodeId, stream: int) -> None: ...

    def stream_congested(self, node_id: NodeId, stream: int, *, is_congested: bool) -> None: ...

    def frame_arrived(self, node_id: NodeId, frame: Frame) -> None: ...


class _DedicatedLink:
    """`LinkHandler` of its connection."""

    def __init__(self, links: "DedicatedLinks", key: _Key, events: StreamEvents) -> None:
        self.key = key
        self.line: LinkConnection | None = None
        self.connecting: asyncio.Task[None] | None = None
        self._links = links
        self._events = events
        self._waiting: list[tuple[int, Body]] = []

    def send(self, epoch: int, body: Body) -> bool:
        """False if too many frames wait."""
        if self.line is not None:
            self.line.send_frame(self.key[1], epoch, body)
            return True
        self._waiting.append((epoch, body))
        return len(self._waiting) <= WAITING_MAX

    def close(self) -> None:
        if self.line is not None:
            self.line.close()
        elif self.connecting is not None:
            self.connecting.cancel()

    def abort(self) -> None:
        if self.line is not None:
            self.line.abort()
        elif self.connecting is not None:
            self.connecting.cancel()

    # Called by the connection

    def ready(self, line: LinkConnection) -> None:
        if line.peer_name != f"node-{self.key[0]}" or not self._links.has(self):
            line.abort()
            return
        self.line = line
        waiting, self._waiting = self._waiting, []
        for epoch, body in waiting:
            line.send_frame(self.key[1], epoch, body)

    def arrived(self, line: LinkConnection, frame: Frame) -> None:
        if line is self.line and frame.stream == self.key[1]:
            self._events.frame_arrived(self.key[0], frame)

    def lost(self, line: LinkConnection) -> None:
        self._links.lost(self)

    def congested(self, line: LinkConnection, *, is_congested: bool) -> None:
        self._events.stream_congested(*self.key, is_congested=is_congested)


class DedicatedLinks:
    def __init__(self, events: StreamEvents, *, links: Links, tasks: Tasks, links_max: int) -> None:
        self._events = events
        self._made = links
        self._tasks = tasks
        self._links_max = links_max
        self._links: dict[_Key, _DedicatedLink] = {}

    def __len__(self) -> int:
        return len(self._links)

    def has(self, link: _DedicatedLink) -> bool:
        return self._links.get(link.key) is link

    def takes(self, node_id: NodeId, stream: int, body: Body) -> bool:
        if (node_id, stream) in self._links:
            return True
        return isinstance(body, Sopen) and len(self._links) < self._links_max

    def send(self, node: Node, stream: int, epoch: int, body: Body, context: Tls) -> None:
        key = (node.node_id, stream)
        link = self._links.get(key)
        if link is None:
            self._links[key] = link = _DedicatedLink(self, key, self._events)
            connecting = self._connect(link, node, context)
            link.connecting = self._tasks.spawn("a client's link", connecting)
        if isinstance(body, Sclose):
            del self._links[key]
            link.close()
        elif not link.send(epoch, body):
            link.abort()
            self._end_soon(link)

    def server_lost(self, node_id: NodeId) -> None:
        """Reports no lost streams: the caller has reported the lost server already."""
        for key in [key for key in self._links if key[0] == node_id]:
            self._links.pop(key).abort()

    def lost(self, link: _DedicatedLink) -> None:
        if self.has(link):
            del self._links[link.key]
            self._events.stream_down(*link.key)

    def _end_soon(self, link: _DedicatedLink) -> None:
        # The edge core is in the middle of a call.
        asyncio.get_running_loop().call_soon(self.lost, link)

    async def _connect(self, link: _DedicatedLink, node: Node, context: Tls) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._made.connect(link, node, context)
        except (OSError, TimeoutError):
            self.lost(link)
