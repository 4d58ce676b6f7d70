"""Client of `PresenceAdmin`, the service of the cluster protocol for operators."""

from types import TracebackType
from typing import Any, Self, cast

import grpc
import msgspec
from grpc import aio

from waystation.base.errors import UnavailableError
from waystation.presence.wire import presence_cluster_pb2 as pb

SERVICE = "partypresence.cluster.v1.PresenceAdmin"
TIMEOUT_S = 10.0


class AdminError(UnavailableError):
    """The node refused the request or did not answer; the text says why."""

    label = "presence_admin"


class PartySummary(msgspec.Struct, frozen=True):
    """A party of which the node holds at least one session."""

    party_id: int
    sessions: int
    clients: int
    sessions_here: int
    seq: int


class Parties(msgspec.Struct, frozen=True):
    node_id: str
    draining: bool
    total: int
    parties: list[PartySummary]


class PartySession(msgspec.Struct, frozen=True):
    client_id: int
    session_id: int
    state: str
    node_id: str
    cursor: int
    joined_at_ms: int


class PartyDetail(msgspec.Struct, frozen=True):
    party_id: int
    epoch: int
    seq: int
    sessions: list[PartySession]


class PresenceAdmin:
    """Client of one node. Methods raise `AdminError`."""

    def __init__(
        self, target: str, token: str, credentials: grpc.ChannelCredentials | None = None
    ) -> None:
        """`token` is the cluster's (made of its secret) or a JWT with the admin grant."""
        self._target = target
        self._metadata = (("authorization", f"Bearer {token}"),)
        self._channel = (
            aio.insecure_channel(target)
            if credentials is None
            else aio.secure_channel(target, credentials)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._channel.close()

    async def parties(self, limit: int = 0) -> Parties:
        answer: Any = await self._ask(
            "ListParties", pb.ListPartiesRequest(limit=limit), pb.PartyList
        )
        return Parties(
            node_id=answer.node_id,
            draining=answer.draining,
            total=answer.total,
            parties=[
                PartySummary(
                    party_id=one.party_id,
                    sessions=one.sessions,
                    clients=one.clients,
                    sessions_here=one.sessions_here,
                    seq=one.seq,
                )
                for one in answer.parties
            ],
        )

    async def party(self, party_id: int) -> PartyDetail | None:
        """None if there is no such party."""
        request = pb.PartyRequest(party_id=party_id)
        answer: Any = await self._ask("GetParty", request, pb.PartyView, absent=True)
        if answer is None:
            return None
        return PartyDetail(
            party_id=answer.party_id,
            epoch=answer.epoch,
            seq=answer.seq,
            sessions=[
                PartySession(
                    client_id=one.key.client_id,
                    session_id=one.key.session_id,
                    state=one.state,
                    node_id=one.owner,
                    cursor=one.cursor,
                    joined_at_ms=one.joined_ms,
                )
                for one in answer.sessions
            ],
        )

    async def kick(self, party_id: int, client_id: int, session_id: int | None = None) -> int:
        """Ends one session of a client, or all of them; returns how many ended."""
        key = pb.SessionKey(party_id=party_id, client_id=client_id, session_id=session_id or 0)
        request = pb.KickRequest(key=key, all_sessions_of_client=session_id is None)
        answer: Any = await self._ask("Kick", request, pb.Count)
        return answer.affected

    async def close_party(self, party_id: int) -> int:
        """Ends every session of a party; returns how many ended."""
        answer: Any = await self._ask("CloseParty", pb.PartyRequest(party_id=party_id), pb.Count)
        return answer.affected

    async def drain(self, timeout_s: float = 0.0, *, undo: bool = False) -> int:
        """The node refuses new sessions and hands over its own; returns how many it has."""
        request = pb.DrainRequest(timeout_ms=round(timeout_s * 1000), undo=undo)
        answer: Any = await self._ask("Drain", request, pb.Node)
        return answer.sessions

    async def _ask(self, method: str, request: Any, reply: Any, *, absent: bool = False) -> Any:
        kind = cast(Any, type(request))
        call: Any = self._channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=kind.SerializeToString,
            response_deserializer=reply.FromString,
        )
        try:
            return await call(request, metadata=self._metadata, timeout=TIMEOUT_S)
        except aio.AioRpcError as exc:
            if absent and exc.code() is grpc.StatusCode.NOT_FOUND:
                return None
            raise AdminError(self._reason(exc)) from exc

    def _reason(self, exc: aio.AioRpcError) -> str:
        match exc.code():
            case grpc.StatusCode.UNAUTHENTICATED:
                return f"{self._target} does not accept the token"
            case grpc.StatusCode.PERMISSION_DENIED:
                return f"the token does not allow this at {self._target}"
            case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.DEADLINE_EXCEEDED:
                return (
                    f"{self._target} does not answer; is `waystation serve presence` running there?"
                )
            case code:
                return f"{self._target} answers {code.name}: {exc.details()}"
