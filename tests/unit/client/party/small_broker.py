"""A broker of eighty lines for tests of the client's gRPC driver."""

import itertools
import socket
from typing import Self

from waystation.base.clock import SystemClock
from waystation.net.http2.port import Gone, GrpcStatus, Stream
from waystation.net.http2.server import Http2Server
from waystation.net.loop import NetLoop
from waystation.presence.transport.rpc import paths
from waystation.presence.wire import party_presence_pb2 as pb
from waystation.presence.wire.party_presence_pb2 import ClientMessage

STATUS_ENDS: dict[int, GrpcStatus] = {pb.PARTY_FULL: GrpcStatus.RESOURCE_EXHAUSTED}


class SmallBroker:
    """One party. `refuse_with` is said to every JOIN, `token` is asked of every stream."""

    def __init__(self, *, ttl_ms: int = 120_000) -> None:
        self.ttl_ms = ttl_ms
        self.refuse_with = 0
        self.token: str | None = None
        self.acks: list[list[int]] = []
        self.auths: list[str] = []
        self.joins: list[ClientMessage] = []
        self.leaves = 0
        self.streams: dict[int, Stream] = {}  # by session
        self._members: dict[int, int] = {}  # session -> client
        self._ids = itertools.count(1 << 63 | 1)
        self._seq = 0
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    async def __aenter__(self) -> Self:
        clock = SystemClock()
        self._net = NetLoop(clock=clock)
        routes = dict.fromkeys(paths(()), self)
        self._server = Http2Server(routes, self._listener, net=self._net, clock=clock)
        self._server.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._server.close()
        self._net.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def opened(self, stream: Stream) -> None:
        if self.token is not None and stream.authorization != f"Bearer {self.token}":
            stream.finish(GrpcStatus.UNAUTHENTICATED, "UNAUTHENTICATED")

    def message(self, stream: Stream, data: bytes) -> None:
        message = ClientMessage.FromString(data)
        if message.ack_message_ids:
            self.acks.append(list(message.ack_message_ids))
        if message.message_type == pb.JOIN:
            self._join(stream, message)
        elif message.message_type == pb.LEAVE:
            self._answer(stream, message)
            stream.finish(GrpcStatus.OK)
            self.leaves += 1
            self.remove(stream.holder, pb.OK)
        elif message.message_type == pb.AUTH:
            self.auths.append(message.auth_token)
            self._answer(stream, message, status_code=pb.TOKEN_ACCEPTED)
        elif message.message_type != pb.ACK:
            self._answer(stream, message)

    def half_closed(self, stream: Stream) -> None:
        stream.finish(GrpcStatus.OK)

    def closed(self, stream: Stream, why: Gone) -> None:
        if self.streams.get(stream.holder) is stream:
            del self.streams[stream.holder]

    def unblocked(self, stream: Stream) -> None: ...

    def remove(self, session_id: int, code: int) -> None:
        client_id = self._members.pop(session_id)
        self.streams.pop(session_id, None)
        self._announce(pb.LEAVE, client_id, session_id, status_code=code)

    def say(self, session_id: int, **fields: object) -> None:
        message = ClientMessage(message_id=next(self._ids), **fields)  # type: ignore[arg-type]
        self.streams[session_id].send(message.SerializeToString())

    def _join(self, stream: Stream, message: ClientMessage) -> None:
        self.joins.append(message)
        if self.refuse_with:
            code = self.refuse_with
            kind = {"message_type": pb.ERROR, "status_code": code}
            self._answer(stream, message, **kind)
            stream.finish(STATUS_ENDS.get(code, GrpcStatus.UNAVAILABLE))
            return
        session_id = stream.holder = message.session_id
        resumed = session_id in self._members
        self.streams[session_id] = stream
        self._answer(
            stream,
            message,
            status_code=pb.SESSION_RESUMED if resumed else pb.OK,
            resume_token=b"token",
            session_ttl_ms=self.ttl_ms,
        )
        others = sorted(one for one in self._members if one != session_id)
        entries = [
            pb.ClientSessionIdEntry(client_id=self._members[one], session_id=[one])
            for one in others
        ]
        self.say(
            session_id,
            message_type=pb.LIST,
            party_seq=self._seq,
            party_epoch=1,
            participant_client_ids=entries,
        )
        if not resumed:
            self._members[session_id] = message.client_id
            self._announce(pb.JOIN, message.client_id, session_id)

    def _answer(self, stream: Stream, message: ClientMessage, **fields: object) -> None:
        fields = {"message_type": pb.ACK, **fields}
        ids = [message.message_id]
        stream.send(ClientMessage(ack_message_ids=ids, **fields).SerializeToString())  # type: ignore[arg-type]

    def _announce(self, kind: int, client_id: int, about: int, **fields: object) -> None:
        self._seq += 1
        data = ClientMessage(
            message_type=kind,  # type: ignore[arg-type]
            client_id=client_id,
            session_id=about,
            party_seq=self._seq,
            party_epoch=1,
            message_id=next(self._ids),
            client_session_count=1,
            **fields,  # type: ignore[arg-type]
        ).SerializeToString()
        for session_id, stream in self.streams.items():
            if session_id != about:
                stream.send(data)
