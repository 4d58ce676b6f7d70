"""One presence of one client in one party: what it may say, and when it has been silent too long.

Rule 1: a session is ACTIVE with a stream, DETACHED without one, and ends as LEFT or EXPIRED.
Rule 2: while ACTIVE two timeouts run, each one TTL long: since the last valid message, and since
        something has been waiting for an ack without any coming. While DETACHED there is one
        deadline, a TTL after the stream was lost.
Rule 3: a message is valid if it decodes, is allowed now, has an id where it needs one and is within
        its rate. Only valid messages, repeated ones too, keep a session alive.
Rule 4: an ack that acknowledges something is free; everything else takes a token.
Rule 5: twenty soft errors within a minute, or five hits of the rate limit within ten seconds, are
        a violation that ends the stream.
"""

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from waystation.base.limits import TokenBucket
from waystation.presence.model import (
    EXTENDED,
    NO_DELIVERY,
    WANT_UPDATES,
    Detached,
    Now,
    SessionKey,
    Status,
)
from waystation.presence.settings import Presence
from waystation.presence.wire.client_messages import Ack, ClientInput, Input, Join, Unfit

from .delivery import Delivery
from .recent_ids import RecentIds

if TYPE_CHECKING:
    from waystation.presence.party.party import Party

FAULTS_MAX: Final = 20
FAULT_WINDOW_S: Final = 60.0
RATE_HITS_MAX: Final = 5
RATE_WINDOW_S: Final = 10.0
_EARLY_S: Final = 1e-6
_TRANSPORT: Final = Detached.TRANSPORT


class State(enum.Enum):
    ACTIVE = "active"
    DETACHED = "detached"
    LEFT = "left"
    EXPIRED = "expired"


# Asking an enum's class for a member costs a third of a delivery.
_ACTIVE: Final = State.ACTIVE
_DETACHED: Final = State.DETACHED


class Refusal(msgspec.Struct, frozen=True):
    status: Status
    detail: str = ""
    retry_after_ms: int = 0


def store_busy(settings: Presence) -> Refusal:
    retry_after_ms = round(settings.store_busy_s * 1000)
    return Refusal(Status.STORE_BUSY, "the store does not answer; send again", retry_after_ms)


class Admission(enum.Enum):
    FRESH = enum.auto()
    REPEATED = enum.auto()  # answered, with no further effect


_FRESH: Final = Admission.FRESH
_REPEATED: Final = Admission.REPEATED


class Faults:
    """Soft errors of one stream or session; kept only once there are any."""

    __slots__ = ("_at", "_rate_at")

    def __init__(self) -> None:
        self._at: list[float] = []
        self._rate_at: list[float] = []

    def add(self, status: Status, mono: float) -> bool:
        """Whether that was one too many."""
        self._at = [at for at in self._at if at > mono - FAULT_WINDOW_S]
        self._at.append(mono)
        if status is Status.RATE_LIMITED:
            self._rate_at = [at for at in self._rate_at if at > mono - RATE_WINDOW_S]
            self._rate_at.append(mono)
        return len(self._at) >= FAULTS_MAX or len(self._rate_at) >= RATE_HITS_MAX


_NEVER: Final = frozenset((Unfit, Join))  # of a stream that has joined


@dataclass(slots=True, eq=False, repr=False)  # ids do not reach a log
class Session:
    """Not a struct, for the same reason as `Delivery`."""

    key: SessionKey
    party: "Party"
    delivery: Delivery
    _recent: RecentIds
    _bucket: TokenBucket
    fence: int
    ttl_s: float
    flags: int
    joined_seq: int
    joined_at_ms: int
    joined_mono: float
    last_rx: float
    detached_mono: float
    state: State = _DETACHED
    cause: Detached = _TRANSPORT
    update_told: bool = False
    leaving: bool = False  # a LEAVE is on its way through the store
    perhaps_left: bool = False  # one was, and the store has not answered
    client: object = None
    auth: object = None
    token_hash: bytes = b""  # of the resume token in force
    handed_until: float = 0.0  # how long a ticket for another node works
    last_signal_id: int = 0
    cursor_saved: int = 0
    messages_in: int = 0
    resumes: int = 0
    life_handle: int = 0
    stall_handle: int = 0
    token_handle: int = 0
    faults: Faults | None = None

    def set_wishes(self, ttl_s: float, flags: int) -> None:
        self.ttl_s = ttl_s
        self.flags = flags
        delivery = self.delivery
        delivery.set_ttl(ttl_s)
        delivery.seed = not flags & EXTENDED
        delivery.muted = bool(flags & NO_DELIVERY)
        delivery.detached_marks = bool(flags & WANT_UPDATES)

    # --- inputs ----------------------------------------------------------------------------------

    def admit(
        self, message: ClientInput, now: Now, refusal: Refusal | None = None
    ) -> Admission | Refusal:
        """Whether a message counts; acks that it carries are applied when it does."""
        mono = now.mono
        delivery = self.delivery
        kind, ids, upto = type(message), message.ack_ids, message.party_seq
        if not (kind is Ack and delivery.owes(ids, upto)):
            wait_s = self._bucket.take(mono)
            if wait_s:
                return Refusal(Status.RATE_LIMITED, "too many messages", int(wait_s * 1000) + 1)
        if kind in _NEVER:
            if isinstance(message, Unfit):
                return Refusal(message.status, message.detail)
            return Refusal(Status.ALREADY_JOINED, "the stream has joined")
        if message.names is not None and not self._names_fit(message.names):
            return Refusal(Status.INVALID_FIELD, "ids of another session")
        if upto and upto > max(delivery.sent_seq, delivery.list_seq):
            return Refusal(Status.INVALID_FIELD, "party_seq is above what was sent")  # or told
        if refusal is not None:
            return refusal
        self.last_rx = mono
        self.messages_in += 1
        if ids or upto:
            delivery.acked(ids, upto, now)
        if kind is Ack or self._recent.add(message.message_id):
            return _FRESH
        return _REPEATED

    def _names_fit(self, names: tuple[int, int, int]) -> bool:
        return all(given in (0, own) for given, own in zip(names, self.key, strict=True))

    def remember(self, message: Input) -> bool:
        """Whether its id is new to the session."""
        return self._recent.add(message.message_id)

    def forget_id(self, message_id: int) -> None:
        """It had no effect after all, so it may come again."""
        self._recent.forget(message_id)

    def recent_ids(self) -> list[int]:
        return self._recent.oldest_first()

    def remember_ids(self, ids: list[int]) -> None:
        self._recent.extend(ids)

    def fault(self, status: Status, mono: float) -> bool:
        """A soft error was answered; whether the stream must end for it."""
        if self.faults is None:
            self.faults = Faults()
        return self.faults.add(status, mono)

    # --- the stream ------------------------------------------------------------------------------

    def bound(self, client: object, mono: float) -> None:
        self.state = _ACTIVE
        self.client = client
        self.last_rx = mono
        self.faults = None
        self.update_told = False

    def detached(self, cause: Detached, mono: float) -> None:
        self.state = _DETACHED
        self.client = None
        self.cause = cause
        self.detached_mono = mono
        self.delivery.unbind()

    def ended(self, state: State) -> None:
        self.state = state
        self.client = None
        self.delivery.unbind()

    # --- time ------------------------------------------------------------------------------------

    def deadline(self) -> float:
        """When to look next: nothing is due before."""
        if self.state is _DETACHED:
            return self.detached_mono + self.ttl_s
        since = self.delivery.unacked_since
        start = self.last_rx if since is None or since > self.last_rx else since
        return start + self.ttl_s

    def overdue(self, mono: float) -> Status | None:
        """Why the session has ended by now, if it has."""
        late = mono - self.ttl_s + _EARLY_S
        if self.state is State.DETACHED:
            return self.cause.leave_reason if self.detached_mono <= late else None
        if self.state is not State.ACTIVE:
            return None
        if self.last_rx <= late:
            return Status.CLIENT_TIMEOUT
        since = self.delivery.unacked_since
        if since is not None and since <= late:
            return Status.ACK_TIMEOUT
        return None
