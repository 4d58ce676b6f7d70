"""What a participant is told, and what it may wish for."""

import enum

import msgspec

from waystation.base.errors import RejectedError, UnavailableError


class PartyRefusedError(RejectedError):
    """The broker does not let us take part, and asking again would not help.

    `code` is its status code; docs/protocols/presence.md says what each means.
    """

    label = "party_refused"

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class PartyUnreachableError(UnavailableError):
    """No broker has answered in time."""

    label = "party_unreachable"


class State(enum.Enum):
    """Where the session stands."""

    IDLE = "idle"
    CONNECTING = "connecting"
    SINGLE = "single"  # one stream
    PAIRED = "paired"  # and a standby on another node
    PROMOTING = "promoting"  # the standby is asked to take over
    CLOSED = "closed"


class Participant(msgspec.Struct, frozen=True, order=True):
    """One session of one client."""

    client_id: int
    session_id: int


class Snapshot(msgspec.Struct, frozen=True):
    """Who is there, ourselves aside; everything that was told before is replaced."""

    participants: tuple[Participant, ...]
    party_seq: int


class Joined(msgspec.Struct, frozen=True):
    who: Participant
    sessions: int  # that the client has now; 1: it has just come online
    at_ms: int
    party_seq: int


class Left(msgspec.Struct, frozen=True):
    who: Participant
    reason: int  # a StatusCode: 0 left, 2 timed out, …
    sessions: int  # that the client has left; 0: it is offline now
    at_ms: int
    party_seq: int


class Resynced(msgspec.Struct, frozen=True):
    """As a snapshot, after single messages could not be delivered."""

    participants: tuple[Participant, ...]
    party_seq: int


class Reachability(msgspec.Struct, frozen=True):
    """A participant lost its connection, or has it back (only if asked for)."""

    who: Participant
    attached: bool


class Signalled(msgspec.Struct, frozen=True):
    """A small payload that a participant sent to the party."""

    who: Participant
    payload: bytes
    at_ms: int
    party_seq: int


class ContinuityLost(msgspec.Struct, frozen=True):
    """We were away for too long: the party saw us leave, and we may have missed something."""


class StateChanged(msgspec.Struct, frozen=True):
    state: State


class TokenRefused(msgspec.Struct, frozen=True):
    """The broker did not take the renewed token; the old one stays in force until it ends."""


Event = (
    Snapshot
    | Joined
    | Left
    | Resynced
    | Reachability
    | Signalled
    | ContinuityLost
    | StateChanged
    | TokenRefused
)


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """How a session behaves; the defaults are those of the protocol."""

    party_id: int
    client_id: int
    session_id: int
    session_ttl_ms: int = 120_000
    want_updates: bool = False
    no_delivery: bool = False
    highly_available: bool = False  # keep a standby on another node
    ack_delay_s: float = 0.25
    ack_batch: int = 32
    answer_timeout_s: float = 10.0
    ha_ping_s: float = 10.0
    ha_answer_timeout_s: float = 5.0
    avoid_s: float = 30.0  # how long a node that failed is not asked to be the standby
    backoff_min_s: float = 0.1
    backoff_max_s: float = 10.0
    leave_timeout_s: float = 5.0

    @property
    def answer_s(self) -> float:
        """How long an answer may take before the stream counts as dead."""
        return self.ha_answer_timeout_s if self.highly_available else self.answer_timeout_s

    def ping_s(self, ttl_s: float) -> float:
        return min(ttl_s / 2, self.ha_ping_s) if self.highly_available else ttl_s / 2
