"""A JOIN, step by step: checks, the store, then a new, resumed or taken-over session.

Rule 1: the first message of the broker is the ACK (or ERROR), the second the LIST; party messages
        follow.
Rule 2: the store checks the proof (resume token or ticket) before it changes anything; a wrong
        proof changes nothing.
Rule 3: while the store is asked, the stream may end and the session may be attached elsewhere. The
        answer of the store is applied as it is: a session whose stream has ended is detached at
        once, and an attachment whose fence is not the newest has been taken over.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from waystation.base.limits import BucketTable
from waystation.presence.errors import STORE_TROUBLE
from waystation.presence.model import RESUME_ONLY, ClientId, Detached, Now, SessionRecord, Status
from waystation.presence.party.party import Party
from waystation.presence.party.registry import Registry
from waystation.presence.reports import Reports
from waystation.presence.store import (
    Attached,
    AttachSpec,
    Exists,
    Joined,
    JoinSpec,
    Missing,
    PresenceStore,
    Proof,
    Rejected,
)
from waystation.presence.wire import server_messages as write
from waystation.presence.wire.client_messages import Join

from .client_stream import ClientStream, Phase
from .resume_token import TOKEN_BYTES, RandomBytes, ResumeToken, hashed
from .session import Refusal, Session, State
from .session_end import SessionEnd

if TYPE_CHECKING:
    from waystation.presence.cluster.handover_tickets import HandoverOffer, HandoverTickets
    from waystation.presence.party.party_sync import PartySync

_JOINED: Final = Phase.JOINED  # a module constant: reading an enum member is slow
_OK: Final = Status.OK
ROUNDS_MAX: Final = 4  # `join` finds a session, `attach` does not, `join` finds one again


def _nothing(session: Session, client: ClientStream, now: Now) -> None:
    """The default `on_bound`."""


class JoinRequests:
    def __init__(
        self,
        registry: Registry,
        store: PresenceStore,
        session_end: SessionEnd,
        following: "PartySync",
        reports: Reports,
        *,
        node_id: str,
        auth_on: bool,
        tickets: "HandoverTickets",
        make_token: Callable[[int], bytes] | None = None,
    ) -> None:
        settings = registry.settings
        self._registry = registry
        self._settings = settings
        self._store = store
        self._session_end = session_end
        self._party_sync = following
        self._reports = reports
        self._node_id = node_id
        self._auth_on = auth_on
        self._tickets = tickets
        self._make_token = make_token or RandomBytes().take
        self._ttl_ms = round(settings.session_ttl_s * 1000)
        self._ttl_min_ms = round(settings.session_ttl_min_s * 1000)
        self._ttl_max_ms = round(settings.session_ttl_max_s * 1000)
        self._join_rate: BucketTable[ClientId] = BucketTable(
            settings.join_rate_per_min / 60, settings.join_burst, keys_max=settings.join_clients_max
        )
        self.on_bound: Callable[[Session, ClientStream, Now], None] = _nothing

    # --- before the store ------------------------------------------------------------------------

    def early_refusal(self, client: ClientStream, join: Join, mono: float) -> Refusal | None:
        """Why the JOIN is refused without asking the store; None if it is not."""
        key = join.key
        party_id, client_id, session_id = key
        if not (party_id and client_id and session_id):
            return Refusal(Status.INVALID_IDENTIFIER, "party_id, client_id or session_id is 0")
        wait_s = self._join_rate.take(client_id, mono)
        if wait_s:
            detail = f"more than {self._settings.join_rate_per_min:g} JOINs of this client a minute"
            return Refusal(Status.RATE_LIMITED, detail, int(wait_s * 1000) + 1)
        grant = client.grant
        if grant is not None and (
            grant.client_id != client_id or not grant.allows("join", party_id)
        ):
            return Refusal(
                Status.PERMISSION_DENIED, "the token does not grant this client and party"
            )
        registry, settings = self._registry, self._settings
        if key not in registry.sessions:
            if len(registry.sessions) >= settings.node_sessions_max:
                most = settings.node_sessions_max
                return Refusal(Status.OVERLOADED, f"the node has {most} sessions (limit {most})")
            parties = registry.parties_of(client_id)
            if parties >= settings.client_parties_max and not registry.in_party(
                client_id, party_id
            ):
                detail = f"the client is in {parties} parties (limit {settings.client_parties_max})"
                return Refusal(Status.SESSION_LIMIT, detail)
        return None

    def ahead(self, join: Join) -> bool:
        """Whether the JOIN acknowledges more than this node has sent to the session."""
        session = self._registry.sessions.get(join.key)
        if session is None or not join.party_seq:
            return False
        delivery = session.delivery
        return join.party_seq > max(delivery.sent_seq, delivery.list_seq)

    def ttl_ms(self, wish_ms: int) -> int:
        if not wish_ms:
            return self._ttl_ms
        if wish_ms < self._ttl_min_ms:
            return self._ttl_min_ms
        return wish_ms if wish_ms < self._ttl_max_ms else self._ttl_max_ms  # noqa: FURB136 for every join

    # --- with the store --------------------------------------------------------------------------

    async def enter(
        self, client: ClientStream, join: Join, *, promoted: bool = False
    ) -> Refusal | None:
        """None when the stream is bound. Raises `STORE_TROUBLE`; then nothing was changed, or it
        is undone later."""
        raw = self._make_token(TOKEN_BYTES)
        token = ResumeToken(raw, hashed(raw))
        party = self._registry.follow(join.key.party_id)
        try:
            if not party.loaded:
                await self._store.subscribe(party.party_id)
            return await self._enter(party, client, join, token, promoted=promoted)
        except STORE_TROUBLE:
            # The store may have applied it: perhaps only its answer was lost.
            self._session_end.verify_later(join.key, token.digest)
            raise
        finally:
            party.busy -= 1
            if not party.sessions:
                self._session_end.release(party)

    async def _enter(
        self,
        party: Party,
        client: ClientStream,
        join: Join,
        token: ResumeToken,
        *,
        promoted: bool,
    ) -> Refusal | None:
        key = join.key
        attach_first = bool(join.resume_token or join.flags & RESUME_ONLY or promoted)
        attach_first = attach_first or key in self._registry.sessions
        proof, how = None, ""
        for _ in range(ROUNDS_MAX):
            if key in self._session_end.detaching:
                await self._session_end.wait_for_detach(key)
            if attach_first:
                if proof is None:  # once: this redeems a ticket
                    proof, how = self._proof(join, promoted=promoted)
                try:
                    attached = await self._store.attach(
                        key, self._attach_spec(party, join, proof, token, client)
                    )
                except STORE_TROUBLE:
                    if how == "handoff":
                        now = self._registry.now()
                        self._tickets.give_back(key, join.resume_token, now.mono)
                    raise
                if isinstance(attached, Attached):
                    return await self._resumed(party, client, join, attached, token=token, how=how)
                if isinstance(attached, Rejected):
                    return Refusal(attached.status, retry_after_ms=attached.retry_after_ms)
                assert isinstance(attached, Missing)
                if join.flags & RESUME_ONLY or promoted:
                    return Refusal(
                        Status.SESSION_NOT_FOUND, "no such session; join without RESUME_ONLY"
                    )
            spec = self._join_spec(party, join, token, client)
            joined = await self._store.join(key, spec)
            if isinstance(joined, Joined):
                if not party.has_reached(joined.seq, joined.epoch):
                    await self._party_sync.caught_up(
                        party,
                        seq=joined.seq,
                        epoch=joined.epoch,
                        members=joined.members,
                        entries=joined.entries,
                    )
                self._created(party, client, join, joined, spec, token)
                return None
            if isinstance(joined, Rejected):
                return Refusal(joined.status, retry_after_ms=joined.retry_after_ms)
            assert isinstance(joined, Exists)
            attach_first = True
        return Refusal(
            Status.INTERNAL_ERROR,
            f"the session ended and began again {ROUNDS_MAX} times during one JOIN; join again",
        )

    def _proof(self, join: Join, *, promoted: bool) -> tuple[Proof, str]:
        settings = self._settings
        given = join.resume_token
        ticket = bool(given) and self._tickets.redeem(join.key, given, self._registry.now().mono)
        trusted = promoted or ticket
        proof = Proof(
            token_hash=hashed(given) if given and not trusted else None,
            trusted=trusted,
            token_required=settings.resume_requires_token,
            grace_ms=round(settings.resume_token_grace_s * 1000),
        )
        return proof, "promote" if promoted else "handoff" if ticket else ""

    def _attach_spec(
        self, party: Party, join: Join, proof: Proof, token: ResumeToken, client: ClientStream
    ) -> AttachSpec:
        grant = client.grant
        return AttachSpec(
            proof=proof,
            new_hash=token.digest,
            ttl_ms=self.ttl_ms(join.ttl_ms) if join.ttl_ms else None,
            flags=join.kept_flags,
            token_exp_ms=grant.expires_at_ms if grant is not None else 0,
            known_seq=party.seq if party.loaded else None,
            known_epoch=party.epoch,
        )

    def _join_spec(
        self, party: Party, join: Join, token: ResumeToken, client: ClientStream
    ) -> JoinSpec:
        settings, grant = self._settings, client.grant
        sessions_max = settings.client_sessions_max
        if grant is not None and grant.max_sessions is not None:
            sessions_max = min(sessions_max, grant.max_sessions)
        return JoinSpec(
            ttl_ms=self.ttl_ms(join.ttl_ms),
            flags=join.kept_flags,
            token_hash=token.digest,
            party_max=settings.party_max,
            client_sessions_max=sessions_max,
            evict_oldest=settings.client_sessions_policy == "evict_oldest",
            id_unique_in_party=settings.session_ids == "per_party",
            token_exp_ms=grant.expires_at_ms if grant is not None else 0,
            known_seq=party.seq if party.loaded else None,
            known_epoch=party.epoch,
        )

    # --- after the store -------------------------------------------------------------------------

    def _created(  # noqa: PLR0917 for every join
        self,
        party: Party,
        client: ClientStream,
        join: Join,
        joined: Joined,
        spec: JoinSpec,
        token: ResumeToken,
    ) -> None:
        registry, key = self._registry, join.key
        now = registry.now()
        before = registry.sessions.get(key)
        if before is not None:  # ended on another node; the notice has not arrived yet
            self._session_end.drop(before, Status.TAKEN_OVER)
        session = registry.new_session(
            key,
            party,
            fence=joined.fence,
            ttl_s=spec.ttl_ms / 1000,
            flags=spec.flags,
            joined_seq=joined.seq,
            joined_at_ms=joined.at_ms,
            mono=now.mono,
        )
        session.remember(join)
        if joined.opened:
            self._reports.opened(party.party_id)
        self._reports.started(session, joined, now.ms, auth=self._auth_on)
        if not self._bind(session, client, now):
            return
        self._answer(client, session, join, now, token=token, status=_OK, seq=joined.seq)
        session.delivery.welcome(now)
        self._go_live(session, client, now)

    async def _resumed(
        self,
        party: Party,
        client: ClientStream,
        join: Join,
        attached: Attached,
        *,
        token: ResumeToken,
        how: str,
    ) -> Refusal | None:
        record = attached.record
        resync = party.loaded and party.epoch != attached.epoch
        await self._party_sync.caught_up(
            party,
            seq=attached.seq,
            epoch=attached.epoch,
            members=attached.members,
            entries=attached.entries,
        )
        key = join.key
        if key not in self._registry.sessions and not party.log.reaches_back_to(record.cursor):
            await self._party_sync.reach_back(party, record.cursor)
        session = self._registry.sessions.get(key)
        if session is not None and session.fence >= record.fence:
            return Refusal(Status.TAKEN_OVER, "another stream has attached the session")
        now = self._registry.now()
        handed_over = self._tickets.take_over(key) if how == "handoff" else None
        if session is None:
            session = self._brought_here(party, join, record, handed_over, now)
        else:
            self._displace(session, now)
            session.set_options(record.ttl_ms / 1000, record.flags)
            session.fence = record.fence
            session.may_have_left = False
        session.remember(join)
        session.resumes += 1
        delivery = session.delivery
        if join.ack_ids or join.party_seq:
            delivery.acked(join.ack_ids, join.party_seq, now)
            delivery.behind_at = max(delivery.sent_seq, min(join.party_seq, party.seq))
        was_told = session.update_told
        if not self._bind(session, client, now):
            return None
        status = Status.PROMOTED if how == "promote" else Status.SESSION_RESUMED
        self._answer(client, session, join, now, token=token, status=status)
        resyncs = self._reports.counters.resyncs
        redelivered = delivery.resume(now, resync=resync)
        self._reports.resumed(
            session,
            how=how or ("takeover" if attached.was_active else "detached"),
            gap_ms=attached.gap_ms,
            redelivered=redelivered,
            resync=self._reports.counters.resyncs > resyncs,
            from_node=attached.previous_owner.node_id or None,
        )
        self._go_live(session, client, now)
        if was_told or (key.client_id, key.session_id) in party.roster.away:
            await self._session_end.tell(session, Status.PARTICIPANT_REATTACHED)
        return None

    def _brought_here(
        self,
        party: Party,
        join: Join,
        record: SessionRecord,
        handed_over: "HandoverOffer | None",
        now: Now,
    ) -> Session:
        """A session new to this node, from the store and the offer of its previous node."""
        session = self._registry.new_session(
            join.key,
            party,
            fence=record.fence,
            ttl_s=record.ttl_ms / 1000,
            flags=record.flags,
            joined_seq=record.joined_seq,
            joined_at_ms=record.joined_at_ms,
            mono=now.mono,
        )
        position = min(record.cursor, party.seq)
        session.last_signal_id = record.last_signal_id
        if handed_over is not None:
            session.remember_ids(list(handed_over.recent_client_ids))
            position = max(position, handed_over.cursor)
        session.delivery.behind_at = position
        # Messages acknowledged on its previous node, or in this JOIN, are not sent again.
        had = handed_over.acked_above_cursor if handed_over is not None else ()
        session.delivery.known = frozenset((*had, *join.ack_ids))
        return session

    def _displace(self, session: Session, now: Now) -> None:
        """Ends the previous stream of a session that is taken over."""
        old = session.client
        if isinstance(old, ClientStream) and not old.over:
            self._reports.error(Status.TAKEN_OVER)
            old.end(Status.TAKEN_OVER, now)
            self._reports.moved(session, self._node_id)
        session.delivery.unbind()

    def _bind(self, session: Session, client: ClientStream, now: Now) -> bool:
        """False if the stream ended while the store was asked; then the session is detached."""
        if client.over or client.lost:
            session.state = State.ACTIVE
            self._session_end.detach(session, Detached.TRANSPORT, now)
            return False
        session.delivery.bind(client.stream, session.fence)
        session.bound(client, now.mono)
        client.session = session
        client.phase = _JOINED
        return True

    def _answer(
        self,
        client: ClientStream,
        session: Session,
        join: Join,
        now: Now,
        *,
        token: ResumeToken,
        status: Status,
        seq: int = 0,
    ) -> None:
        session.token_hash = token.digest
        epoch, ttl_ms = session.party.epoch, round(session.ttl_s * 1000)
        if status is _OK:
            answer = write.ack_join(
                session.delivery.next_id(),
                now.ms,
                join.message_id,
                seq,
                epoch,
                token.raw,
                ttl_ms,
                self._node_id,
            )
        else:
            answer = write.ack_with(
                session.delivery.next_id(),
                now.ms,
                (join.message_id,),
                status=status,
                party_epoch=epoch,
                resume_token=token.raw,
                session_ttl_ms=ttl_ms,
                node_id=self._node_id,
            )
        client.send(answer)

    def _go_live(self, session: Session, client: ClientStream, now: Now) -> None:
        if session.resumes or not session.delivery.retry_handle:
            self._registry.arm_life(session)
        # Otherwise the retry timer of its LIST is due earlier and arms this one.
        self.on_bound(session, client, now)
