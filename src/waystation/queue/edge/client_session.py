"""One client's session at an edge: its pending commands and its subscriptions.

Storage servers identify a client session by its stream number, the same on every link.
"""

import itertools

import msgspec

from waystation.queue.cluster.slot_map import NOBODY, NodeId
from waystation.queue.edge.answer_order import AnswerOrder
from waystation.queue.model import (
    CorrId,
    DhPrivateKey,
    EntityId,
    MessageId,
    RecipientId,
    RefKind,
    Slot,
)
from waystation.queue.wire.commands import Command, Nsub, Sub
from waystation.queue.wire.link_messages import Sopen
from waystation.queue.wire.transmission import Dialect

Key = tuple[CorrId, EntityId]

_numbers = itertools.count()


class Pending:
    """A command that was sent to a server or waits to be sent."""

    __slots__ = (
        "asking",
        "command",
        "corr_id",
        "entity_id",
        "held",
        "item",
        "kind",
        "lane",
        "looked_up",
        "node_id",
        "number",
        "rechecked",
        "redraws",
        "renewed",
        "retries",
        "since",
        "slot",
        "term",
        "tx_id",
        "waited",
    )

    def __init__(
        self,
        item: bytes,
        corr_id: CorrId,
        entity_id: EntityId,
        command: Command,
        mono: float,
        *,
        kind: RefKind | None = None,
    ) -> None:
        self.item = item
        self.corr_id = corr_id
        self.entity_id = entity_id
        self.command = command
        self.since = mono
        self.kind = kind  # of the reference that may be needed to find its queue
        self.number = next(_numbers)  # in the order of arrival
        self.slot = Slot(0)
        self.node_id = NOBODY  # NOBODY: not sent
        self.term = 0  # of its lane, when it was sent
        self.lane: Lane | None = None  # None: a command with the same key is pending
        self.held: Slot | None = None  # the slot that it waits for
        self.asking = False  # a reference must be read or written first
        self.looked_up = False  # its reference was read
        self.waited = False  # its slot had no server when it came or was repeated
        self.tx_id = b""  # of the reference that was written for it
        self.retries = 0
        self.renewed = 0  # `ClientSession.renewed` when it was sent
        self.redraws = 0  # how often new ids were drawn
        self.rechecked = False  # a cached home slot has refused it already

    @property
    def key(self) -> Key:
        return self.corr_id, self.entity_id

    @property
    def subscribes(self) -> bool:
        return isinstance(self.command, Sub | Nsub)


class Lane:
    """Commands of one client for one id, in order of arrival.

    A command is sent only to the server to which the one before it was sent, so order is kept.
    When a server refuses a command, it also returns the later ones of the lane (`Sagain`). A new
    *term* begins when the last of them is back; then all are sent again in order.
    """

    __slots__ = ("behind", "items", "refused_by", "sent_on_by", "term")

    def __init__(self) -> None:
        self.items: list[Pending] = []
        self.term = 0
        self.behind = 0  # commands of earlier terms that are still in flight
        self.refused_by = NOBODY
        self.sent_on_by = NOBODY  # the server that answered `MOVED`

    def must_wait(self, pending: Pending) -> bool:
        """Whether it must wait, whichever server it is for."""
        before = self._before(pending)
        return self.behind > 0 or (before is not None and before.node_id == NOBODY)

    def may_go(self, pending: Pending, server: NodeId) -> bool:
        before = self._before(pending)
        return not self.behind and (before is None or before.node_id == server)

    def _before(self, pending: Pending) -> Pending | None:
        at = len(self.items) - 1
        if self.items[at] is not pending:
            at = self.items.index(pending)
        return self.items[at - 1] if at else None

    def refused(self, pending: Pending, *, is_barred: bool) -> None:
        """`is_barred`: the server refuses all commands for the id until it gets `Sagain`."""
        if pending.term == self.term:
            self.term += 1
            self.behind = sum(one.node_id != NOBODY for one in self.items) - 1
        else:
            self.behind -= 1
        self.refused_by = pending.node_id if is_barred else NOBODY
        pending.node_id = NOBODY

    def answered(self, pending: Pending) -> None:
        self.items.remove(pending)
        if pending.node_id != NOBODY and pending.term != self.term:
            self.behind -= 1


class Subscription(msgspec.Struct):
    """How a subscription is renewed after its slot moved: by repeating the client's command or,
    if it came with `NEW`, by the grant that servers pass on."""

    slot: Slot
    item: bytes | None
    corr_id: bytes  # of that command; without one, the queue's id
    refused_by: NodeId = NOBODY  # the server that refuses this id until it gets `Sagain`


class ClientSession:
    __slots__ = (
        "delivered",
        "dialect",
        "forwarded",
        "gone",
        "lanes",
        "opened",
        "order",
        "pending",
        "pending_bytes",
        "renewed",
        "renewing",
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
        self.opened: set[NodeId] = set()  # servers that got `SOPEN`
        self.pending: dict[Key, Pending] = {}
        self.pending_bytes = 0
        self.lanes: dict[EntityId, Lane] = {}
        self.order = AnswerOrder()
        self.subscriptions: dict[EntityId, Subscription] = {}
        self.delivered: dict[RecipientId, MessageId] = {}  # by GET, not yet acknowledged
        # Renewals without an answer; their answers are not sent to the client.
        self.renewing: dict[tuple[NodeId, bytes], tuple[EntityId, int]] = {}
        self.renewed = 0  # counts renewals
        self.gone = False

    def introduction(self) -> Sopen:
        return Sopen(
            self.dialect.version, self.dialect.session_id, self.session_key, self.forwarded
        )

    def add(self, pending: Pending) -> None:
        """Registers a command whose answer is awaited."""
        self.pending[pending.key] = pending
        self.pending_bytes += len(pending.item)
        self.order.expect(pending.number, subscribes=pending.subscribes)

    def is_at(self, node_id: NodeId, entity_id: EntityId) -> bool:
        """Whether a command for this id is in flight to that server."""
        lane = self.lanes.get(entity_id)
        return lane is not None and any(one.node_id == node_id for one in lane.items)

    def queue_up(self, pending: Pending) -> None:
        lane = self.lanes.get(pending.entity_id)
        if lane is None:
            lane = self.lanes[pending.entity_id] = Lane()
        lane.items.append(pending)
        pending.lane = lane

    def remove(self, pending: Pending) -> bool:
        """Removes a command that is done; False if it was removed before."""
        if self.pending.get(pending.key) is not pending:
            return False
        del self.pending[pending.key]
        self.pending_bytes -= len(pending.item)
        lane = pending.lane
        if lane is not None:
            lane.answered(pending)
            if not lane.items:
                del self.lanes[pending.entity_id]
        return True
