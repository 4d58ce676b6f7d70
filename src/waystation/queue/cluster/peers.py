"""Links between storage servers for copies of slots and their confirmations.

Rule 1: each server sends only on links that it opened itself, so two servers have two links, and
        losing one does not affect the other.
Rule 2: what cannot be sent is dropped, and `link_lost` tells `Replication`, which begins the copy
        again.
Rule 3: a frame of a copy may be larger than a block of the link; it is sent in parts.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

import msgspec

from waystation.base.decode_errors import DECODE_ERRORS
from waystation.base.tasks import Tasks
from waystation.net.tls import Tls
from waystation.queue.model import Slot
from waystation.queue.wire.link import COPY_BYTES_MAX
from waystation.queue.wire.link import Frame as LinkFrame
from waystation.queue.wire.link_messages import CopyAck, CopyPart

from .effects import SendAck, SendFrame
from .link_connection import LinkConnection, Links
from .migration import Frame
from .slot_map import NodeId, SlotMap

CONNECT_S: Final = 5.0
WAITING_MAX: Final = 256  # messages for a link that is being opened
FRAME_BYTES_MAX: Final = 64 << 20
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Frame).decode


class CopyReceiver(Protocol):
    """The part of `ReplicationDriver` that receives from other servers."""

    def frame_arrived(
        self, peer: NodeId, copy: int, slot: int, move: int, frame: Frame
    ) -> None: ...

    def ack_arrived(self, peer: NodeId, copy: int, seq: int, broken: bool) -> None: ...

    def link_lost(self, peer: NodeId) -> None: ...


class _PeerLink:
    """The link to one other server."""

    __slots__ = ("line", "waiting")

    def __init__(self) -> None:
        self.line: LinkConnection | None = None
        self.waiting: list[SendFrame | SendAck] = []


class Peers:
    """The `PeerLinks` of a storage server."""

    def __init__(
        self,
        *,
        links: Links,
        context: Tls,
        slot_map: Callable[[], SlotMap],
        tasks: Tasks,
    ) -> None:
        self._links = links
        self._context = context
        self._slot_map = slot_map
        self._tasks = tasks
        self._peer_links: dict[NodeId, _PeerLink] = {}
        self._parts: dict[tuple[NodeId, int], bytearray] = {}
        self.receiver: CopyReceiver | None = None

    # Outgoing

    def send(self, peer: NodeId, message: SendFrame | SendAck) -> None:
        peer_link = self._peer_links.get(peer)
        if peer_link is None:
            peer_link = self._peer_links[peer] = _PeerLink()
            self._tasks.spawn("cluster link", self._connect(peer, peer_link))
        if peer_link.line is not None:
            self._write(peer_link.line, message)
        elif len(peer_link.waiting) < WAITING_MAX:
            peer_link.waiting.append(message)
        else:
            self._lost(peer, peer_link)

    def close(self) -> None:
        for peer_link in list(self._peer_links.values()):
            if peer_link.line is not None:
                peer_link.line.abort()
        self._peer_links.clear()

    async def _connect(self, peer: NodeId, peer_link: _PeerLink) -> None:
        node = self._slot_map().nodes.get(peer)
        with suppress(OSError):
            if node is not None:
                async with asyncio.timeout(CONNECT_S):
                    await self._links.connect(_Outgoing(self, peer, peer_link), node, self._context)
                return
        self._lost(peer, peer_link)

    def opened(self, peer: NodeId, peer_link: _PeerLink, line: LinkConnection) -> None:
        if line.peer_name != f"node-{peer}" or self._peer_links.get(peer) is not peer_link:
            line.abort()  # another server has that address now
            return
        peer_link.line = line
        waiting, peer_link.waiting = peer_link.waiting, []
        for message in waiting:
            self._write(line, message)

    def ended(self, peer: NodeId, peer_link: _PeerLink) -> None:
        self._lost(peer, peer_link)

    def _lost(self, peer: NodeId, peer_link: _PeerLink) -> None:
        if self._peer_links.get(peer) is peer_link:
            del self._peer_links[peer]
            peer_link.waiting.clear()
            if self.receiver is not None:
                # Not within `send`: `Replication` is computing effects then.
                asyncio.get_running_loop().call_soon(self.receiver.link_lost, peer)

    def _write(self, line: LinkConnection, message: SendFrame | SendAck) -> None:
        epoch = self._slot_map().epoch
        if isinstance(message, SendAck):
            line.send_frame(0, epoch, CopyAck(message.copy, message.seq, message.broken))
            return
        data = _encode(message.frame)
        for start in range(0, len(data), COPY_BYTES_MAX):
            part = data[start : start + COPY_BYTES_MAX]
            last = start + COPY_BYTES_MAX >= len(data)
            body = CopyPart(message.copy, Slot(message.slot), message.move, last, part)
            line.send_frame(0, epoch, body)

    # Incoming

    def arrived(self, peer: NodeId, body: CopyPart | CopyAck) -> bool:
        """From a link that another server opened; False if the link must be closed."""
        receiver = self.receiver
        if receiver is None:
            return False
        if isinstance(body, CopyAck):
            receiver.ack_arrived(peer, body.copy, body.seq, body.broken)
            return True
        parts = self._parts.setdefault((peer, body.copy), bytearray())
        parts += body.data
        if not body.last:
            return len(parts) <= FRAME_BYTES_MAX
        del self._parts[peer, body.copy]
        try:
            frame = _decode(parts)
        except DECODE_ERRORS:
            return False
        receiver.frame_arrived(peer, body.copy, body.slot, body.move, frame)
        return True

    def left(self, peer: NodeId) -> None:
        """A link that another server opened is lost, with the parts in flight on it."""
        for key in [key for key in self._parts if key[0] == peer]:
            del self._parts[key]
        if self.receiver is not None:
            self.receiver.link_lost(peer)


class _Outgoing:
    """The handler of a link that we opened; the peer sends nothing on it."""

    def __init__(self, peers: Peers, peer: NodeId, peer_link: _PeerLink) -> None:
        self._peers = peers
        self._peer = peer
        self._way = peer_link

    def ready(self, line: LinkConnection) -> None:
        self._peers.opened(self._peer, self._way, line)

    def arrived(self, line: LinkConnection, frame: LinkFrame) -> None:
        line.abort()

    def lost(self, line: LinkConnection) -> None:
        self._peers.ended(self._peer, self._way)

    def congested(self, line: LinkConnection, *, is_congested: bool) -> None:
        """Ignored: copies wait for their confirmations, so little is in flight."""


def node_of(peer_name: str) -> NodeId | None:
    """The storage server's number from the name in its certificate; None: an edge."""
    kind, _, number = peer_name.partition("-")
    return NodeId(int(number)) if kind == "node" and number.isdecimal() else None
