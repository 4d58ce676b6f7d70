"""Relays client streams to the home node of their party, where nodes share no store.

Rule 1: the home of a party is the node with the highest hash of party and node. A node that was
        handed a party is its home as well.
Rule 2: all streams between two nodes share one call. Each stream has a channel whose frames keep
        their order. A frame opens a channel, carries a message, or closes the channel: towards the
        home with status 0 after a half-close, with another status when the client is lost.
Rule 3: at most CREDIT messages of a channel are unconfirmed in each direction; an empty frame
        confirms GRANT of them. At the limit, the stream at the home is not writable, and the
        receiving node stops reading its client.
Rule 4: when the call breaks, clients get UNAVAILABLE and the home treats their transports as lost.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

from grpc import aio

from waystation.net.http2.port import Gone, GrpcStatus, StreamHandler
from waystation.presence.errors import PeerError
from waystation.presence.model import MessageType, PartyId, Status
from waystation.presence.reports import Reports
from waystation.presence.session.client_stream import ClientStream, StreamControl
from waystation.presence.store import PresenceNode
from waystation.presence.wire.party_presence_pb2 import ClientMessage
from waystation.presence.wire.presence_cluster_pb2 import RelayFrame

from .directory import ranked
from .peer_clients import PeerClients

CREDIT: Final = 256
GRANT: Final = 128
CHANNELS_MAX: Final = 20_000  # of one call
_LOST: Final = int(GrpcStatus.CANCELLED)


class RelayedCall:
    """On the receiving node: one client stream that is relayed to the home node."""

    def __init__(self, connection: "_RelayConnection", channel: int, client: ClientStream) -> None:
        self._connection = connection
        self._channel = channel
        self._client = client
        self._unconfirmed = 0
        self._ungranted = 0  # messages sent to the client and not confirmed to the home yet
        self._last = b""

    def send(self, data: bytes) -> None:
        self._unconfirmed += 1
        if self._unconfirmed == CREDIT:
            self._client.stream.pause_reading()
        self._connection.send_frame(RelayFrame(channel=self._channel, client_message=data))

    def half_closed(self) -> None:
        self._connection.send_frame(RelayFrame(channel=self._channel, close=True))

    def lost(self) -> None:
        self._connection.send_frame(
            RelayFrame(channel=self._channel, close=True, grpc_status=_LOST)
        )
        self._connection.forget(self._channel)

    def unblocked(self) -> None:
        if self._ungranted >= GRANT:
            self._ungranted -= GRANT
            self._connection.send_frame(RelayFrame(channel=self._channel))

    def receive(self, frame: RelayFrame) -> None:
        client = self._client
        if frame.close:
            self._connection.forget(self._channel)
            client.finish(GrpcStatus(frame.grpc_status), self._detail(frame.grpc_status))
        elif frame.client_message:
            self._last = frame.client_message
            client.send(frame.client_message)
            self._ungranted += 1
            if client.stream.writable:
                self.unblocked()
        else:
            paused = self._unconfirmed >= CREDIT
            self._unconfirmed -= GRANT
            if paused and self._unconfirmed < CREDIT:
                client.stream.resume_reading()

    def _detail(self, grpc_status: int) -> str:
        """The status name of the last ERROR; a frame has no field for it."""
        if not grpc_status or not self._last:
            return ""
        last = ClientMessage.FromString(self._last)
        return Status(last.status_code).name if last.message_type == MessageType.ERROR else ""


class _RelayConnection:
    """The relay call to one other node."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._out: asyncio.Queue[RelayFrame] = asyncio.Queue()  # bounded by rule 3
        self._calls: dict[int, RelayedCall] = {}
        self._clients: dict[int, ClientStream] = {}
        self._count = 0
        self.broken = False

    def begin(self, client: ClientStream, data: bytes) -> RelayedCall | None:
        if len(self._calls) >= CHANNELS_MAX:
            return None
        self._count += 1
        channel = self._count
        claims = (client.stream.authorization or "").encode()
        self.send_frame(RelayFrame(channel=channel, open=True, claims=claims))
        call = self._calls[channel] = RelayedCall(self, channel, client)
        self._clients[channel] = client
        call.send(data)
        return call

    def send_frame(self, frame: RelayFrame) -> None:
        self._out.put_nowait(frame)

    def forget(self, channel: int) -> None:
        self._calls.pop(channel, None)
        self._clients.pop(channel, None)

    async def run(self) -> None:
        """Reads and writes frames until the call ends."""
        writer = asyncio.create_task(self._write())
        try:
            while isinstance(frame := await self._call.read(), RelayFrame):
                relayed = self._calls.get(frame.channel)
                if relayed is not None:
                    relayed.receive(frame)
        except aio.AioRpcError:
            pass
        finally:
            self.broken = True
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            self._call.cancel()
            left = list(self._clients.values())
            self._calls.clear()
            self._clients.clear()
            for client in left:
                client.finish(GrpcStatus.UNAVAILABLE, "lost the node of the party; join again")

    async def _write(self) -> None:
        while True:
            await self._call.write(await self._out.get())


class Relay:
    """On the receiving node: decides which streams are relayed, and to which node."""

    def __init__(
        self,
        control: StreamControl,
        peer_clients: PeerClients,
        nodes: Sequence[PresenceNode],
        reports: Reports,
        *,
        node_id: str,
        is_here: Callable[[PartyId], bool],
        redirect: bool,
    ) -> None:
        """`nodes` are all nodes, this one too; `is_here` says whether this node has a party."""
        self._control = control
        self._reports = reports
        self._node_id = node_id
        self._is_here = is_here
        self._peer_clients = peer_clients
        self._nodes = nodes
        self.redirect = redirect
        self._connections: dict[str, _RelayConnection] = {}

    def elsewhere(self, party_id: PartyId) -> PresenceNode | None:
        """The home of the party, if that is another node."""
        if self._is_here(party_id):
            return None
        home = ranked(self._nodes, party_id)[0]
        return None if home.node_id == self._node_id else home

    def home(self, party_id: PartyId) -> Sequence[str]:
        node = self.elsewhere(party_id)
        return () if node is None else (node.client_endpoint,)

    def begin(self, client: ClientStream, data: bytes, node: PresenceNode) -> bool:
        """Relays the stream to `node`; False if that node cannot be reached."""
        connection = self._connections.get(node.node_id)
        if connection is None or connection.broken:
            try:
                connection = _RelayConnection(self._peer_clients.relay(node))
            except PeerError as exc:
                self._reports.store_trouble("relay", exc)
                return False
            self._connections[node.node_id] = connection
            self._control.run("relay", connection.run())
        relayed = connection.begin(client, data)
        client.relayed = relayed
        return relayed is not None


# --- on the home node -----------------------------------------------------------------------------


class RelayedStream:
    """A `Stream` on the home node whose client is connected to another node."""

    def __init__(self, streams: "RelayedStreams", channel: int, peer: str, claims: bytes) -> None:
        self.holder: Any = None
        self.peer = peer
        self.authorization = claims.decode(errors="replace") or None
        self._streams = streams
        self._channel = channel
        self._unconfirmed = 0
        self._taken = 0
        self._paused = False

    @property
    def writable(self) -> bool:
        return self._unconfirmed < CREDIT

    def send(self, message: bytes) -> None:
        self._unconfirmed += 1
        self._streams.send_frame(RelayFrame(channel=self._channel, client_message=message))

    def finish(self, status: GrpcStatus, detail: str = "", *, discard_unsent: bool = False) -> None:
        self._streams.forget(self._channel)
        self._streams.send_frame(
            RelayFrame(channel=self._channel, close=True, grpc_status=int(status))
        )

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._grant()

    def consumed(self) -> None:
        self._taken += 1
        self._grant()

    def _grant(self) -> None:
        while self._taken >= GRANT and not self._paused:
            self._taken -= GRANT
            self._streams.send_frame(RelayFrame(channel=self._channel))

    def granted(self) -> bool:
        """Applies a confirmation; whether the stream became writable."""
        blocked = not self.writable
        self._unconfirmed -= GRANT
        return blocked and self.writable


class RelayedStreams:
    """All relayed streams of one call, on the home node."""

    def __init__(self, handler: StreamHandler, peer: str) -> None:
        self._handler = handler
        self._peer = peer
        self._streams: dict[int, RelayedStream] = {}
        self._out: asyncio.Queue[RelayFrame | None] = asyncio.Queue()  # bounded by rule 3

    def send_frame(self, frame: RelayFrame) -> None:
        self._out.put_nowait(frame)

    def forget(self, channel: int) -> None:
        self._streams.pop(channel, None)

    async def serve(self, frames: AsyncIterator[RelayFrame]) -> AsyncIterator[RelayFrame]:
        reader = asyncio.create_task(self._read(frames))
        try:
            while (frame := await self._out.get()) is not None:
                yield frame
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            streams, self._streams = self._streams, {}
            for stream in streams.values():
                self._handler.closed(stream, Gone.TRANSPORT)

    async def _read(self, frames: AsyncIterator[RelayFrame]) -> None:
        try:
            async for frame in frames:
                self._take(frame)
        finally:
            self._out.put_nowait(None)

    def _take(self, frame: RelayFrame) -> None:
        handler, stream = self._handler, self._streams.get(frame.channel)
        if frame.open:
            if stream is None and len(self._streams) < CHANNELS_MAX:
                stream = RelayedStream(self, frame.channel, self._peer, frame.claims)
                self._streams[frame.channel] = stream
                handler.opened(stream)
        elif stream is None:
            pass  # the stream has ended already
        elif frame.close and frame.grpc_status:
            self.forget(frame.channel)
            handler.closed(stream, Gone.TRANSPORT)
        elif frame.close:
            handler.half_closed(stream)
        elif frame.client_message:
            handler.message(stream, frame.client_message)
            stream.consumed()
        elif stream.granted():
            handler.unblocked(stream)
