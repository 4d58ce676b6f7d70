"""`PeerLink` of the cluster protocol: requests of other nodes to this one.

Rule 1: callers must present the cluster's token, and with mutual TLS a certificate as well.
Rule 2: a ticket is issued only while this node accepts sessions and has room, counting the tickets
        that were not used yet.
Rule 3: a transferred party is on disk before it is accepted.
"""

import hmac
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

from waystation.net.http2.methods import Caller, GrpcError, Service
from waystation.net.http2.port import GrpcStatus
from waystation.presence.errors import STORE_TROUBLE
from waystation.presence.model import PartyId, SessionRecord
from waystation.presence.node_state import NodeState
from waystation.presence.party.party_sync import PartySync
from waystation.presence.party.registry import Registry
from waystation.presence.reports import Reports
from waystation.presence.session.client_stream import StreamControl
from waystation.presence.session.session import State
from waystation.presence.session.session_end import SessionEnd
from waystation.presence.store import MovablePresenceStore
from waystation.presence.transport.rpc import method, session_key, unauthenticated
from waystation.presence.wire.presence_cluster_pb2 import (
    HandoffGrant,
    HandoffReply,
    HandoffRequest,
    PartyChunk,
    ProbeReply,
    ProbeRequest,
    RelayFrame,
    TransferReply,
)

from .handover_tickets import HandoverOffer, HandoverTickets
from .peer_clients import SERVICE
from .session_handover import OFFERS_MAX

TRANSFER_BYTES_MAX: Final = 64 << 20
RECENT_IDS_MAX: Final = 4096
Frames = Callable[[AsyncIterator[RelayFrame], Caller], AsyncIterator[RelayFrame]]


def has_cluster_token(caller: Caller, token: str) -> bool:
    """Whether the caller presents the cluster's token."""
    given = caller.authorization or ""
    return hmac.compare_digest(given.encode(), f"Bearer {token}".encode())


class PeerLink:
    def __init__(
        self,
        control: StreamControl,
        registry: Registry,
        session_end: SessionEnd,
        party_sync: PartySync,
        reports: Reports,
        *,
        node: NodeState,
        tickets: HandoverTickets,
        adopt: Callable[[PartyId, Sequence[SessionRecord]], None],
        token: str,
        client_endpoint: Callable[[], str],
        movable: MovablePresenceStore | None,
        relayed: Frames | None,
    ) -> None:
        """`adopt` is called for a party that was moved here, with its sessions; `relayed` serves
        streams that other nodes pass on, if they do."""
        self._control = control
        self._registry = registry
        self._session_end = session_end
        self._party_sync = party_sync
        self._reports = reports
        self._node = node
        self._tickets = tickets
        self._adopt = adopt
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
        if not has_cluster_token(caller, self._token):
            unauthenticated()

    # --- handover --------------------------------------------------------------------------------

    async def _prepare(self, request: HandoffRequest, caller: Caller) -> HandoffReply:
        await self._admit(caller)
        if len(request.offers) > OFFERS_MAX:
            raise GrpcError(GrpcStatus.INVALID_ARGUMENT, f"at most {OFFERS_MAX} offers at once")
        grants = [self._grant(offer) for offer in request.offers]
        parties = {grant.key.party_id for grant in grants if grant.accepted}
        for party_id in parties:
            self._control.run("preload", self._party_sync.preload(PartyId(party_id)))
        return HandoffReply(grants=grants, client_endpoint=self._client_endpoint())

    def _grant(self, offer: Any) -> HandoffGrant:
        registry, settings, node = self._registry, self._registry.settings, self._node
        key = session_key(offer.key)
        room = len(registry.sessions) + len(self._tickets) < settings.node_sessions_max
        ready = not (node.draining or node.overloaded or node.fenced())
        if not (all(key) and room and ready):
            return HandoffGrant(key=offer.key, accepted=False)
        now = registry.now()
        ticket = self._tickets.issue(
            HandoverOffer(
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
        refused = TransferReply(accepted=False)
        parts: list[bytes] = []
        size, party_id, whole = 0, 0, False
        async for chunk in chunks:
            size += len(chunk.state)
            if size > TRANSFER_BYTES_MAX or (party_id and chunk.party_id != party_id):
                raise GrpcError(
                    GrpcStatus.INVALID_ARGUMENT,
                    f"chunks of several parties, or more than {TRANSFER_BYTES_MAX} bytes",
                )
            party_id = chunk.party_id
            parts.append(chunk.state)
            whole = chunk.last
        if self._movable is None or not whole or not party_id:
            return refused
        if self._node.draining or PartyId(party_id) in self._registry.parties:
            return refused
        try:
            records = await self._movable.take_in(PartyId(party_id), b"".join(parts))
        except ValueError:
            return refused
        except STORE_TROUBLE as exc:
            self._reports.store_trouble("party move", exc)
            return refused
        if records is None:
            return refused
        self._session_end.moved.pop(PartyId(party_id))
        self._adopt(PartyId(party_id), records)
        return TransferReply(accepted=True, client_endpoint=self._client_endpoint())

    # --- probes and relayed streams --------------------------------------------------------------

    async def _probe(self, request: ProbeRequest, caller: Caller) -> ProbeReply:
        await self._admit(caller)
        session = self._registry.sessions.get(session_key(request.key))
        if session is None or (request.fence and session.fence != request.fence):
            return ProbeReply()
        now = self._registry.now()
        return ProbeReply(
            stream_alive=session.state is State.ACTIVE,
            last_message_ms=now.ms - round((now.mono - session.last_rx) * 1000),
        )

    async def _relay(
        self, frames: AsyncIterator[RelayFrame], caller: Caller
    ) -> AsyncIterator[RelayFrame]:
        await self._admit(caller)
        if self._relayed is None:
            raise GrpcError(
                GrpcStatus.UNIMPLEMENTED, "this node relays no streams (presence.peers is empty)"
            )
        async for frame in self._relayed(frames, caller):
            yield frame
