"""Requests between storage servers: on a dedicated link, matched to answers by number.

Rule 1: a link is opened for the first request and closed by `close`. Copies use other links:
        the loss of one link does not look like the loss of the other.
Rule 2: a request without an answer in `ANSWER_S`, or whose link broke, returns None.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from waystation.net.tls import Tls
from waystation.queue.wire.link import REQUESTS_FROM, Body, Frame
from waystation.queue.wire.link_messages import LinkMessage

from .link_connection import LinkConnection, Links
from .slot_map import NodeId, SlotMap

CONNECT_S: Final = 5.0
ANSWER_S: Final = 10.0


class _RequestLink:
    """`LinkHandler` of a link to one server."""

    def __init__(self, node_id: NodeId) -> None:
        self._node_id = node_id
        self._line: LinkConnection | None = None
        self._next = REQUESTS_FROM
        self._waiting: dict[int, asyncio.Future[Body | None]] = {}
        loop = asyncio.get_running_loop()
        self.is_ready: asyncio.Future[bool] = loop.create_future()
        self._loop = loop

    @property
    def is_lost(self) -> bool:
        return self.is_ready.done() and self._line is None

    def ready(self, line: LinkConnection) -> None:
        if line.peer_name != f"node-{self._node_id}":
            line.abort()
            return
        self._line = line
        if not self.is_ready.done():
            self.is_ready.set_result(True)

    def arrived(self, line: LinkConnection, frame: Frame) -> None:
        waiting = self._waiting.pop(frame.stream, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(frame.body)

    def lost(self, line: LinkConnection) -> None:
        self._line = None
        if not self.is_ready.done():
            self.is_ready.set_result(False)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    def congested(self, line: LinkConnection, *, is_congested: bool) -> None:
        """Ignored: callers wait for their answers, so little is in flight."""

    def close(self) -> None:
        if self._line is not None:
            self._line.abort()

    async def ask(self, epoch: int, message: LinkMessage) -> Body | None:
        if self._line is None:
            return None
        number = self._next
        self._next += 1
        answer: asyncio.Future[Body | None] = self._loop.create_future()
        self._waiting[number] = answer
        self._line.send_frame(number, epoch, message)
        try:
            async with asyncio.timeout(ANSWER_S):
                return await answer
        except TimeoutError:
            return None
        finally:
            self._waiting.pop(number, None)


class PeerRequests:
    def __init__(self, *, links: Links, context: Tls, slot_map: Callable[[], SlotMap]) -> None:
        self._links = links
        self._context = context
        self._slot_map = slot_map
        self._lines: dict[NodeId, _RequestLink] = {}
        self._connecting = asyncio.Lock()  # concurrent requests share one link

    async def ask(self, node_id: NodeId, message: LinkMessage) -> Body | None:
        async with self._connecting:
            line = self._lines.get(node_id)
            if line is None or line.is_lost:
                line = await self._connect(node_id)
        return None if line is None else await line.ask(self._slot_map().epoch, message)

    def close(self) -> None:
        for line in self._lines.values():
            line.close()
        self._lines.clear()

    async def _connect(self, node_id: NodeId) -> _RequestLink | None:
        node = self._slot_map().nodes.get(node_id)
        if node is None:
            return None
        line = _RequestLink(node_id)
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._links.connect(line, node, self._context)
                if not await line.is_ready:
                    return None
        except (OSError, TimeoutError):
            return None
        self._lines[node_id] = line
        return line
