"""What presence asks of storage.

Rule 1: every operation on a party is atomic, and all operations on one party have one order. The
        store is the only sequencer: it gives `seq`, time and message id to what it appends.
Rule 2: an operation that changed something has been recorded when it returns (on a durable store:
        on disk), and its entries have been, or will be, given to every subscriber in `seq` order.
Rule 3: what may lose a race says so in its result and changes nothing. Trouble with the store
        itself is raised (`STORE_TROUBLE`), and then nothing was changed, or nobody can know.
Rule 4: a write of an owner carries the session's fence. An older fence is refused, so somebody who
        comes late cannot touch a session that has moved on.
Rule 5: cursors are saved lazily; losing some only repeats deliveries.
"""

import hmac
from collections.abc import Sequence
from typing import Protocol

import msgspec

from .model import Entry, Member, PartyId, SessionKey, SessionRecord, Status


class Owner(msgspec.Struct, frozen=True):
    """A life of a node."""

    node_id: str
    incarnation: int


class JoinSpec(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a new session brings, and the limits it must keep."""

    ttl_ms: int
    flags: int
    token_hash: bytes
    party_max: int
    client_sessions_max: int
    evict_oldest: bool = False
    id_unique_in_party: bool = False
    """Whether a session id that another client of the party uses is refused."""
    token_exp_ms: int = 0
    known_seq: int | None = None
    """How far the caller follows the party already; None: it needs the members."""
    known_epoch: int = 0


class Joined(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    seq: int
    epoch: int
    fence: int
    at_ms: int
    device_sessions: int
    party_size: int
    opened: bool = False
    """The party was empty, or did not exist."""
    members: Sequence[Member] | None = None
    """Everybody at `seq`, the new session too; None if the caller follows the party."""
    entries: Sequence[Entry] = ()
    """What lies between `known_seq` and `seq`, if the subscription may not have brought it yet."""


class Exists(msgspec.Struct, frozen=True):
    """A session of that key is there already; nothing was changed."""

    record: SessionRecord


class Rejected(msgspec.Struct, frozen=True):
    status: Status
    retry_after_ms: int = 0


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """Why an attach may happen."""

    token_hash: bytes | None = None
    trusted: bool = False
    """A ticket of a hand-off was checked, or a standby is promoted."""
    token_required: bool = False
    grace_ms: int = 30_000
    """How long the hash that is replaced stays good."""


def weigh(record: SessionRecord, proof: Proof, now_ms: int) -> Status | None:
    """Why the session may not be attached with this proof; None if it may."""
    if proof.trusted:
        return None
    given = proof.token_hash
    if given is None:
        if record.active:
            return Status.SESSION_ID_IN_USE
        return Status.RESUME_REJECTED if proof.token_required else None
    if hmac.compare_digest(given, record.token_hash):
        return None
    previous = record.previous_hash
    if previous and now_ms < record.previous_until_ms and hmac.compare_digest(given, previous):
        return None
    return Status.RESUME_REJECTED


def token_before(record: SessionRecord, proof: Proof) -> bytes:
    """The hash that stays good beside the new one: of the token that the client has shown, which
    it certainly has. The newest may never have reached it; if answers are lost twice in a row it
    must not be locked out."""
    if proof.token_hash is None or proof.trusted:
        return record.token_hash
    return proof.token_hash


class AttachSpec(msgspec.Struct, frozen=True, kw_only=True):
    proof: Proof
    new_hash: bytes
    ttl_ms: int | None = None
    flags: int = 0
    """As `merged_flags` has it."""
    token_exp_ms: int = 0
    known_seq: int | None = None
    known_epoch: int = 0


class Attached(msgspec.Struct, frozen=True, kw_only=True):
    record: SessionRecord
    """As it is now: the new fence, the caller as owner; `cursor` as it was saved."""
    was_active: bool
    previous_owner: Owner
    gap_ms: int
    seq: int
    epoch: int
    members: Sequence[Member] | None = None
    entries: Sequence[Entry] = ()


class Missing(msgspec.Struct, frozen=True):
    """There is no such session."""


class Left(msgspec.Struct, frozen=True, gc=False):
    seq: int
    party_size: int
    count: int


class Signalled(msgspec.Struct, frozen=True, gc=False):
    seq: int


class Duplicate(msgspec.Struct, frozen=True):
    """That signal was appended before."""


class CursorRow(msgspec.Struct, frozen=True):
    key: SessionKey
    fence: int
    cursor: int


class PartySnapshot(msgspec.Struct, frozen=True, kw_only=True):
    epoch: int
    seq: int
    sessions: Sequence[SessionRecord]


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """What nodes tell each other about a session beside the log; may be lost."""

    key: SessionKey
    status: Status
    """SESSION_RESUMED (it is attached with `fence`), PARTICIPANT_DETACHED or _REATTACHED."""
    fence: int = 0
    node_id: str = ""


class PartyListener(Protocol):
    """Called on the loop, never waits. Entries come in `seq` order but for what a store calls a
    gap: a listener that misses some asks `read_log`."""

    def entry(self, party_id: PartyId, entry: Entry) -> None: ...

    def notice(self, notice: Notice) -> None: ...


class PresenceStore(Protocol):
    async def start(self, owner: Owner, listener: PartyListener) -> Sequence[SessionRecord]:
        """Before anything else. Sessions whose stream was lost with an earlier life of this
        store's only node, each with its deadline; a shared store returns none."""
        ...

    async def subscribe(self, party_id: PartyId) -> None:
        """When it returns, whatever is appended is told to the listener."""
        ...

    def unsubscribe(self, party_id: PartyId) -> None: ...

    async def join(self, key: SessionKey, spec: JoinSpec) -> Joined | Exists | Rejected: ...

    async def attach(self, key: SessionKey, spec: AttachSpec) -> Attached | Missing | Rejected:
        """The proof is checked first; a wrong one changes nothing."""
        ...

    async def detach(self, key: SessionKey, fence: int, *, cursor: int, cause: int) -> bool:
        """No stream any more: the deadline is one TTL from now. Applied if the fence fits."""
        ...

    async def leave(self, key: SessionKey, fence: int, code: Status) -> Left | None:
        """None if it is gone or its fence has moved on; fence 0 fits always (administration)."""
        ...

    async def signal(
        self, key: SessionKey, fence: int, *, origin_id: int, payload: bytes
    ) -> Signalled | Duplicate | None: ...

    async def save_cursors(self, rows: Sequence[CursorRow]) -> None: ...

    async def read_log(
        self, party_id: PartyId, *, after_seq: int, limit: int
    ) -> Sequence[Entry] | None:
        """Ascending, without a hole; None if the log does not reach back that far."""
        ...

    async def snapshot(self, party_id: PartyId) -> PartySnapshot | None: ...

    async def tell(self, notice: Notice) -> None:
        """To the listeners of all nodes that follow the party, ours included."""
        ...

    async def expire_due(self, limit: int) -> int:
        """Removes sessions without a node whose deadline has passed; how many."""
        ...

    async def check(self) -> None:
        """Raises if the store would not serve now."""
        ...

    async def close(self) -> None: ...


class MovablePresenceStore(PresenceStore, Protocol):
    """A store of one node, whose parties can go to another node as a whole."""

    async def freeze(self, party_id: PartyId) -> bytes | None:
        """Everything there is of the party; None if there is none. Until `thaw`, whatever would
        change it is refused as busy."""
        ...

    async def give_up(self, party_id: PartyId) -> None:
        """It lives elsewhere now; nothing of it is kept."""
        ...

    def thaw(self, party_id: PartyId) -> None: ...

    async def take_in(self, party_id: PartyId, state: bytes) -> Sequence[SessionRecord] | None:
        """The other end of `freeze`. Its sessions wait for their clients, each for its TTL; None
        if a party of that id has sessions here. Raises `ValueError` for what cannot be read."""
        ...


# --- several nodes -------------------------------------------------------------------------------


class PresenceNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node as it describes itself to the others."""

    node_id: str
    incarnation: int
    client_endpoint: str = ""
    peer_endpoint: str = ""
    zone: str = ""
    state: str = "ready"
    sessions: int = 0
    max_sessions: int = 0
    version: str = ""
    heartbeat_ms: int = 0


class PartyReset(msgspec.Struct, frozen=True, kw_only=True):
    epoch: int
    seq: int
    members: Sequence[Member]


class SharedPresenceStore(PresenceStore, Protocol):
    """A store that several nodes share."""

    async def heartbeat(self, node: PresenceNode, lease_ms: int) -> None: ...

    async def resign(self, node_id: str) -> None: ...

    async def nodes(self) -> tuple[list[PresenceNode], list[str]]:
        """Those that are alive, and the names of those whose lease has ended."""
        ...

    async def reap(self, node_id: str) -> int:
        """Sessions of a dead node wait for one TTL from now, as NODE_LOST; how many."""
        ...

    async def reclaim(self, sessions: Sequence[tuple[SessionKey, int]]) -> list[SessionKey]:
        """Ours again after a pause; those returned have moved on meanwhile."""
        ...

    async def positions(self, parties: Sequence[PartyId]) -> list[tuple[int, int] | None]: ...

    async def reset(
        self,
        party_id: PartyId,
        *,
        epoch: int,
        seq: int,
        new_epoch: int,
        floor_ms: int,
        records: Sequence[SessionRecord],
    ) -> PartyReset: ...
