"""One client's session at an edge: what it waits for, and what it has subscribed to.

A guest is known to storage servers by the number of its stream, the same on every link.
"""

import itertools

import msgspec

from waystation.queue.cluster.slot_map import NOBODY, NodeId
from waystation.queue.model import (
    CorrId,
    DhPrivateKey,
    EntityId,
    MessageId,
    RecipientId,
    Slot,
)
from waystation.queue.wire.commands import Command, Nsub, Sub
from waystation.queue.wire.link_words import Sopen
from waystation.queue.wire.transmission import Dialect

Key = tuple[CorrId, EntityId]

_numbers = itertools.count()


class Pending:
    """A command that went to a server, or waits to go."""

    __slots__ = (
        "command",
        "corr_id",
        "doubted",
        "entity_id",
        "item",
        "node_id",
        "number",
        "retries",
        "since",
        "slot",
    )

    def __init__(
        self, item: bytes, corr_id: CorrId, entity_id: EntityId, command: Command, mono: float
    ) -> None:
        self.item = item
        self.corr_id = corr_id
        self.entity_id = entity_id
        self.command = command
        self.since = mono
        self.number = next(_numbers)  # the order in which commands came
        self.slot = Slot(0)
        self.node_id = NOBODY  # nobody: it is held
        self.retries = 0
        self.doubted = False  # whether a home that was remembered has refused it already

    @property
    def key(self) -> Key:
        return self.corr_id, self.entity_id

    @property
    def subscribes(self) -> bool:
        return isinstance(self.command, Sub | Nsub)


class Subscription(msgspec.Struct):
    """How a subscription is renewed where its slot went: by saying the client's own words again,
    or, if it came with `NEW`, by the grant that the servers hand on."""

    slot: Slot
    item: bytes | None


class Guest:
    __slots__ = (
        "delivered",
        "dialect",
        "forwarded",
        "gone",
        "opened",
        "pending",
        "replays",
        "session_key",
        "stream",
        "subscriptions",
    )

    def __init__(
        self,
        stream: int,
        dialect: Dialect,
        session_key: DhPrivateKey | None,
        *,
        forwarded: bool = False,
    ) -> None:
        self.stream = stream
        self.dialect = dialect
        self.session_key = session_key
        self.forwarded = forwarded
        self.opened: set[NodeId] = set()  # servers that know the stream
        self.pending: dict[Key, Pending] = {}
        self.subscriptions: dict[EntityId, Subscription] = {}
        self.delivered: dict[RecipientId, MessageId] = {}  # by GET, not yet acknowledged
        self.replays: dict[Key, int] = {}  # answers to these are not the client's
        self.gone = False

    def introduction(self) -> Sopen:
        return Sopen(
            self.dialect.version, self.dialect.session_id, self.session_key, self.forwarded
        )
