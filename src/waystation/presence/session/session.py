"""A session of a client in a party: its states, which messages it accepts, its timeouts.

Rule 1: a session is ACTIVE with a stream, DETACHED without one, and ends as LEFT or EXPIRED.
Rule 2: while ACTIVE, two timeouts of one TTL run: since the last valid message, and since messages
        are unacknowledged without any ack. While DETACHED there is one deadline, a TTL after the
        stream was lost.
Rule 3: a message is valid if it decodes, is allowed in this state, has an id where it needs one and
        is within the rate limit. Only valid messages, repeated ones too, prolong a session.
Rule 4: an ack that acknowledges something is free; every other message counts against the rate.
Rule 5: twenty soft errors within a minute, or five hits of the rate limit within ten seconds, end
        the stream with PROTOCOL_VIOLATION.
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


# Module constants: reading an enum member takes a third of a delivery's time.
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
    REPEATED = enum.auto()  # a known message id: answered, without further effect


_FRESH: Final = Admission.FRESH
_REPEATED: Final = Admission.REPEATED


class Faults:
    """Soft errors of one stream or session; made at the first one."""

    __slots__ = ("_at", "_rate_at")

    def __init__(self) -> None:
        self._at: list[float] = []
        self._rate_at: list[float] = []

    def add(self, status: Status, mono: float) -> bool:
        """Counts an error; True if it is one too many (rule 5)."""
        self._at = [at for at in self._at if at > mono - FAULT_WINDOW_S]
        self._at.append(mono)
        if status is Status.RATE_LIMITED:
            self._rate_at = [at for at in self._rate_at if at > mono - RATE_WINDOW_S]
            self._rate_at.append(mono)
        return len(self._at) >= FAULTS_MAX or len(self._rate_at) >= RATE_HITS_MAX


_NEVER: Final = frozenset((Unfit, Join))  # not accepted on a stream that has joined


@dataclass(slots=True, eq=False, repr=False)  # ids do not reach a log
class Session:
    """A dataclass, for the same reason as `Delivery`."""

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
    leaving: bool = False  # the store is recording its LEAVE
    may_have_left: bool = False  # a LEAVE may be recorded: the store did not answer
    client: object = None
    auth: object = None
    token_hash: bytes = b""  # of the newest resume token
    handed_until: float = 0.0  # until then a ticket for another node is valid
    last_signal_id: int = 0
    cursor_saved: int = 0
    messages_in: int = 0
    resumes: int = 0
    life_handle: int = 0
    stall_handle: int = 0
    token_handle: int = 0
    faults: Faults | None = None

    def set_options(self, ttl_s: float, flags: int) -> None:
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
        """Whether a message is valid; the acks of a valid message are applied."""
        mono = now.mono
        delivery = self.delivery
        kind, ids, upto = type(message), message.ack_ids, message.party_seq
        if not (kind is Ack and delivery.would_acknowledge(ids, upto)):
            wait_s = self._bucket.take(mono)
            if wait_s:
                return Refusal(
                    Status.RATE_LIMITED,
                    "message rate exceeded; wait for retry_after_ms",
                    int(wait_s * 1000) + 1,
                )
        if kind in _NEVER:
            if isinstance(message, Unfit):
                return Refusal(message.status, message.detail)
            return Refusal(Status.ALREADY_JOINED, "this stream has joined; open another one")
        if message.names is not None and not self._names_fit(message.names):
            return Refusal(Status.INVALID_FIELD, "party, client or session id of another session")
        if upto and upto > max(delivery.sent_seq, delivery.list_seq):
            return Refusal(Status.INVALID_FIELD, f"party_seq {upto} was not sent yet")
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
        """Remembers the message id; False if it is known already."""
        return self._recent.add(message.message_id)

    def forget_id(self, message_id: int) -> None:
        """The message had no effect, so the client may send it again."""
        self._recent.forget(message_id)

    def recent_ids(self) -> list[int]:
        return self._recent.oldest_first()

    def remember_ids(self, ids: list[int]) -> None:
        self._recent.extend(ids)

    def fault(self, status: Status, mono: float) -> bool:
        """Counts a soft error; whether the stream must end for it."""
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
        """No timeout is due before."""
        if self.state is _DETACHED:
            return self.detached_mono + self.ttl_s
        since = self.delivery.unacked_since
        start = self.last_rx if since is None or since > self.last_rx else since
        return start + self.ttl_s

    def overdue(self, mono: float) -> Status | None:
        """The status with which the session ends, if a timeout is over."""
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
