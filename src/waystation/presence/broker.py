"""The broker of one node: streams on one side, the store on the other, sessions in between.

Rule 1: nothing here waits. What needs the store runs as a coroutine; what a stream says meanwhile
        waits in its inbox, so a stream is answered in order.
Rule 2: an entry of a party's log is serialised once and offered to every session of the party
        here. Nobody is delayed by another: whoever cannot take it keeps only a position.
Rule 3: an exception while a stream is served ends that stream with INTERNAL_ERROR, detaches its
        session and touches nobody else.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from waystation.base.clock import Clock
from waystation.base.limits import BoundedLru
from waystation.base.tasks import Done, Tasks, eager
from waystation.net.http2.port import Gone, GrpcStatus, Stream

from .conversation import Conversation, Phase
from .departures import Departures
from .desk import DeliveryDesk
from .errors import STORE_TROUBLE, NotAllowedError, PresenceStoreError
from .following import Following
from .grants import Authority, bearer
from .handoff import Tickets
from .log import Now
from .model import STANDBY, Detached, Entry, MessageType, PartyId, Status
from .party import Party, Place
from .reception import Reception
from .registry import Registry
from .reports import Reports
from .requests import Requests
from .session import Refusal, Session
from .settings import Presence
from .standbys import Standbys
from .store import Notice, Owner, PresenceStore
from .timekeeper import Timekeeper
from .wire.broker import handoff_info
from .wire.client import ClientInput, Join, MalformedMessageError, Unfit, decode_client
from .wire.error_forms import SOFT
from .wire.party_presence_pb2 import HandoffInfo

if TYPE_CHECKING:
    from .relay import Relay

ADOPTED_MAX: Final = 100_000
# Asking an enum's class for a member costs a third of a delivery.
_STANDBY: Final = Phase.STANDBY
_GAP: Final = Place.GAP
_LEAVE: Final = MessageType.LEAVE


class Broker:
    """`StreamHandler` for transports, `PartyListener` for the store."""

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
        self.reports = reports
        self._mono = clock.mono
        self._tasks = tasks
        self._loop = loop
        self.authority = authority
        self.tally = reports.tally
        self._desk = DeliveryDesk(reports, settings, self.end)
        self._fan_out = self._desk.fan_out
        self.registry = self._desk.registry = Registry(settings, clock, self._desk)
        self.tickets = Tickets(settings.ticket_s)
        self.departures = Departures(self.registry, store, reports, self.run, owner.node_id)
        self.following = Following(self.registry, store, reports, self._apply)
        self.following.release = self.departures.release
        self.adopted: BoundedLru[PartyId, bool] = BoundedLru(ADOPTED_MAX)  # came from other nodes
        self.relay: Relay | None = None  # without a shared store: streams of parties elsewhere
        self.reception = Reception(
            self.registry,
            store,
            self.departures,
            self.following,
            reports,
            node_id=owner.node_id,
            auth_on=authority is not None,
            tickets=self.tickets,
        )
        self.requests = Requests(self)
        self.standbys = Standbys(self)
        self.timekeeper = Timekeeper(self)
        self.reception.on_bound = self.watch_token
        self.serialisations = 0
        self.draining = False
        self.shared = False  # other nodes serve the same parties
        self.other_endpoints: Callable[[], Sequence[str]] = tuple
        self.fenced: Callable[[], bool] = lambda: False
        self.overloaded = False

    def run(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """To its end now, if nothing in it has to wait; else as a task."""
        try:
            rest = eager(work, self._loop)
        except Exception as exc:  # as a task it would be told the same way
            self.reports.trouble(f"{name}.failed", exc)
            return
        if not isinstance(rest, Done):
            self._tasks.adopt(name, rest)

    async def start(self) -> None:
        for record in await self.store.start(self.owner, self):
            self.adopted.put(record.key.party_id, True)
            self.timekeeper.expect(record)

    # --- streams ---------------------------------------------------------------------------------

    def opened(self, stream: Stream) -> None:
        conversation = stream.holder = Conversation(stream, self._over)
        registry = self.registry
        registry.conversations.add(conversation)
        registry.unjoined[conversation] = registry.mono() + self.settings.join_timeout_s
        if self.authority is not None:
            conversation.busy = True
            self.run("authenticate", self._authenticate(conversation, self.authority))

    async def _authenticate(self, conversation: Conversation, authority: Authority) -> None:
        try:
            grant = await authority.verify(bearer(conversation.stream.authorization))
        except NotAllowedError:
            self.reports.auth("refused")
            self.reports.refused("auth", Status.UNAUTHENTICATED)
            conversation.finish(GrpcStatus.UNAUTHENTICATED, Status.UNAUTHENTICATED.name)
            return
        self.reports.auth("accepted")
        conversation.grant = grant
        self.go_on(conversation)

    def message(self, stream: Stream, data: bytes) -> None:
        conversation: Conversation | None = stream.holder
        if conversation is None:
            return
        if conversation.over:
            return
        if conversation.busy:
            conversation.wait(data, self.settings.inbox_max)
            return
        try:
            if conversation.relayed is not None:
                conversation.relayed.said(data)
                return
            try:
                message = decode_client(data, self.settings.ack_ids_max)
            except MalformedMessageError:
                self.end(conversation, Status.MALFORMED_MESSAGE)
                return
            session = conversation.session
            if session is None:
                self._before_joined(conversation, message, data)
                return
            now = self.registry.now()
            self.requests.take(conversation, session, message, now)
            if not stream.writable and not conversation.over:
                session.delivery.stop(now.mono)  # answers count against who does not read them
        except Exception as exc:
            self.failed(conversation, exc)

    def _before_joined(self, conversation: Conversation, message: ClientInput, data: bytes) -> None:
        if conversation.phase is _STANDBY:
            self.standbys.take(conversation, message, self.registry.now())
        elif isinstance(message, Join):
            if self.relay is None or not self._pass_on(conversation, message, data, self.relay):
                conversation.busy = True
                self.run("join", self._join(conversation, message))
        elif isinstance(message, Unfit) and message.is_join:
            self.refuse(conversation, Refusal(message.status, message.detail), message.message_id)
        else:
            self.end(conversation, Status.JOIN_REQUIRED, answers=message.message_id)

    def _pass_on(self, conversation: Conversation, join: Join, data: bytes, relay: "Relay") -> bool:
        """Whether the party lives elsewhere, and the stream goes on there."""
        node = relay.elsewhere(join.key.party_id)
        if node is None or join.key.party_id in self.departures.moved:
            return False
        if relay.redirect or not relay.begin(conversation, data, node):
            status = Status.SESSION_MOVED if relay.redirect else Status.STORE_UNAVAILABLE
            handoff = handoff_info([node.client_endpoint])
            conversation.end(status, self.registry.now(), answers=join.message_id, handoff=handoff)
        else:
            self.registry.joined(conversation)
        return True

    async def _join(self, conversation: Conversation, join: Join) -> None:
        try:
            refusal = self._objection(conversation, join)
            if refusal is None and join.flags & STANDBY:
                refusal = await self.standbys.stand_by(conversation, join)
            elif refusal is None:
                refusal = await self.reception.enter(conversation, join)
        except STORE_TROUBLE as exc:
            self.reports.store_trouble("join", exc)
            refusal = Refusal(
                Status.STORE_BUSY,
                "the store does not answer",
                round(self.settings.store_busy_s * 1000),
            )
        except Exception as exc:
            self.failed(conversation, exc)
            return
        if refusal is None:
            self.registry.joined(conversation)
            self.go_on(conversation)
            return
        self.reports.refused(
            "rate" if refusal.status is Status.RATE_LIMITED else "join", refusal.status
        )
        soft = refusal.status in (Status.STORE_BUSY, Status.INVALID_FIELD)
        if soft:
            self.refuse(conversation, refusal, join.message_id)
            self.go_on(conversation)
            return
        self.reports.error(refusal.status)
        conversation.end(
            refusal.status,
            self.registry.now(),
            answers=join.message_id,
            detail=refusal.detail,
            retry_after_ms=refusal.retry_after_ms,
            handoff=self.elsewhere(refusal.status, join.key.party_id),
        )

    def _objection(self, conversation: Conversation, join: Join) -> Refusal | None:
        """Why the JOIN is refused without asking the store."""
        refusal = self.reception.objection(conversation, join, self._mono())
        if self.fenced():
            raise PresenceStoreError("the node could not renew its lease")
        if refusal is not None:
            return refusal
        if join.key.party_id in self.departures.moved:
            return Refusal(Status.SESSION_MOVED, "the party lives on another node")
        if self.draining:
            return Refusal(Status.DRAINING, "the node takes no more sessions")
        if self.overloaded:
            return Refusal(Status.OVERLOADED, "the node is late")
        if join.party_seq and self.reception.ahead(join):
            return Refusal(Status.INVALID_FIELD, "party_seq is above what was sent")
        return None

    def go_on(self, conversation: Conversation) -> None:
        """What waited in the inbox, until something of it has to wait again."""
        conversation.busy = False
        while not conversation.busy and not conversation.over:
            data = conversation.next_waiting()
            if data is None:
                if conversation.half_closed:
                    self._ended_by_client(conversation)
                return
            self.message(conversation.stream, data)

    def half_closed(self, stream: Stream) -> None:
        conversation: Conversation | None = stream.holder
        if conversation is None or conversation.over:
            return
        conversation.half_closed = True
        if not conversation.busy:
            self._ended_by_client(conversation)

    def _ended_by_client(self, conversation: Conversation) -> None:
        if conversation.relayed is not None:
            conversation.relayed.half_closed()
            return
        session = conversation.session
        conversation.finish(GrpcStatus.OK)
        if session is not None:
            self.departures.detach(session, Detached.EOF, self.registry.now())

    def closed(self, stream: Stream, why: Gone) -> None:
        conversation: Conversation | None = stream.holder
        if conversation is None:
            return
        conversation.lost = True
        session = conversation.session
        if conversation.relayed is not None and not conversation.over:
            conversation.relayed.lost()
        conversation.over_now()
        if session is not None and session.conversation is conversation:
            self.departures.detach(session, _CAUSES[why], self.registry.now())

    def unblocked(self, stream: Stream) -> None:
        conversation: Conversation | None = stream.holder
        session = None if conversation is None else conversation.session
        if conversation is not None and conversation.relayed is not None:
            conversation.relayed.unblocked()
        elif session is not None:
            if session.stall_handle:
                self.registry.wheel.cancel(session.stall_handle)
                session.stall_handle = 0
            session.delivery.unblocked(self.registry.now())

    # --- answers ---------------------------------------------------------------------------------

    def refuse(self, conversation: Conversation, refusal: Refusal, message_id: int) -> None:
        """A soft error; too many of them end the stream."""
        now = self.registry.now()
        status, session = refusal.status, conversation.session
        assert status in SOFT
        if status is Status.RATE_LIMITED:
            self.reports.refused("rate", status)
        self.reports.error(status)
        conversation.error(
            status,
            now,
            answers=message_id,
            detail=refusal.detail,
            retry_after_ms=refusal.retry_after_ms,
        )
        faulty = conversation if session is None else session
        if status is not Status.STORE_BUSY and faulty.fault(status, now.mono):
            self.end(conversation, Status.PROTOCOL_VIOLATION)

    def end(
        self,
        conversation: Conversation,
        status: Status,
        *,
        answers: int = 0,
        cause: Detached = Detached.BAD_INPUT,
        discard_unsent: bool = False,
    ) -> None:
        """The stream ends; its session, if it has one, is detached."""
        self.departures.end_stream(
            conversation,
            status,
            self.registry.now(),
            cause=cause,
            answers=answers,
            discard_unsent=discard_unsent,
        )

    def failed(self, conversation: Conversation, exc: Exception) -> None:
        self.reports.trouble("stream.failed", exc)
        self.end(conversation, Status.INTERNAL_ERROR, cause=Detached.FAILURE)

    def _over(self, conversation: Conversation) -> None:
        self.registry.conversations.discard(conversation)
        self.registry.joined(conversation)
        self.standbys.forget(conversation)

    # --- the store tells -------------------------------------------------------------------------

    def entry(self, party_id: PartyId, entry: Entry) -> None:
        party = self.registry.parties.get(party_id)
        if party is not None and self._apply(party, entry) is _GAP:
            self.run("fill", self._fill(party))

    async def _fill(self, party: Party) -> None:
        try:
            await self.following.fill(party)
        except STORE_TROUBLE as exc:
            self.reports.store_trouble("fill", exc)

    def _apply(self, party: Party, entry: Entry) -> Place | None:
        one = party.apply(entry)
        if isinstance(one, Place):
            return one
        self.serialisations += 1
        clock, tally = self._mono, self.tally
        began = clock()
        before = tally.out
        session = party.sessions.get((entry.client_id, entry.session_id))
        origin = None if session is None else session.delivery
        behind = tuple(party.behind) if party.behind else ()  # before the origin is among them
        self._fan_out.tell(party, one, began, origin)
        if behind:
            now = self.registry.now()
            for delivery in behind:
                delivery.offer_later(one, now)
        took_s = clock() - began
        self.reports.broadcast(party.party_id, entry, tally.out - before, len(one.data), took_s)
        if session is not None and entry.kind is _LEAVE:
            self.departures.removed_elsewhere(session, entry)
        if self._desk.slow:
            self._desk.let_slow_go()
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
                self.departures.moved_on(session, peer=notice.node_id)
        elif notice.status is Status.STANDBY_ATTACHED:
            self.departures.kept_alive(notice.key, now)
        else:
            self.departures.connectivity(party, notice, now)

    # --- tokens and moves ------------------------------------------------------------------------

    def watch_token(self, session: Session, conversation: Conversation, now: Now) -> None:
        """A stream lives as long as its token, and is told in time."""
        if session.token_handle:
            self.registry.wheel.cancel(session.token_handle)
            session.token_handle = 0
        if conversation.grant is not None:
            self.timekeeper.watch_token(session, conversation, conversation.grant, now)

    def elsewhere(self, status: Status, party_id: PartyId | None = None) -> HandoffInfo | None:
        """Where else a client may go, for codes that send it away."""
        endpoints = self.other_endpoints() if 96 <= status < 128 else ()
        if status is Status.SESSION_MOVED and party_id is not None:
            endpoints = self.home(party_id)
        return handoff_info(endpoints) if endpoints else None

    def home(self, party_id: PartyId) -> Sequence[str]:
        """Where the party lives, if not here."""
        moved = self.departures.moved.get(party_id)
        if moved is not None:
            return (moved,)
        return () if self.relay is None else self.relay.home(party_id)


_CAUSES = {
    Gone.RESET: Detached.RESET,
    Gone.TRANSPORT: Detached.TRANSPORT,
    Gone.TOO_LARGE: Detached.BAD_INPUT,
}
