"""Types of presence: ids, message types, status codes, log entries, session records.

Ids are unsigned 64-bit numbers, never 0, chosen by clients; logs and events contain only hashes.
Wall time is in milliseconds and is shown to clients and stored; timeouts use monotonic time.
"""

import enum
from typing import Final, NamedTuple, NewType

import msgspec

PartyId = NewType("PartyId", int)
ClientId = NewType("ClientId", int)
SessionId = NewType("SessionId", int)

ID_MAX: Final = 2**64 - 1


class Now(msgspec.Struct, frozen=True, gc=False):
    """One moment on both clocks, passed along with every input."""

    mono: float
    ms: int


class SessionKey(NamedTuple):
    party_id: PartyId
    client_id: ClientId
    session_id: SessionId


def session_key(party_id: int, client_id: int, session_id: int) -> SessionKey:
    """A key; three times as fast as calling the class."""
    ids = (party_id, client_id, session_id)
    return tuple.__new__(SessionKey, ids)  # pyright: ignore[reportUnknownMemberType]


class MessageType(enum.IntEnum):
    ERROR = 0
    ACK = 1
    JOIN = 2
    LEAVE = 3
    LIST = 4
    PING = 5
    DRAIN = 6
    HANDOFF = 7
    PROMOTE = 8
    AUTH = 9
    UPDATE = 10
    SIGNAL = 11


class Status(enum.IntEnum):
    """0-15 information; 16-31 reason of a LEAVE; 32-63 request failed, stream goes on;
    64-95 stream ends, do not repeat the request; 96-127 stream ends, reconnect."""

    OK = 0
    INTERNAL_ERROR = 1
    CLIENT_TIMEOUT = 2
    SESSION_ID_IN_USE = 3
    SESSION_RESUMED = 4
    LIST_RESYNC = 5
    STANDBY_ATTACHED = 6
    PROMOTED = 7
    PARTICIPANT_DETACHED = 8
    PARTICIPANT_REATTACHED = 9
    TOKEN_EXPIRING = 10
    TOKEN_ACCEPTED = 11
    ACK_TIMEOUT = 16
    REMOVED_BY_ADMIN = 17
    SLOW_CONSUMER = 18
    TOKEN_EXPIRED = 19
    NODE_LOST = 20
    PARTY_CLOSED = 21
    REPLACED_BY_NEWER_SESSION = 22
    BAD_MESSAGE_TYPE = 32
    INVALID_FIELD = 33
    MISSING_MESSAGE_ID = 34
    RATE_LIMITED = 35
    TOO_MANY_ACK_IDS = 36
    PAYLOAD_TOO_LARGE = 37
    NOT_SUPPORTED = 38
    ALREADY_JOINED = 39
    TOKEN_REJECTED = 40
    NOT_STANDBY = 41
    STORE_BUSY = 42
    JOIN_REQUIRED = 64
    INVALID_IDENTIFIER = 65
    UNAUTHENTICATED = 66
    PERMISSION_DENIED = 67
    PARTY_FULL = 68
    SESSION_LIMIT = 69
    RESUME_REJECTED = 70
    SESSION_NOT_FOUND = 71
    TAKEN_OVER = 72
    PROTOCOL_VIOLATION = 73
    MALFORMED_MESSAGE = 74
    DRAINING = 96
    HANDOFF_REQUIRED = 97
    OVERLOADED = 98
    STORE_UNAVAILABLE = 99
    SESSION_MOVED = 100
    WRITE_STALLED = 101
    REAUTHENTICATE = 102


class Flags(enum.IntFlag):
    """Flags of a JOIN."""

    NONE = 0
    RESUME_ONLY = 1
    STANDBY = 2
    WANT_UPDATES = 4
    NO_DELIVERY = 8


# Plain integers: `&` on enum members takes as long as a delivery.
RESUME_ONLY: Final = int(Flags.RESUME_ONLY)
STANDBY: Final = int(Flags.STANDBY)
WANT_UPDATES: Final = int(Flags.WANT_UPDATES)
NO_DELIVERY: Final = int(Flags.NO_DELIVERY)
FLAGS_KEPT: Final = WANT_UPDATES | NO_DELIVERY
EXTENDED: Final = 256  # stored beside the kept flags: the client uses more than the seed's fields


def merged_flags(known: int, wished: int) -> int:
    """The flags of a resumed session: those of its last JOIN that had any."""
    wishes = wished & FLAGS_KEPT or known & FLAGS_KEPT
    return wishes | (known | wished) & EXTENDED


class Detached(enum.IntEnum):
    """Why a session lost its stream; the `code` of `party.session_detached`."""

    EOF = 1
    RESET = 2
    TRANSPORT = 3
    STALLED = 4
    SLOW = 5
    TOKEN = 6
    DRAIN = 7
    NODE_LOST = 8
    BAD_INPUT = 9
    FAILURE = 10

    @property
    def leave_reason(self) -> Status:
        """The status of the LEAVE if the session is not resumed."""
        return _REASONS.get(self, Status.CLIENT_TIMEOUT)


_REASONS: Final = {
    Detached.SLOW: Status.SLOW_CONSUMER,
    Detached.TOKEN: Status.TOKEN_EXPIRED,
    Detached.NODE_LOST: Status.NODE_LOST,
}


class Entry(msgspec.Struct, frozen=True, gc=False):
    """An entry of a party's log: JOIN, LEAVE or SIGNAL with all announced fields."""

    seq: int
    kind: MessageType
    client_id: ClientId
    session_id: SessionId
    message_id: int
    at_ms: int
    count: int = 0  # sessions that the client has in the party afterwards
    code: int = 0  # of a LEAVE: why
    payload: bytes = b""


class Member(NamedTuple):
    client_id: ClientId
    session_id: SessionId
    detached: bool


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A session as the store keeps it."""

    key: SessionKey
    active: bool
    owner: str
    incarnation: int
    fence: int
    joined_seq: int
    joined_at_ms: int
    cursor: int
    ttl_ms: int
    flags: int = 0
    token_hash: bytes = b""
    previous_hash: bytes = b""
    previous_until_ms: int = 0
    detached_at_ms: int = 0
    deadline_ms: int = 0
    cause: int = 0
    last_signal_id: int = 0
    token_exp_ms: int = 0


# --- deduplication ids ---------------------------------------------------------------------------

EPOCH_2020_MS: Final = 1_577_836_800_000
_BROKER: Final = 1 << 63
_LOCAL: Final = _BROKER | 1 << 62
_COUNTER_BITS: Final = 21
_FENCE_MASK: Final = (1 << 30) - 1
LOCAL_COUNTER_MASK: Final = (1 << 32) - 1


def next_tick(tick: int, now_ms: int) -> int:
    """Advances the party's hybrid clock by at least one, and at least to the wall clock.

    A tick is bits 61 to 0 of a party message's id: ms since 2020, then a counter.
    """
    by_the_wall, following = (now_ms - EPOCH_2020_MS) << _COUNTER_BITS, tick + 1
    return by_the_wall if by_the_wall > following else following  # noqa: FURB136 for every entry


def party_message_id(tick: int) -> int:
    return _BROKER | tick


def tick_of(message_id: int) -> int:
    return message_id & (1 << 62) - 1


def local_id_base(fence: int) -> int:
    """Ids of local messages of one attachment are this plus 1, 2, 3, …"""
    return _LOCAL | (fence & _FENCE_MASK) << 32


def is_local_id(message_id: int) -> bool:
    return message_id & _LOCAL == _LOCAL
