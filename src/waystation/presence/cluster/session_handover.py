"""Hands sessions over to other nodes: all of them in a drain, the excess when a node has too many.

Rule 1: the target node issues a ticket for each session before the client is told to move. Until
        the client has moved, its stream here works as before.
Rule 2: targets are ready nodes, those of the same zone first, then by fewest sessions, counting
        sessions that were just offered to them.
Rule 3: where several nodes share one client endpoint, clients get no ticket, because it could reach
        the wrong node. Their resume token is valid on each of them.
Rule 4: a node sheds the sessions above the mean of all ready nodes when it has more than
        `shed_excess` above that mean.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from waystation.base.limits import BoundedLru
from waystation.presence.errors import STORE_TROUBLE, PeerError
from waystation.presence.model import EXTENDED, MessageType, PartyId, Status
from waystation.presence.node_state import NodeState
from waystation.presence.party.party import Party
from waystation.presence.party.registry import Registry
from waystation.presence.reports import Reports
from waystation.presence.session.session import Session, State
from waystation.presence.session.session_end import SessionEnd
from waystation.presence.store import MovablePresenceStore, PresenceNode
from waystation.presence.wire import server_messages as write
from waystation.presence.wire.presence_cluster_pb2 import HandoffOffer, HandoffRequest, SessionKey

from .peer_clients import PeerClients

OFFERS_MAX: Final = 500  # of one request
PACE_S: Final = 0.1
OFFER_AGAIN_S: Final = 1.0
JITTER: Final = 0.5  # share of a pause
PROMISED_MAX: Final = 1000
SETTLE_S: Final = 10.0  # wait for writes of the party that are in progress


def excess(mine: int, nodes: Sequence[PresenceNode], own_id: str, *, share: float) -> int:
    """How many sessions a node with `mine` has above the mean (rule 4)."""
    counts = [node.sessions for node in nodes if node.state == "ready" and node.node_id != own_id]
    if not counts:
        return 0
    mean = (mine + sum(counts)) / (1 + len(counts))
    return round(mine - mean) if mine > mean * (1 + share) else 0


class SessionHandover:
    def __init__(
        self,
        registry: Registry,
        session_end: SessionEnd,
        reports: Reports,
        peer_clients: PeerClients,
        nodes: Callable[[], Sequence[PresenceNode]],
        *,
        node: NodeState,
        movable: MovablePresenceStore | None = None,
        chance: random.Random | None = None,
    ) -> None:
        """`movable` is the store, if it is not shared and parties move as a whole."""
        self._registry = registry
        self._settings = registry.settings
        self._session_end = session_end
        self._reports = reports
        self._node = node
        self._peer_clients = peer_clients
        self._nodes = nodes
        self._movable = movable
        self._chance = chance or random.Random()
        self._promised: BoundedLru[str, int] = BoundedLru(PROMISED_MAX)
        self._stopped = False

    # --- targets ---------------------------------------------------------------------------------

    def candidates(self) -> list[PresenceNode]:
        """Target nodes, best first (rule 2)."""
        zone, mono = self._settings.zone, self._registry.now().mono

        def weight(node: PresenceNode) -> tuple[bool, int]:
            return node.zone != zone, node.sessions + (self._promised.get(node.node_id, mono) or 0)

        ready = [
            node
            for node in self._nodes()
            if node.state == "ready" and node.node_id != self._node.node_id and node.peer_endpoint
        ]
        return sorted(ready, key=weight)

    def _promise(self, node: PresenceNode, count: int) -> None:
        settings, mono = self._settings, self._registry.now().mono
        before = self._promised.get(node.node_id, mono) or 0
        self._promised.put(node.node_id, before + count, mono + 2 * settings.heartbeat_s)

    # --- sessions --------------------------------------------------------------------------------

    async def offer_sessions(self, sessions: Sequence[Session], deadline_ms: int) -> int:
        """Offers sessions to other nodes; returns how many clients were told to move."""
        told = 0
        for at in range(0, len(sessions), OFFERS_MAX):
            portion = [one for one in sessions[at : at + OFFERS_MAX] if self._may_move(one)]
            for node in self.candidates():
                if not portion:
                    break
                try:
                    given = await self._offer(node, portion, deadline_ms)
                except PeerError as exc:
                    self._reports.store_trouble(f"handoff to {node.node_id}", exc)
                    continue
                self._promise(node, len(given))
                told += len(given)
                portion = [one for one in portion if one not in given]
            if portion:
                self._reports.handed_off("refused", len(portion))
        return told

    async def _offer(
        self, node: PresenceNode, sessions: Sequence[Session], deadline_ms: int
    ) -> set[Session]:
        owner = self._node.owner
        request = HandoffRequest(
            from_node=owner.node_id,
            from_incarnation=owner.incarnation,
            offers=[offer_of(session) for session in sessions],
        )
        reply = await self._peer_clients.prepare(node, request)
        tickets = {_key(grant.key): grant for grant in reply.grants if grant.accepted}
        endpoint = reply.client_endpoint or node.client_endpoint
        shared = Counter(one.client_endpoint for one in self._nodes())[node.client_endpoint] > 1
        given: set[Session] = set()
        for session in sessions:
            grant = tickets.get(session.key)
            if grant is None or not self._may_move(session):
                continue
            now = self._registry.now()
            session.handed_until = now.mono + max(0.0, (grant.expires_ms - now.ms) / 1000)
            info = write.handoff_info(
                [endpoint],
                ticket=b"" if shared else grant.ticket,
                deadline_ms=min(deadline_ms, grant.expires_ms),
            )
            delivery = session.delivery
            message_id = delivery.next_id()
            data = write.advice(
                message_id,
                now.ms,
                MessageType.HANDOFF,
                status=Status.HANDOFF_REQUIRED,
                handoff=info,
            )
            delivery.send_local(message_id, data, MessageType.HANDOFF, now.mono)
            given.add(session)
        self._reports.handed_off("offered", len(given))
        return given

    def _may_move(self, session: Session) -> bool:
        """Whether the client knows HANDOFF, has a stream and was not told to move already."""
        return (
            session.state is State.ACTIVE
            and bool(session.flags & EXTENDED)
            and not session.leaving
            and session.handed_until <= self._registry.now().mono
        )

    # --- drain -----------------------------------------------------------------------------------

    async def drain(self, deadline_ms: int) -> None:
        """Hands over all sessions or parties, at `handoff_rate_per_s` with jitter."""
        self._stopped = False
        if self._movable is not None:
            await self._move_parties(deadline_ms)
        else:
            await self._hand_over_all(deadline_ms)

    async def _hand_over_all(self, deadline_ms: int) -> None:
        """Offers sessions again until each was accepted or the deadline is over."""
        registry, rate = self._registry, self._settings.handoff_rate_per_s
        while not self._stopped and registry.now().ms < deadline_ms:
            waiting = [one for one in registry.sessions.values() if self._may_move(one)]
            if not waiting:
                return
            if await self._hand_over(waiting, rate, deadline_ms) < len(waiting):
                await asyncio.sleep(OFFER_AGAIN_S)

    def stop(self) -> None:
        """Stops a drain: clients that were not told to move stay."""
        self._stopped = True

    async def _hand_over(
        self, sessions: Sequence[Session], rate_per_s: float, deadline_ms: int
    ) -> int:
        told, size = 0, max(1, round(rate_per_s * PACE_S))
        for at in range(0, len(sessions), size):
            if self._stopped:
                break
            told += await self.offer_sessions(sessions[at : at + size], deadline_ms)
            pause_s = size / rate_per_s
            await asyncio.sleep(pause_s * (1 + JITTER * (self._chance.random() - 0.5)))
        return told

    # --- shedding --------------------------------------------------------------------------------

    async def shed(self) -> int:
        """Hands over the excess of sessions, if any; returns how many were told to move."""
        if self._node.draining or self._node.fenced() or self._movable is not None:
            return 0
        settings = self._settings
        mine = list(self._registry.sessions.values())
        count = excess(len(mine), self._nodes(), self._node.node_id, share=settings.shed_excess)
        if not count:
            return 0
        self._stopped = False
        chosen = self._chance.sample(mine, len(mine))
        chosen = [one for one in chosen if self._may_move(one)][:count]
        deadline_ms = self._registry.now().ms + round(settings.ticket_s * 1000)
        return await self._hand_over(chosen, settings.shed_rate_per_s, deadline_ms)

    # --- whole parties ---------------------------------------------------------------------------

    async def _move_parties(self, deadline_ms: int) -> None:
        rate = self._settings.handoff_rate_per_s
        for party in list(self._registry.parties.values()):
            if self._stopped:
                return
            if party.sessions and await self.move_party(party, deadline_ms):
                await asyncio.sleep(len(party.sessions) / rate)

    async def move_party(self, party: Party, deadline_ms: int) -> bool:
        """Moves a party with all its sessions to another node."""
        assert self._movable is not None
        party_id = party.party_id
        try:
            async with asyncio.timeout(SETTLE_S):
                state = await self._movable.freeze(party_id)
            if state is None:
                return False
            node = await self._send_party(party_id, state)
            if node is None:
                return False
            await self._movable.give_up(party_id)
        except (TimeoutError, *STORE_TROUBLE) as exc:
            self._reports.store_trouble("party move", exc)
            return False
        finally:
            self._movable.thaw(party_id)
        self._session_end.moved.put(party_id, node.client_endpoint)
        for session in list(party.sessions.values()):
            if session.state is not State.ACTIVE:
                self._session_end.drop(session, Status.OK, peer=node.node_id)
        await self._tell_movers(list(party.sessions.values()), node, deadline_ms)
        return True

    async def _send_party(self, party_id: PartyId, state: bytes) -> PresenceNode | None:
        for node in self.candidates():
            try:
                reply = await self._peer_clients.transfer(node, party_id, state)
            except PeerError as exc:
                self._reports.store_trouble(f"party move to {node.node_id}", exc)
                continue
            if reply.accepted:
                return node
        return None

    async def _tell_movers(
        self, sessions: Sequence[Session], node: PresenceNode, deadline_ms: int
    ) -> None:
        movers = [one for one in sessions if self._may_move(one)]
        for at in range(0, len(movers), OFFERS_MAX):
            try:
                await self._offer(node, movers[at : at + OFFERS_MAX], deadline_ms)
            except PeerError as exc:
                # Their next request is answered with SESSION_MOVED and the new endpoint.
                self._reports.store_trouble(f"handoff to {node.node_id}", exc)

    async def close(self) -> None:
        self.stop()
        await self._peer_clients.close()


def offer_of(session: Session) -> HandoffOffer:
    """The state of a session for the node that takes it over."""
    delivery, key = session.delivery, session.key
    cursor = delivery.saved_cursor
    sent_messages = delivery.inflight.values()
    waiting = {sent.seq for sent in sent_messages if sent.kind is MessageType.JOIN}
    # An unacknowledged LIST_RESYNC may not have arrived: what it covers is not acknowledged.
    above = range(cursor + 1, delivery.sent_seq + 1) if delivery.resync_from is None else ()
    return HandoffOffer(
        key=SessionKey(party_id=key.party_id, client_id=key.client_id, session_id=key.session_id),
        fence=session.fence,
        cursor=max(0, cursor),
        acked_above_cursor=[seq for seq in above if seq not in waiting] if cursor >= 0 else [],
        recent_client_ids=session.recent_ids(),
        session_ttl_ms=round(session.ttl_s * 1000),
        flags=session.flags,
    )


def _key(key: SessionKey) -> tuple[int, int, int]:
    return key.party_id, key.client_id, key.session_id
