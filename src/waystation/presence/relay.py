"""Without a shared store a party lives on one node; the others pass its streams on to that one.

Rule 1: a party's home is the node with the highest hash of party and node. A node that holds a
        party, because it was handed over to it, is its home as well.
Rule 2: all streams between two nodes share one call; each has a channel, whose frames keep their
        order. A frame says `open`, carries a message, or says `close`: from the client's side with
        status 0 when it has said all it will, with another when it is gone.
Rule 3: at most CREDIT messages of a channel are under way in a direction. A frame with nothing in
        it gives GRANT of them back; whoever has none left stops: the home takes the stream for one
        that is not writable, the edge stops reading its client.
Rule 4: when the call breaks, clients see UNAVAILABLE and the home sees lost transports.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from grpc import aio

from waystation.net.http2.port import Gone, GrpcStatus, StreamHandler

from .conversation import Conversation
from .directory import ranked
from .errors import NeighbourError
from .model import MessageType, PartyId, Status
from .neighbours import Neighbours
from .store import PresenceNode
from .wire.party_presence_pb2 import ClientMessage
from .wire.presence_cluster_pb2 import RelayFrame

if TYPE_CHECKING:
    from .broker import Broker

CREDIT: Final = 256
GRANT: Final = 128
CHANNELS_MAX: Final = 20_000  # of one call
_LOST: Final = int(GrpcStatus.CANCELLED)


class RelayedCall:
    """At the edge: one client's stream on its way to another node."""

    def __init__(self, line: "_Line", channel: int, conversation: Conversation) -> None:
        self._line = line
        self._channel = channel
        self._conversation = conversation
        self._under_way = 0
        self._owed = 0  # messages given to the client that were not granted back yet
        self._last = b""

    def said(self, data: bytes) -> None:
        self._under_way += 1
        if self._under_way == CREDIT:
            self._conversation.stream.pause_reading()
        self._line.say(RelayFrame(channel=self._channel, client_message=data))

    def half_closed(self) -> None:
        self._line.say(RelayFrame(channel=self._channel, close=True))

    def lost(self) -> None:
        self._line.say(RelayFrame(channel=self._channel, close=True, grpc_status=_LOST))
        self._line.forget(self._channel)

    def unblocked(self) -> None:
        if self._owed >= GRANT:
            self._owed -= GRANT
            self._line.say(RelayFrame(channel=self._channel))

    def heard(self, frame: RelayFrame) -> None:
        conversation = self._conversation
        if frame.close:
            self._line.forget(self._channel)
            conversation.finish(GrpcStatus(frame.grpc_status), self._detail(frame.grpc_status))
        elif frame.client_message:
            self._last = frame.client_message
            conversation.send(frame.client_message)
            self._owed += 1
            if conversation.stream.writable:
                self.unblocked()
        else:
            paused = self._under_way >= CREDIT
            self._under_way -= GRANT
            if paused and self._under_way < CREDIT:
                conversation.stream.resume_reading()

    def _detail(self, grpc_status: int) -> str:
        """A frame has no room for it; the ERROR before the end has the same name."""
        if not grpc_status or not self._last:
            return ""
        last = ClientMessage.FromString(self._last)
        return Status(last.status_code).name if last.message_type == MessageType.ERROR else ""


class _Line:
    """The call to one other node."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._out: asyncio.Queue[RelayFrame] = asyncio.Queue()  # rule 3 keeps it short
        self._calls: dict[int, RelayedCall] = {}
        self._conversations: dict[int, Conversation] = {}
        self._count = 0
        self.broken = False

    def begin(self, conversation: Conversation, data: bytes) -> RelayedCall | None:
        if len(self._calls) >= CHANNELS_MAX:
            return None
        self._count += 1
        channel = self._count
        claims = (conversation.stream.authorization or "").encode()
        self.say(RelayFrame(channel=channel, open=True, claims=claims))
        call = self._calls[channel] = RelayedCall(self, channel, conversation)
        self._conversations[channel] = conversation
        call.said(data)
        return call

    def say(self, frame: RelayFrame) -> None:
        self._out.put_nowait(frame)

    def forget(self, channel: int) -> None:
        self._calls.pop(channel, None)
        self._conversations.pop(channel, None)

    async def carry(self) -> None:
        """Until the call ends."""
        writer = asyncio.create_task(self._write())
        try:
            while isinstance(frame := await self._call.read(), RelayFrame):
                relayed = self._calls.get(frame.channel)
                if relayed is not None:
                    relayed.heard(frame)
        except aio.AioRpcError:
            pass
        finally:
            self.broken = True
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            self._call.cancel()
            left = list(self._conversations.values())
            self._calls.clear()
            self._conversations.clear()
            for conversation in left:
                conversation.finish(GrpcStatus.UNAVAILABLE, "the node of the party is gone")

    async def _write(self) -> None:
        while True:
            await self._call.write(await self._out.get())


class Relay:
    """At the edge: which streams go elsewhere, and how."""

    def __init__(
        self,
        broker: "Broker",
        neighbours: Neighbours,
        nodes: Sequence[PresenceNode],
        *,
        redirect: bool,
    ) -> None:
        """`nodes` are all of them, this one too."""
        self._broker = broker
        self._neighbours = neighbours
        self._nodes = nodes
        self.redirect = redirect
        self._lines: dict[str, _Line] = {}

    def elsewhere(self, party_id: PartyId) -> PresenceNode | None:
        """The home of the party, if that is another node."""
        broker = self._broker
        if party_id in broker.adopted or party_id in broker.registry.parties:
            return None
        home = ranked(self._nodes, party_id)[0]
        return None if home.node_id == broker.owner.node_id else home

    def home(self, party_id: PartyId) -> Sequence[str]:
        node = self.elsewhere(party_id)
        return () if node is None else (node.client_endpoint,)

    def begin(self, conversation: Conversation, data: bytes, node: PresenceNode) -> bool:
        """The stream goes on at `node`; False if that cannot be."""
        line = self._lines.get(node.node_id)
        if line is None or line.broken:
            try:
                line = _Line(self._neighbours.relay(node))
            except NeighbourError as exc:
                self._broker.reports.store_trouble("relay", exc)
                return False
            self._lines[node.node_id] = line
            self._broker.run("relay", line.carry())
        relayed = line.begin(conversation, data)
        conversation.relayed = relayed
        return relayed is not None


# --- the other end --------------------------------------------------------------------------------


class RelayedStream:
    """At home: a `Stream` whose client is connected to another node."""

    def __init__(self, streams: "RelayedStreams", channel: int, peer: str, claims: bytes) -> None:
        self.holder: Any = None
        self.peer = peer
        self.authorization = claims.decode(errors="replace") or None
        self._streams = streams
        self._channel = channel
        self._under_way = 0
        self._taken = 0
        self._paused = False

    @property
    def writable(self) -> bool:
        return self._under_way < CREDIT

    def send(self, message: bytes) -> None:
        self._under_way += 1
        self._streams.say(RelayFrame(channel=self._channel, client_message=message))

    def finish(self, status: GrpcStatus, detail: str = "", *, discard_unsent: bool = False) -> None:
        self._streams.forget(self._channel)
        self._streams.say(RelayFrame(channel=self._channel, close=True, grpc_status=int(status)))

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._grant()

    def took(self) -> None:
        self._taken += 1
        self._grant()

    def _grant(self) -> None:
        while self._taken >= GRANT and not self._paused:
            self._taken -= GRANT
            self._streams.say(RelayFrame(channel=self._channel))

    def granted(self) -> bool:
        """Whether it can be written to again."""
        blocked = not self.writable
        self._under_way -= GRANT
        return blocked and self.writable


class RelayedStreams:
    """At home: all streams of one call."""

    def __init__(self, handler: StreamHandler, peer: str) -> None:
        self._handler = handler
        self._peer = peer
        self._streams: dict[int, RelayedStream] = {}
        self._out: asyncio.Queue[RelayFrame | None] = asyncio.Queue()  # rule 3 keeps it short

    def say(self, frame: RelayFrame) -> None:
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
            pass  # it ended while the frame was on its way
        elif frame.close and frame.grpc_status:
            self.forget(frame.channel)
            handler.closed(stream, Gone.TRANSPORT)
        elif frame.close:
            handler.half_closed(stream)
        elif frame.client_message:
            handler.message(stream, frame.client_message)
            stream.took()
        elif stream.granted():
            handler.unblocked(stream)
