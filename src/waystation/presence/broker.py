"""The broker of one node: dispatches stream messages and store entries to its collaborators.

Rule 1: a request that needs the store runs as a coroutine. Later messages of its stream wait in
        the inbox of the stream, so each stream is answered in order.
Rule 2: an entry of a party's log is serialised once and sent to every session of the party on this
        node. A session that cannot take it keeps only its position in the log.
Rule 3: an exception while a stream is served ends that stream with INTERNAL_ERROR and detaches its
        session; other streams are not affected.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from waystation.base.clock import Clock
from waystation.base.limits import BoundedLru
from waystation.base.tasks import Done, Tasks, eager
from waystation.net.http2.port import Gone, GrpcStatus, Stream
from waystation.presence.cluster.handover_tickets import HandoverTickets
from waystation.presence.party.party import Party, Place
from waystation.presence.party.party_sync import PartySync
from waystation.presence.party.registry import Registry
from waystation.presence.session.client_stream import ClientStream, Phase
from waystation.presence.session.delivery_limits import DeliveryLimits
from waystation.presence.session.join import JoinRequests
from waystation.presence.session.requests import Requests
from waystation.presence.session.session import Refusal, Session, store_busy
from waystation.presence.session.session_end import SessionEnd
from waystation.presence.session.standby_streams import StandbyStreams
from waystation.presence.wire.client_messages import (
    ClientInput,
    Join,
    MalformedMessageError,
    Unfit,
    decode_client,
)
from waystation.presence.wire.error_forms import SOFT
from waystation.presence.wire.party_presence_pb2 import HandoffInfo
from waystation.presence.wire.server_messages import handoff_info

from .errors import STORE_TROUBLE, NotAllowedError, PresenceStoreError
from .grants import Authority, bearer
from .model import STANDBY, Detached, Entry, MessageType, Now, PartyId, SessionRecord, Status
from .node_state import NodeState
from .periodic_work import PeriodicWork
from .reports import Reports
from .settings import Presence
from .store import Notice, Owner, PresenceStore

if TYPE_CHECKING:
    from waystation.presence.cluster.relay import Relay

MOVED_HERE_MAX: Final = 100_000
# Module constants: reading an enum member takes a third of a delivery's time.
_STANDBY: Final = Phase.STANDBY
_GAP: Final = Place.GAP
_LEAVE: Final = MessageType.LEAVE


class Broker:
    """The `StreamHandler` of transports and the `PartyListener` of the store."""

    def __init__(
        self,
        settings: Presence,
        store: PresenceStore,
        *,
        owner: Owner,
        clock: Clock,
        reports: Reports,
        tasks: Tasks,
        loop: asyncio.AbstractEventLoop,
        authority: Authority | None = None,
    ) -> None:
        self.settings = settings
        self.store = store
        self.owner = owner
        self.node = node = NodeState(owner)
        self.reports = reports
        self._mono = clock.mono
        self._tasks = tasks
        self._loop = loop
        self.authority = authority
        self.counters = reports.counters
        self._limits = DeliveryLimits(reports, settings, self)
        self._fan_out = self._limits.fan_out
        registry = self.registry = self._limits.registry = Registry(settings, clock, self._limits)
        self.tickets = HandoverTickets(settings.ticket_s)
        self.session_end = end = SessionEnd(registry, store, reports, self.run, node)
        self.party_sync = PartySync(registry, store, reports, self._apply)
        self.party_sync.release = end.release
        self._moved_here: BoundedLru[PartyId, bool] = BoundedLru(MOVED_HERE_MAX)
        self.relay: Relay | None = None  # set without a shared store, with `peers`
        self.join_requests = JoinRequests(
            registry,
            store,
            end,
            self.party_sync,
            reports,
            node_id=owner.node_id,
            auth_on=authority is not None,
            tickets=self.tickets,
        )
        self.requests = Requests(
            self,
            registry,
            store,
            end,
            reports,
            node=node,
            authority=authority,
            watch_token=self.watch_token,
        )
        self.standby_streams = StandbyStreams(
            self, registry, store, self.join_requests, reports, node=node
        )
        self.periodic_work = PeriodicWork(self, registry, store, end, reports, authority=authority)
        self.join_requests.on_bound = self.watch_token
        self.serialisations = 0
        self.other_endpoints: Callable[[], Sequence[str]] = tuple

    def run(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` at once as far as it does not wait; the rest runs as a task."""
        try:
            rest = eager(work, self._loop)
        except Exception as exc:  # logged as `Tasks` would log it
            self.reports.trouble(f"{name}.failed", exc)
            return
        if not isinstance(rest, Done):
            self._tasks.adopt(name, rest)

    async def start(self) -> None:
        for record in await self.store.start(self.owner, self):
            self._moved_here.put(record.key.party_id, True)
            self.periodic_work.expect(record)

    def adopt(self, party_id: PartyId, records: Sequence[SessionRecord]) -> None:
        """A party was moved here by another node; its sessions wait for their clients."""
        self._moved_here.put(party_id, True)
        for record in records:
            self.periodic_work.expect(record)

    def has_party(self, party_id: PartyId) -> bool:
        """Whether the party is on this node, even if its hash names another one."""
        return party_id in self._moved_here or party_id in self.registry.parties

    # --- streams ---------------------------------------------------------------------------------

    def opened(self, stream: Stream) -> None:
        client = stream.holder = ClientStream(stream, self._over)
        registry = self.registry
        registry.open_streams.add(client)
        registry.unjoined[client] = registry.mono() + self.settings.join_timeout_s
        if self.authority is not None:
            client.busy = True
            self.run("authenticate", self._authenticate(client, self.authority))

    async def _authenticate(self, client: ClientStream, authority: Authority) -> None:
        try:
            grant = await authority.verify(bearer(client.stream.authorization))
        except NotAllowedError:
            self.reports.auth("refused")
            self.reports.refused("auth", Status.UNAUTHENTICATED)
            client.finish(GrpcStatus.UNAUTHENTICATED, Status.UNAUTHENTICATED.name)
            return
        self.reports.auth("accepted")
        client.grant = grant
        self.go_on(client)

    def message(self, stream: Stream, data: bytes) -> None:
        client: ClientStream | None = stream.holder
        if client is None:
            return
        if client.over:
            return
        if client.busy:
            client.wait(data, self.settings.inbox_max)
            return
        try:
            if client.relayed is not None:
                client.relayed.send(data)
                return
            try:
                message = decode_client(data, self.settings.ack_ids_max)
            except MalformedMessageError:
                self.end(client, Status.MALFORMED_MESSAGE)
                return
            session = client.session
            if session is None:
                self._before_joined(client, message, data)
                return
            now = self.registry.now()
            self.requests.take(client, session, message, now)
            if not stream.writable and not client.over:
                session.delivery.stop(now.mono)  # the client does not read its answers
        except Exception as exc:
            self.failed(client, exc)

    def _before_joined(self, client: ClientStream, message: ClientInput, data: bytes) -> None:
        if client.phase is _STANDBY:
            self.standby_streams.take(client, message, self.registry.now())
        elif isinstance(message, Join):
            if self.relay is None or not self._pass_on(client, message, data, self.relay):
                client.busy = True
                self.run("join", self._join(client, message))
        elif isinstance(message, Unfit) and message.is_join:
            self.refuse(client, Refusal(message.status, message.detail), message.message_id)
        else:
            self.end(client, Status.JOIN_REQUIRED, answers=message.message_id)

    def _pass_on(self, client: ClientStream, join: Join, data: bytes, relay: "Relay") -> bool:
        """Whether the party is on another node, and the stream was relayed or redirected to it."""
        node = relay.elsewhere(join.key.party_id)
        if node is None or join.key.party_id in self.session_end.moved:
            return False
        if relay.redirect or not relay.begin(client, data, node):
            status = Status.SESSION_MOVED if relay.redirect else Status.STORE_UNAVAILABLE
            handoff = handoff_info([node.client_endpoint])
            client.end(status, self.registry.now(), answers=join.message_id, handoff=handoff)
        else:
            self.registry.joined(client)
        return True

    async def _join(self, client: ClientStream, join: Join) -> None:
        try:
            refusal = self._refusal(client, join)
            if refusal is None and join.flags & STANDBY:
                refusal = await self.standby_streams.stand_by(client, join)
            elif refusal is None:
                refusal = await self.join_requests.enter(client, join)
        except STORE_TROUBLE as exc:
            self.reports.store_trouble("join", exc)
            refusal = store_busy(self.settings)
        except Exception as exc:
            self.failed(client, exc)
            return
        if refusal is None:
            self.registry.joined(client)
            self.go_on(client)
            return
        self.reports.refused(
            "rate" if refusal.status is Status.RATE_LIMITED else "join", refusal.status
        )
        soft = refusal.status in (Status.STORE_BUSY, Status.INVALID_FIELD)
        if soft:
            self.refuse(client, refusal, join.message_id)
            self.go_on(client)
            return
        self.reports.error(refusal.status)
        client.end(
            refusal.status,
            self.registry.now(),
            answers=join.message_id,
            detail=refusal.detail,
            retry_after_ms=refusal.retry_after_ms,
            handoff=self.elsewhere(refusal.status, join.key.party_id),
        )

    def _refusal(self, client: ClientStream, join: Join) -> Refusal | None:
        """Why the JOIN is refused without asking the store; None if it is not."""
        refusal = self.join_requests.early_refusal(client, join, self._mono())
        if self.node.fenced():
            raise PresenceStoreError("the node could not renew its lease")
        if refusal is not None:
            return refusal
        if join.key.party_id in self.session_end.moved:
            return Refusal(Status.SESSION_MOVED, "the party has moved to another node; join there")
        if self.node.draining:
            return Refusal(Status.DRAINING, "the node is draining; join another node")
        if self.node.overloaded:
            return Refusal(Status.OVERLOADED, "node overloaded: its event loop is late")
        if join.party_seq and self.join_requests.ahead(join):
            return Refusal(Status.INVALID_FIELD, f"party_seq {join.party_seq} was not sent yet")
        return None

    def go_on(self, client: ClientStream) -> None:
        """Processes the inbox until a message has to wait for the store again."""
        client.busy = False
        while not client.busy and not client.over:
            data = client.next_waiting()
            if data is None:
                if client.half_closed:
                    self._ended_by_client(client)
                return
            self.message(client.stream, data)

    def half_closed(self, stream: Stream) -> None:
        client: ClientStream | None = stream.holder
        if client is None or client.over:
            return
        client.half_closed = True
        if not client.busy:
            self._ended_by_client(client)

    def _ended_by_client(self, client: ClientStream) -> None:
        if client.relayed is not None:
            client.relayed.half_closed()
            return
        session = client.session
        client.finish(GrpcStatus.OK)
        if session is not None:
            self.session_end.detach(session, Detached.EOF, self.registry.now())

    def closed(self, stream: Stream, why: Gone) -> None:
        client: ClientStream | None = stream.holder
        if client is None:
            return
        client.lost = True
        session = client.session
        if client.relayed is not None and not client.over:
            client.relayed.lost()
        client.over_now()
        if session is not None and session.client is client:
            self.session_end.detach(session, _CAUSES[why], self.registry.now())

    def unblocked(self, stream: Stream) -> None:
        client: ClientStream | None = stream.holder
        session = None if client is None else client.session
        if client is not None and client.relayed is not None:
            client.relayed.unblocked()
        elif session is not None:
            if session.stall_handle:
                self.registry.wheel.cancel(session.stall_handle)
                session.stall_handle = 0
            session.delivery.unblocked(self.registry.now())

    # --- answers ---------------------------------------------------------------------------------

    def refuse(self, client: ClientStream, refusal: Refusal, message_id: int) -> None:
        """Answers with a soft error; too many of them end the stream."""
        now = self.registry.now()
        status, session = refusal.status, client.session
        assert status in SOFT
        if status is Status.RATE_LIMITED:
            self.reports.refused("rate", status)
        self.reports.error(status)
        client.error(
            status,
            now,
            answers=message_id,
            detail=refusal.detail,
            retry_after_ms=refusal.retry_after_ms,
        )
        faulty = client if session is None else session
        if status is not Status.STORE_BUSY and faulty.fault(status, now.mono):
            self.end(client, Status.PROTOCOL_VIOLATION)

    def end(
        self,
        client: ClientStream,
        status: Status,
        *,
        answers: int = 0,
        cause: Detached = Detached.BAD_INPUT,
        discard_unsent: bool = False,
    ) -> None:
        """Ends the stream with an error and detaches its session, if it has one."""
        self.session_end.end_stream(
            client,
            status,
            self.registry.now(),
            cause=cause,
            answers=answers,
            discard_unsent=discard_unsent,
        )

    def failed(self, client: ClientStream, exc: Exception) -> None:
        self.reports.trouble("stream.failed", exc)
        self.end(client, Status.INTERNAL_ERROR, cause=Detached.FAILURE)

    def _over(self, client: ClientStream) -> None:
        self.registry.open_streams.discard(client)
        self.registry.joined(client)
        self.standby_streams.forget(client)

    # --- from the store --------------------------------------------------------------------------

    def entry(self, party_id: PartyId, entry: Entry) -> None:
        party = self.registry.parties.get(party_id)
        if party is not None and self._apply(party, entry) is _GAP:
            self.run("fill", self._fill(party))

    async def _fill(self, party: Party) -> None:
        try:
            await self.party_sync.fill(party)
        except STORE_TROUBLE as exc:
            self.reports.store_trouble("fill", exc)

    def _apply(self, party: Party, entry: Entry) -> Place | None:
        one = party.apply(entry)
        if isinstance(one, Place):
            return one
        self.serialisations += 1
        clock, counters = self._mono, self.counters
        began = clock()
        before = counters.out
        session = party.sessions.get((entry.client_id, entry.session_id))
        origin = None if session is None else session.delivery
        behind = tuple(party.behind) if party.behind else ()  # the origin is added by `tell`
        self._fan_out.tell(party, one, began, origin)
        if behind:
            now = self.registry.now()
            for delivery in behind:
                delivery.offer_later(one, now)
        took_s = clock() - began
        self.reports.broadcast(party.party_id, entry, counters.out - before, len(one.data), took_s)
        if session is not None and entry.kind is _LEAVE:
            self.session_end.removed_elsewhere(session, entry)
        if self._limits.slow:
            self._limits.end_slow_streams()
        return None

    def notice(self, notice: Notice) -> None:
        now = self.registry.now()
        party = self.registry.parties.get(notice.key.party_id)
        if party is None:
            return
        if notice.status is Status.SESSION_RESUMED:
            session = self.registry.sessions.get(notice.key)
            elsewhere = notice.node_id != self.owner.node_id
            if session is not None and elsewhere and session.fence < notice.fence:
                self.session_end.attached_elsewhere(session, peer=notice.node_id)
        elif notice.status is Status.STANDBY_ATTACHED:
            self.session_end.standby_pinged(notice.key, now)
        else:
            self.session_end.connectivity(party, notice, now)

    # --- tokens and moves ------------------------------------------------------------------------

    def watch_token(self, session: Session, client: ClientStream, now: Now) -> None:
        """Arms the timer that warns of the end of the token and ends the stream."""
        if session.token_handle:
            self.registry.wheel.cancel(session.token_handle)
            session.token_handle = 0
        if client.grant is not None:
            self.periodic_work.watch_token(session, client, client.grant, now)

    def elsewhere(self, status: Status, party_id: PartyId | None = None) -> HandoffInfo | None:
        """Endpoints for the codes that send a client to another node."""
        endpoints = self.other_endpoints() if 96 <= status < 128 else ()
        if status is Status.SESSION_MOVED and party_id is not None:
            endpoints = self.home(party_id)
        return handoff_info(endpoints) if endpoints else None

    def home(self, party_id: PartyId) -> Sequence[str]:
        """The endpoint of the party's node, if that is another one."""
        moved = self.session_end.moved.get(party_id)
        if moved is not None:
            return (moved,)
        return () if self.relay is None else self.relay.home(party_id)


_CAUSES = {
    Gone.RESET: Detached.RESET,
    Gone.TRANSPORT: Detached.TRANSPORT,
    Gone.TOO_LARGE: Detached.BAD_INPUT,
}
