"""`PresenceAdmin` of the cluster protocol: requests of operators.

Rule 1: callers present a JWT with the admin grant, the cluster's token, or a certificate that the
        TLS of the port has verified. The grant `kick` in a party allows its bearer to see that
        party and to remove sessions from it.
Rule 2: a removed session is told the reason on any node: the log carries its LEAVE there.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Final

from waystation.net.http2.methods import Caller, GrpcError, Service
from waystation.net.http2.port import GrpcStatus
from waystation.presence.cluster.directory import node_row
from waystation.presence.cluster.peer_link import has_cluster_token
from waystation.presence.errors import STORE_TROUBLE, NotAllowedError
from waystation.presence.grants import Authority, Grant, bearer
from waystation.presence.model import PartyId, SessionRecord, Status
from waystation.presence.node_state import NodeState
from waystation.presence.party.registry import Registry
from waystation.presence.reports import Reports
from waystation.presence.session.session_end import SessionEnd
from waystation.presence.store import PresenceNode, PresenceStore
from waystation.presence.wire import presence_cluster_pb2 as pb

from .rpc import method, unauthenticated

SERVICE: Final = "partypresence.cluster.v1.PresenceAdmin"
DRAIN_S_MAX: Final = 3600.0
PARTIES_MAX: Final = 1000  # of one list

Drain = Callable[[float], None]


class PresenceAdmin:
    def __init__(
        self,
        registry: Registry,
        store: PresenceStore,
        session_end: SessionEnd,
        reports: Reports,
        *,
        node: NodeState,
        authority: Authority | None,
        token: str,
        describe: Callable[[], PresenceNode],
        drain: Drain,
        undo_drain: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """`drain` starts a drain of so many seconds and returns."""
        self._registry = registry
        self._store = store
        self._session_end = session_end
        self._reports = reports
        self._node = node
        self._authority = authority
        self._token = token
        self._describe = describe
        self._drain_node = drain
        self._undo_drain = undo_drain

    @property
    def service(self) -> Service:
        methods = {
            "ListParties": method(self._list_parties, pb.ListPartiesRequest, pb.PartyList),
            "GetParty": method(self._get_party, pb.PartyRequest, pb.PartyView),
            "Kick": method(self._kick, pb.KickRequest, pb.Count),
            "CloseParty": method(self._close_party, pb.PartyRequest, pb.Count),
            "Drain": method(self._drain, pb.DrainRequest, pb.Node),
        }
        return Service(SERVICE, methods)

    async def _admit(self, caller: Caller, party_id: int | None = None) -> None:
        """Raises unless the caller is an operator or has the grant `kick` in `party_id`."""
        if has_cluster_token(caller, self._token) or caller.certified:
            return
        grant: Grant | None = None
        authority = self._authority
        if authority is not None:
            try:
                grant = await authority.verify(bearer(caller.authorization))
            except NotAllowedError:
                grant = None
        if grant is None:
            unauthenticated()
        if grant.admin or (party_id is not None and grant.allows("kick", PartyId(party_id))):
            return
        raise GrpcError(GrpcStatus.PERMISSION_DENIED, "PERMISSION_DENIED")

    async def _list_parties(self, request: pb.ListPartiesRequest, caller: Caller) -> pb.PartyList:
        await self._admit(caller)
        here = [party for party in self._registry.parties.values() if party.sessions]
        here.sort(key=lambda party: (-party.roster.size, party.party_id))
        wanted = here[: min(request.limit or PARTIES_MAX, PARTIES_MAX)]
        return pb.PartyList(
            parties=[
                pb.PartySummary(
                    party_id=party.party_id,
                    sessions=party.roster.size,
                    clients=party.roster.clients,
                    sessions_here=len(party.sessions),
                    seq=party.seq,
                )
                for party in wanted
            ],
            total=len(here),
            node_id=self._node.node_id,
            draining=self._node.draining,
        )

    async def _get_party(self, request: pb.PartyRequest, caller: Caller) -> pb.PartyView:
        await self._admit(caller, request.party_id)
        snapshot = await self._snapshot(request.party_id)
        if snapshot is None:
            raise GrpcError(GrpcStatus.NOT_FOUND, "there is no such party")
        return pb.PartyView(
            party_id=request.party_id,
            epoch=snapshot.epoch,
            seq=snapshot.seq,
            sessions=[_session_row(one) for one in snapshot.sessions],
        )

    async def _kick(self, request: pb.KickRequest, caller: Caller) -> pb.Count:
        key = request.key
        await self._admit(caller, key.party_id)
        snapshot = await self._snapshot(key.party_id)
        wanted = [
            one
            for one in (snapshot.sessions if snapshot is not None else ())
            if one.key.client_id == key.client_id
            and (request.all_sessions_of_client or one.key.session_id == key.session_id)
        ]
        return await self._remove(wanted, Status.REMOVED_BY_ADMIN)

    async def _close_party(self, request: pb.PartyRequest, caller: Caller) -> pb.Count:
        await self._admit(caller)
        snapshot = await self._snapshot(request.party_id)
        sessions = list(snapshot.sessions) if snapshot is not None else []
        return await self._remove(sessions, Status.PARTY_CLOSED)

    async def _drain(self, request: pb.DrainRequest, caller: Caller) -> pb.Node:
        await self._admit(caller)
        mine = self._node.node_id
        if request.node_id not in ("", mine):
            raise GrpcError(
                GrpcStatus.NOT_FOUND, f"this node is {mine}; ask {request.node_id} itself"
            )
        if request.undo:
            await self._undo_drain()
        elif not self._node.draining:
            given_s = request.timeout_ms / 1000 or self._registry.settings.drain_timeout_s
            self._drain_node(min(given_s, DRAIN_S_MAX))
        return node_row(self._describe())

    # --- steps -----------------------------------------------------------------------------------

    async def _snapshot(self, party_id: int) -> Any:
        try:
            return await self._store.snapshot(PartyId(party_id))
        except STORE_TROUBLE as exc:
            raise self._unavailable(exc) from exc

    async def _remove(self, records: list[SessionRecord], code: Status) -> pb.Count:
        """Removes sessions through the store; their nodes learn of it from the log."""
        count = 0
        try:
            for record in records:
                session = self._registry.sessions.get(record.key)
                if session is not None:
                    await self._session_end.remove(session, code)
                    count += 1
                elif await self._store.leave(record.key, 0, code) is not None:
                    count += 1
        except STORE_TROUBLE as exc:
            raise self._unavailable(exc) from exc
        return pb.Count(affected=count)

    def _unavailable(self, exc: Exception) -> GrpcError:
        self._reports.store_trouble("admin", exc)
        return GrpcError(GrpcStatus.UNAVAILABLE, "the store does not answer; ask again")


def _session_row(record: SessionRecord) -> pb.SessionView:
    key = record.key
    return pb.SessionView(
        key=pb.SessionKey(
            party_id=key.party_id, client_id=key.client_id, session_id=key.session_id
        ),
        state="active" if record.active else "detached",
        owner=record.owner,
        fence=record.fence,
        cursor=record.cursor,
        joined_ms=record.joined_at_ms,
        deadline_ms=record.deadline_ms,
    )
