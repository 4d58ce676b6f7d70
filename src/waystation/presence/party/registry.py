"""The parties, sessions, streams and timers of one node.

All timers are in one wheel. The timeout of a session is armed once per TTL, not per message; if it
is due too early, it is armed again. Streams without a JOIN all have the same timeout and are kept
in a dict in the order of their deadlines.
"""

from collections.abc import Callable
from typing import Any, Final

from waystation.base.clock import Clock
from waystation.base.limits import TokenBucket
from waystation.base.timer_wheel import TimerWheel
from waystation.presence.model import EXTENDED, ClientId, Now, PartyId, SessionKey
from waystation.presence.session.client_stream import ClientStream
from waystation.presence.session.delivery import Delivery
from waystation.presence.session.in_flight import DeliveryPort, Terms
from waystation.presence.session.recent_ids import RecentIds
from waystation.presence.session.session import Session, State
from waystation.presence.settings import LADDER_TTL_S, Presence

from .party import Party

EXPIRED_AT_ONCE_MAX: Final = 2000  # timers run in one tick

_EARLY_S: Final = 1e-6
_DETACHED: Final = State.DETACHED  # a module constant: reading an enum member is slow
Timer = Session | Delivery | ClientStream | Callable[[Now], None]


def _now_by(clock: Clock) -> Callable[[], Now]:
    mono, now_ns = clock.mono, clock.now_ns  # bound methods: no extra Python call

    def now() -> Now:
        return Now(mono(), now_ns() // 1_000_000)

    return now


class Registry:
    def __init__(self, settings: Presence, clock: Clock, port: DeliveryPort) -> None:
        self.settings = settings
        self.mono = clock.mono
        self.now = _now_by(clock)
        self._port = port
        self.parties: dict[PartyId, Party] = {}
        self.sessions: dict[SessionKey, Session] = {}
        self.open_streams: set[ClientStream] = set()
        self.unjoined: dict[ClientStream, float] = {}  # -> deadline, ascending
        self.wheel: TimerWheel[Timer] = TimerWheel(
            settings.tick_s, settings.wheel_slots, clock.mono()
        )
        self.unattended: dict[SessionKey, int] = {}  # of an earlier process -> their timers
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

    # --- timers ----------------------------------------------------------------------------------

    def arm(self, deadline: float, timer: Timer) -> int:
        self.insertions += 1
        return self.wheel.add(deadline, timer)

    def joined(self, client: ClientStream) -> None:
        """The stream has joined or ended: stops its JOIN timeout."""
        if self.unjoined.pop(client, None) is None and client.join_handle:
            self.wheel.cancel(client.join_handle)
            client.join_handle = 0

    def late_to_join(self, mono: float) -> list[ClientStream]:
        late: list[ClientStream] = []
        for client, until in self.unjoined.items():
            if until > mono + _EARLY_S:
                break
            late.append(client)
        for client in late:
            del self.unjoined[client]
        return late

    def arm_life(self, session: Session) -> None:
        """Arms the timeout of a session; a pending one is cancelled at a change of state."""
        if session.life_handle:
            self.wheel.cancel(session.life_handle)
        deadline = session.deadline()
        if session.state is _DETACHED and not session.update_told:
            settings = self.settings
            if settings.updates_enabled and settings.update_after_s < session.ttl_s:
                deadline = session.detached_mono + settings.update_after_s
        session.life_handle = self.arm(deadline, session)

    def disarm(self, session: Session) -> None:
        delivery, cancel = session.delivery, self.wheel.cancel
        if session.life_handle:
            cancel(session.life_handle)
            session.life_handle = 0
        if delivery.retry_handle:
            cancel(delivery.retry_handle)
            delivery.retry_handle = 0
        if session.stall_handle:
            cancel(session.stall_handle)
            session.stall_handle = 0
        if session.token_handle:
            cancel(session.token_handle)
            session.token_handle = 0

    def due(self, mono: float) -> list[Timer]:
        return self.wheel.advance(mono, EXPIRED_AT_ONCE_MAX)

    # --- parties ---------------------------------------------------------------------------------

    def follow(self, party_id: PartyId) -> Party:
        """The party, with `busy` raised; the caller lowers it and calls `release`."""
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
        settings, terms, port = self.settings, self._terms, self._port
        party_id, client_id, session_id = key
        delivery = Delivery(
            party,
            client_id,
            session_id,
            terms,
            port,
            port.counters,
            terms.inflight_max,
            terms.ladder_s,
            party.seq,
        )
        session = delivery.holder = Session(
            key,
            party,
            delivery,
            RecentIds(settings.dedup_window),
            TokenBucket(settings.rate_per_s, settings.rate_burst),
            fence,
            ttl_s,
            flags,
            joined_seq,
            joined_at_ms,
            mono,
            mono,
            mono,
        )
        if flags != EXTENDED or ttl_s != LADDER_TTL_S:  # otherwise the defaults are right
            session.set_options(ttl_s, flags)
        if self.unattended:
            self.wheel.cancel(self.unattended.pop(key, 0))
        self.sessions[key] = session
        party.sessions[client_id, session_id] = session
        mine = self._client_parties.get(client_id)
        if mine is None:
            self._client_parties[client_id] = {party_id: 1}
        else:
            mine[party_id] = mine.get(party_id, 0) + 1
        return session

    def drop(self, session: Session) -> None:
        """Removes a session from this node."""
        self.disarm(session)
        session.delivery.holder = None  # breaks a reference cycle
        if self.sessions.pop(session.key, None) is None:
            return
        party_id, client_id, session_id = session.key
        session.party.sessions.pop((client_id, session_id), None)
        mine = self._client_parties[client_id]
        left = mine[party_id] - 1
        if left:
            mine[party_id] = left
        elif len(mine) > 1:
            del mine[party_id]
        else:
            del self._client_parties[client_id]

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
