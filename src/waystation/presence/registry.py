"""The tables of one node: which parties it follows, which sessions are its own, and their timers.

One wheel serves all timers. An entry of a session's life is put in once for each TTL, not for each
message: when it comes out too soon it goes in again.
"""

from collections.abc import Callable
from typing import Any, Final

from waystation.base.clock import Clock
from waystation.base.limits import TokenBucket
from waystation.base.wheel import Wheel

from .conversation import Conversation
from .delivery import Delivery
from .flight import Desk, Terms
from .log import Now
from .model import ClientId, PartyId, SessionKey
from .party import Party
from .session import Session, State
from .settings import Presence

EXPIRED_AT_ONCE_MAX: Final = 2000  # timers handled before the loop gets its turn

Timer = Session | Delivery | Conversation | Callable[[Now], None]


class Registry:
    def __init__(self, settings: Presence, clock: Clock, desk: Desk) -> None:
        self.settings = settings
        self.mono = clock.mono
        self._now_ms = clock.now_ms
        self._desk = desk
        self.parties: dict[PartyId, Party] = {}
        self.sessions: dict[SessionKey, Session] = {}
        self.conversations: set[Conversation] = set()
        self.wheel: Wheel[Timer] = Wheel(settings.tick_s, settings.wheel_slots, clock.mono())
        self.unattended: dict[SessionKey, int] = {}  # left by a process before us: their timers
        self.insertions = 0
        self._client_parties: dict[ClientId, dict[PartyId, int]] = {}
        self._terms = Terms(
            inflight_max=settings.max_inflight,
            lag_max=settings.max_lag,
            deliveries_max=settings.max_deliveries,
            ladder_s=settings.ack_wait_ladder_s,
            conflations_max=settings.slow_conflations_max,
            conflation_window_s=settings.slow_window_s,
        )

    def now(self) -> Now:
        return Now(self.mono(), self._now_ms())

    # --- timers ----------------------------------------------------------------------------------

    def arm(self, deadline: float, timer: Timer) -> int:
        self.insertions += 1
        return self.wheel.add(deadline, timer)

    def arm_life(self, session: Session) -> None:
        """Once a TTL; at a change of state the entry before is taken out."""
        if session.life_handle:
            self.wheel.cancel(session.life_handle)
        deadline = session.deadline()
        if session.state is State.DETACHED and not session.update_told:
            settings = self.settings
            if settings.updates_enabled and settings.update_after_s < session.ttl_s:
                deadline = session.detached_mono + settings.update_after_s
        session.life_handle = self.arm(deadline, session)

    def disarm(self, session: Session) -> None:
        delivery = session.delivery
        handles = (session.life_handle, session.stall_handle, session.token_handle)
        for handle in (*handles, delivery.retry_handle):
            if handle:
                self.wheel.cancel(handle)
        delivery.retry_handle = 0
        session.life_handle = session.stall_handle = session.token_handle = 0

    def due(self, mono: float) -> list[Timer]:
        return self.wheel.advance(mono, EXPIRED_AT_ONCE_MAX)

    # --- parties ---------------------------------------------------------------------------------

    def follow(self, party_id: PartyId) -> Party:
        """The party, for somebody who is about to need it: `release` when that is done."""
        party = self.parties.get(party_id)
        if party is None:
            party = Party(party_id, log_max=self.settings.party_log, mono=self.mono())
            self.parties[party_id] = party
        party.busy += 1
        return party

    # --- sessions --------------------------------------------------------------------------------

    def new_session(
        self,
        key: SessionKey,
        party: Party,
        *,
        fence: int,
        ttl_s: float,
        flags: int,
        joined_seq: int,
        joined_at_ms: int,
        mono: float,
    ) -> Session:
        settings = self.settings

        def make_delivery(session: Session) -> Delivery:
            return Delivery(
                party,
                key.client_id,
                key.session_id,
                holder=session,
                terms=self._terms,
                desk=self._desk,
                ttl_s=ttl_s,
            )

        session = Session(
            key,
            party,
            fence=fence,
            ttl_s=ttl_s,
            flags=flags,
            joined_seq=joined_seq,
            joined_at_ms=joined_at_ms,
            dedup_max=settings.dedup_window,
            make_bucket=lambda: TokenBucket(settings.rate_per_s, settings.rate_burst),
            make_delivery=make_delivery,
            mono=mono,
        )
        waiting = self.unattended.pop(key, 0)
        if waiting:
            self.wheel.cancel(waiting)
        self.sessions[key] = session
        party.sessions[key] = session
        mine = self._client_parties.setdefault(key.client_id, {})
        mine[key.party_id] = mine.get(key.party_id, 0) + 1
        return session

    def drop(self, session: Session) -> None:
        """The node has nothing more to do with it."""
        self.disarm(session)
        if self.sessions.pop(session.key, None) is None:
            return
        party = session.party
        party.sessions.pop(session.key, None)
        party.recipients.pop(session.delivery, None)
        mine = self._client_parties[session.key.client_id]
        mine[party.party_id] -= 1
        if not mine[party.party_id]:
            del mine[party.party_id]
            if not mine:
                del self._client_parties[session.key.client_id]

    def parties_of(self, client_id: ClientId) -> int:
        return len(self._client_parties.get(client_id, ()))

    def in_party(self, client_id: ClientId, party_id: PartyId) -> bool:
        return party_id in self._client_parties.get(client_id, ())

    def numbers(self) -> dict[str, Any]:
        active = sum(session.state is State.ACTIVE for session in self.sessions.values())
        return {
            "parties": len(self.parties),
            "active": active,
            "detached": len(self.sessions) - active,
            "timers": len(self.wheel),
        }
