"""The store that presence needs: interfaces, arguments and results.

Rule 1: operations on a party are atomic and totally ordered. The store assigns `seq`, time and
        message id to the entries that it appends.
Rule 2: a change is recorded when its operation returns (on a durable store: on disk), and its
        entries are given to every subscriber in `seq` order, before or after that.
Rule 3: an operation that loses a race says so in its result and changes nothing. A failure of the
        store is raised (`STORE_TROUBLE`); then the change was not made, or its outcome is unknown.
Rule 4: writes of an owner carry the session's fence. An older fence is refused, so a late write
        cannot change a session that was attached elsewhere.
Rule 5: cursors are saved lazily; a lost cursor only repeats deliveries.
"""

import hmac
from collections.abc import Sequence
from typing import Protocol

import msgspec

from .model import Entry, Member, PartyId, SessionKey, SessionRecord, Status


class Owner(msgspec.Struct, frozen=True):
    """One run of a node's process."""

    node_id: str
    incarnation: int


class JoinSpec(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A new session, and the limits that the store enforces."""

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
    """The position that the caller has reached; None: it needs the members."""
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
    """All sessions at `seq`, the new one too; None if the caller follows the party."""
    entries: Sequence[Entry] = ()
    """Entries from `known_seq` to `seq` that the subscription may not have delivered yet."""


class Exists(msgspec.Struct, frozen=True):
    """A session with that key exists; nothing was changed."""

    record: SessionRecord


class Rejected(msgspec.Struct, frozen=True):
    status: Status
    retry_after_ms: int = 0


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """The proof for an attach: a token hash, or trust established before."""

    token_hash: bytes | None = None
    trusted: bool = False
    """A ticket was redeemed, or a standby is promoted."""
    token_required: bool = False
    grace_ms: int = 30_000
    """How long the replaced hash stays valid."""


def weigh(record: SessionRecord, proof: Proof, now_ms: int) -> Status | None:
    """The status that refuses this proof; None if the session may be attached."""
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
    """The hash that stays valid beside the new one: that of the token which the client presented.
    The newest token may not have reached the client; two lost answers in a row must not lock it
    out."""
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
    """The record with the new fence and owner; `cursor` as it was saved."""
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
    """A message between nodes about a session, beside the log; may be lost."""

    key: SessionKey
    status: Status
    """SESSION_RESUMED (it is attached with `fence`), PARTICIPANT_DETACHED or _REATTACHED."""
    fence: int = 0
    node_id: str = ""


class PartyListener(Protocol):
    """Called on the event loop; must not block. Entries arrive in `seq` order; after a gap the
    listener calls `read_log`."""

    def entry(self, party_id: PartyId, entry: Entry) -> None: ...

    def notice(self, notice: Notice) -> None: ...


class PresenceStore(Protocol):
    async def start(self, owner: Owner, listener: PartyListener) -> Sequence[SessionRecord]:
        """Called first. Returns the sessions of an earlier process of this store's only node, each
        with its deadline; a shared store returns none."""
        ...

    async def subscribe(self, party_id: PartyId) -> None:
        """From its return on, appended entries are given to the listener."""
        ...

    def unsubscribe(self, party_id: PartyId) -> None: ...

    async def join(self, key: SessionKey, spec: JoinSpec) -> Joined | Exists | Rejected: ...

    async def attach(self, key: SessionKey, spec: AttachSpec) -> Attached | Missing | Rejected:
        """Checks the proof first; a wrong one changes nothing."""
        ...

    async def detach(self, key: SessionKey, fence: int, *, cursor: int, cause: int) -> bool:
        """Sets the deadline to one TTL from now. Applied if the fence matches."""
        ...

    async def leave(self, key: SessionKey, fence: int, code: Status) -> Left | None:
        """None if the session is gone or its fence is newer; fence 0 matches any (operators)."""
        ...

    async def signal(
        self, key: SessionKey, fence: int, *, origin_id: int, payload: bytes
    ) -> Signalled | Duplicate | None: ...

    async def save_cursors(self, rows: Sequence[CursorRow]) -> None: ...

    async def read_log(
        self, party_id: PartyId, *, after_seq: int, limit: int
    ) -> Sequence[Entry] | None:
        """Ascending, without gaps; None if the log does not reach back to `after_seq`."""
        ...

    async def snapshot(self, party_id: PartyId) -> PartySnapshot | None: ...

    async def tell(self, notice: Notice) -> None:
        """Sends a notice to the listeners of all nodes that follow the party, ours too."""
        ...

    async def expire_due(self, limit: int) -> int:
        """Ends detached sessions whose deadline has passed; returns how many."""
        ...

    async def check(self) -> None:
        """Raises if the store is not available."""
        ...

    async def close(self) -> None: ...


class MovablePresenceStore(PresenceStore, Protocol):
    """A store of one node, whose parties can move to another node."""

    async def freeze(self, party_id: PartyId) -> bytes | None:
        """The state of the party; None if there is no such party. Until `thaw`, changes to it are
        refused as busy."""
        ...

    async def give_up(self, party_id: PartyId) -> None:
        """Deletes a party that was moved to another node."""
        ...

    def thaw(self, party_id: PartyId) -> None: ...

    async def take_in(self, party_id: PartyId, state: bytes) -> Sequence[SessionRecord] | None:
        """Stores a state made by `freeze`; its sessions are detached, each for its TTL. None if a
        party of that id has sessions here. Raises `ValueError` for a state it cannot read."""
        ...


# --- several nodes -------------------------------------------------------------------------------


class PresenceNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node as it describes itself to other nodes."""

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
        """The nodes with a lease, and the ids of those whose lease has ended."""
        ...

    async def reap(self, node_id: str) -> int:
        """Detaches the sessions of a dead node, with cause NODE_LOST; returns how many."""
        ...

    async def reclaim(self, sessions: Sequence[tuple[SessionKey, int]]) -> list[SessionKey]:
        """Claims sessions again after a pause; returns those that were attached elsewhere."""
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
