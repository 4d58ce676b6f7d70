"""What operators may ask: `PresenceAdmin` of the cluster protocol.

Rule 1: who asks shows a JWT with the admin grant, the cluster's token, or a certificate that the
        port's own TLS has verified. A grant of `kick` in a party lets its bearer see that party and
        remove sessions from it.
Rule 2: a session that is removed is told why, wherever it is: the log carries its LEAVE to its
        node.
"""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

import grpc
from grpc import aio

from .directory import node_row
from .errors import STORE_TROUBLE, NotAllowedError
from .grants import Grant, bearer
from .model import PartyId, SessionRecord, Status
from .peer import shows
from .rpc import add_service, authorization, method, unauthenticated
from .store import PresenceNode
from .wire import presence_cluster_pb2 as pb

if TYPE_CHECKING:
    from .broker import Broker

SERVICE: Final = "partypresence.cluster.v1.PresenceAdmin"
DRAIN_S_MAX: Final = 3600.0

Drain = Callable[[float], Coroutine[Any, Any, None]]


class PresenceAdmin:
    def __init__(
        self,
        broker: "Broker",
        *,
        token: str,
        describe: Callable[[], PresenceNode],
        drain: Drain,
        undo_drain: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._broker = broker
        self._token = token
        self._describe = describe
        self._drain_node = drain
        self._undo_drain = undo_drain

    def add(self, server: aio.Server) -> None:
        methods = {
            "GetParty": method(self._get_party, pb.PartyRequest, pb.PartyView),
            "Kick": method(self._kick, pb.KickRequest, pb.Count),
            "CloseParty": method(self._close_party, pb.PartyRequest, pb.Count),
            "Drain": method(self._drain, pb.DrainRequest, pb.Node),
        }
        add_service(server, SERVICE, methods)

    async def _admit(self, context: Any, party_id: int | None = None) -> None:
        """Returns for an operator; for `party_id` also for whoever may remove its sessions."""
        if shows(context, self._token) or context.auth_context().get("x509_common_name"):
            return
        grant: Grant | None = None
        authority = self._broker.authority
        if authority is not None:
            try:
                grant = await authority.verify(bearer(authorization(context)))
            except NotAllowedError:
                grant = None
        if grant is None:
            await unauthenticated(context)
            return
        if grant.admin or (party_id is not None and grant.allows("kick", PartyId(party_id))):
            return
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED")

    async def _get_party(self, request: pb.PartyRequest, context: Any) -> pb.PartyView:
        await self._admit(context, request.party_id)
        snapshot = await self._snapshot(request.party_id, context)
        if snapshot is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such party")
            return pb.PartyView()
        return pb.PartyView(
            party_id=request.party_id,
            epoch=snapshot.epoch,
            seq=snapshot.seq,
            sessions=[_session_row(one) for one in snapshot.sessions],
        )

    async def _kick(self, request: pb.KickRequest, context: Any) -> pb.Count:
        key = request.key
        await self._admit(context, key.party_id)
        snapshot = await self._snapshot(key.party_id, context)
        wanted = [
            one
            for one in (snapshot.sessions if snapshot is not None else ())
            if one.key.client_id == key.client_id
            and (request.all_sessions_of_client or one.key.session_id == key.session_id)
        ]
        return await self._remove(wanted, Status.REMOVED_BY_ADMIN, context)

    async def _close_party(self, request: pb.PartyRequest, context: Any) -> pb.Count:
        await self._admit(context)
        snapshot = await self._snapshot(request.party_id, context)
        sessions = list(snapshot.sessions) if snapshot is not None else []
        return await self._remove(sessions, Status.PARTY_CLOSED, context)

    async def _drain(self, request: pb.DrainRequest, context: Any) -> pb.Node:
        await self._admit(context)
        mine = self._broker.owner.node_id
        if request.node_id not in ("", mine):
            await context.abort(grpc.StatusCode.NOT_FOUND, f"this is {mine}")
        broker = self._broker
        if request.undo:
            await self._undo_drain()
        elif not broker.draining:
            given_s = request.timeout_ms / 1000 or broker.settings.drain_timeout_s
            started = self._drain_node(min(given_s, DRAIN_S_MAX))
            broker.run("drain", started)
        return node_row(self._describe())

    # --- steps -----------------------------------------------------------------------------------

    async def _snapshot(self, party_id: int, context: Any) -> Any:
        try:
            return await self._broker.store.snapshot(PartyId(party_id))
        except STORE_TROUBLE as exc:
            await self._unavailable(exc, context)

    async def _remove(self, records: list[SessionRecord], code: Status, context: Any) -> pb.Count:
        """Through the store: whoever holds the session learns of it from the log."""
        broker, count = self._broker, 0
        try:
            for record in records:
                session = broker.registry.sessions.get(record.key)
                if session is not None:
                    await broker.departures.remove(session, code)
                    count += 1
                elif await broker.store.leave(record.key, 0, code) is not None:
                    count += 1
        except STORE_TROUBLE as exc:
            await self._unavailable(exc, context)
        return pb.Count(affected=count)

    async def _unavailable(self, exc: Exception, context: Any) -> None:
        self._broker.reports.store_trouble("admin", exc)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the store does not answer")


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
