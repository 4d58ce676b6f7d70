"""What other nodes may ask of this one: `PeerLink` of the cluster protocol.

Rule 1: nobody but nodes of the cluster is answered: they show its secret's token, and with mutual
        TLS a certificate as well.
Rule 2: a ticket is given only while this node would take the session: it is ready and has room,
        counting the tickets that are out.
Rule 3: a party that is handed over is on disk here before it is accepted.
"""

import hmac
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Final

from waystation.net.http2.methods import Caller, GrpcError, Service
from waystation.net.http2.port import GrpcStatus

from .errors import STORE_TROUBLE
from .handoff import Offer
from .handover import OFFERS_MAX
from .model import PartyId
from .neighbours import SERVICE
from .rpc import method, session_key, unauthenticated
from .session import State
from .store import MovablePresenceStore
from .wire.presence_cluster_pb2 import (
    HandoffGrant,
    HandoffReply,
    HandoffRequest,
    PartyChunk,
    ProbeReply,
    ProbeRequest,
    RelayFrame,
    TransferReply,
)

if TYPE_CHECKING:
    from .broker import Broker

TRANSFER_BYTES_MAX: Final = 64 << 20
RECENT_IDS_MAX: Final = 4096
Frames = Callable[[AsyncIterator[RelayFrame], Caller], AsyncIterator[RelayFrame]]


def shows(caller: Caller, token: str) -> bool:
    """Whether the caller has the cluster's token."""
    given = caller.authorization or ""
    return hmac.compare_digest(given.encode(), f"Bearer {token}".encode())


class PeerLink:
    def __init__(
        self,
        broker: "Broker",
        *,
        token: str,
        client_endpoint: Callable[[], str],
        movable: MovablePresenceStore | None,
        relayed: Frames | None,
    ) -> None:
        """`relayed` serves streams that other nodes pass on, if they do."""
        self._broker = broker
        self._token = token
        self._client_endpoint = client_endpoint
        self._movable = movable
        self._relayed = relayed

    @property
    def service(self) -> Service:
        methods = {
            "PrepareHandoff": method(self._prepare, HandoffRequest, HandoffReply),
            "TransferParty": method(self._transfer, PartyChunk, TransferReply, many_in=True),
            "ProbeSession": method(self._probe, ProbeRequest, ProbeReply),
            "Relay": method(self._relay, RelayFrame, RelayFrame, many_in=True, many_out=True),
        }
        return Service(SERVICE, methods)

    async def _admit(self, caller: Caller) -> None:
        if not shows(caller, self._token):
            unauthenticated()

    # --- hand-off --------------------------------------------------------------------------------

    async def _prepare(self, request: HandoffRequest, caller: Caller) -> HandoffReply:
        await self._admit(caller)
        if len(request.offers) > OFFERS_MAX:
            raise GrpcError(GrpcStatus.INVALID_ARGUMENT, f"at most {OFFERS_MAX} offers at once")
        grants = [self._grant(offer) for offer in request.offers]
        parties = {grant.key.party_id for grant in grants if grant.accepted}
        for party_id in parties:
            self._broker.run("preload", self._broker.following.preload(PartyId(party_id)))
        return HandoffReply(grants=grants, client_endpoint=self._client_endpoint())

    def _grant(self, offer: Any) -> HandoffGrant:
        broker = self._broker
        registry, settings = broker.registry, broker.settings
        key = session_key(offer.key)
        room = len(registry.sessions) + len(broker.tickets) < settings.node_sessions_max
        ready = not (broker.draining or broker.overloaded or broker.fenced())
        if not (all(key) and room and ready):
            return HandoffGrant(key=offer.key, accepted=False)
        now = registry.now()
        ticket = broker.tickets.issue(
            Offer(
                key=key,
                fence=offer.fence,
                cursor=offer.cursor,
                acked_above_cursor=tuple(offer.acked_above_cursor[: settings.party_log]),
                recent_client_ids=tuple(offer.recent_client_ids[-RECENT_IDS_MAX:]),
            ),
            now.mono,
        )
        expires_ms = now.ms + round(settings.ticket_s * 1000)
        return HandoffGrant(key=offer.key, ticket=ticket, expires_ms=expires_ms, accepted=True)

    async def _transfer(self, chunks: AsyncIterator[PartyChunk], caller: Caller) -> TransferReply:
        await self._admit(caller)
        broker = self._broker
        refused = TransferReply(accepted=False)
        parts: list[bytes] = []
        size, party_id, whole = 0, 0, False
        async for chunk in chunks:
            size += len(chunk.state)
            if size > TRANSFER_BYTES_MAX or (party_id and chunk.party_id != party_id):
                raise GrpcError(GrpcStatus.INVALID_ARGUMENT, "not one party, or too much")
            party_id = chunk.party_id
            parts.append(chunk.state)
            whole = chunk.last
        if self._movable is None or not whole or not party_id:
            return refused
        if broker.draining or PartyId(party_id) in broker.registry.parties:
            return refused
        try:
            records = await self._movable.take_in(PartyId(party_id), b"".join(parts))
        except ValueError:
            return refused
        except STORE_TROUBLE as exc:
            broker.reports.store_trouble("party move", exc)
            return refused
        if records is None:
            return refused
        broker.departures.moved.pop(PartyId(party_id))
        broker.adopted.put(PartyId(party_id), True)
        for record in records:
            broker.timekeeper.expect(record)
        return TransferReply(accepted=True, client_endpoint=self._client_endpoint())

    # --- questions and streams -------------------------------------------------------------------

    async def _probe(self, request: ProbeRequest, caller: Caller) -> ProbeReply:
        await self._admit(caller)
        session = self._broker.registry.sessions.get(session_key(request.key))
        if session is None or (request.fence and session.fence != request.fence):
            return ProbeReply()
        now = self._broker.registry.now()
        return ProbeReply(
            stream_alive=session.state is State.ACTIVE,
            last_message_ms=now.ms - round((now.mono - session.last_rx) * 1000),
        )

    async def _relay(
        self, frames: AsyncIterator[RelayFrame], caller: Caller
    ) -> AsyncIterator[RelayFrame]:
        await self._admit(caller)
        if self._relayed is None:
            raise GrpcError(GrpcStatus.UNIMPLEMENTED, "nothing is relayed here")
        async for frame in self._relayed(frames, caller):
            yield frame
