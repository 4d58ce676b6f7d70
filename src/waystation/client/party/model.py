"""Events, options and errors of a party client."""

import enum

import msgspec

from waystation.base.errors import RejectedError, UnavailableError


class PartyRefusedError(RejectedError):
    """The broker refused the session; joining again would not help.

    `code` is its status code; docs/protocols/presence.md says what each means.
    """

    label = "party_refused"

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class PartyUnreachableError(UnavailableError):
    """No broker answered in time."""

    label = "party_unreachable"


class State(enum.Enum):
    """State of a session."""

    IDLE = "idle"
    CONNECTING = "connecting"
    SINGLE = "single"  # joined, one stream
    PAIRED = "paired"  # joined, with a standby on another node
    PROMOTING = "promoting"  # PROMOTE was sent on the standby
    CLOSED = "closed"


class Participant(msgspec.Struct, frozen=True, order=True):
    """One session of one client."""

    client_id: int
    session_id: int


class Snapshot(msgspec.Struct, frozen=True):
    """The other participants; replaces everything from earlier events."""

    participants: tuple[Participant, ...]
    party_seq: int


class Joined(msgspec.Struct, frozen=True):
    who: Participant
    sessions: int  # of the client after the join; 1: the client has come online
    at_ms: int
    party_seq: int


class Left(msgspec.Struct, frozen=True):
    who: Participant
    reason: int  # a StatusCode: 0 left, 2 timed out, …
    sessions: int  # of the client that remain; 0: the client is offline
    at_ms: int
    party_seq: int


class Resynced(msgspec.Struct, frozen=True):
    """Like `Snapshot`; replaces messages that could not be delivered one by one."""

    participants: tuple[Participant, ...]
    party_seq: int


class Reachability(msgspec.Struct, frozen=True):
    """A participant lost or regained its stream (only with `want_updates`)."""

    who: Participant
    attached: bool


class Signalled(msgspec.Struct, frozen=True):
    """A small payload that a participant sent to the party."""

    who: Participant
    payload: bytes
    at_ms: int
    party_seq: int


class ContinuityLost(msgspec.Struct, frozen=True):
    """Disconnected for longer than the TTL: the party saw us leave, and events may be missing."""


class StateChanged(msgspec.Struct, frozen=True):
    state: State


class TokenRefused(msgspec.Struct, frozen=True):
    """The broker refused the renewed token; the old one is valid until it expires."""


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


class SessionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a session; the defaults are those of the protocol."""

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
    avoid_s: float = 30.0  # how long a node that failed is not used for a standby
    backoff_min_s: float = 0.1
    backoff_max_s: float = 10.0
    leave_timeout_s: float = 5.0

    @property
    def answer_s(self) -> float:
        """Time without an answer after which a stream is dead."""
        return self.ha_answer_timeout_s if self.highly_available else self.answer_timeout_s

    def ping_s(self, ttl_s: float) -> float:
        return min(ttl_s / 2, self.ha_ping_s) if self.highly_available else ttl_s / 2
