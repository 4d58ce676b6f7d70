"""The slot map: the owner of each slot, agreed on by all members of a cluster.

Rule 1: a map is immutable. A method that changes something returns the next map, with the next
        epoch. It is stored only over the epoch from which it was made.
Rule 2: at most one server may serve a slot: its owner, unless the slot is frozen.
Rule 3: stable → preparing → frozen → stable at the target. From preparing and frozen a slot may go
        back to its owner. There are no other transitions.
Rule 4: a follower keeps a copy and does not serve. It may be promoted only while the map says that
        it is in step, and only the owner says so. From then on the owner answers nothing that the
        follower has not confirmed, or marks it out of step first.
Rule 5: plans are part of the map, so that a plan and its moves cannot disagree.
Rule 6: a slot stays on a server whose queues are older than the cluster until their references are
        written; otherwise ids chosen by clients would be lost. It gets no follower either, which
        could be promoted.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Literal, NewType

import msgspec

from waystation.queue.model import SLOTS, slot_letters

NODES_MAX = 4096
WEIGHT_MAX = 255
WEIGHT_USUAL = 100

NodeId = NewType("NodeId", int)
NOBODY = NodeId(0)

Status = Literal["up", "drain", "down"]
State = Literal["S", "P", "F"]


class SlotMapError(Exception):
    """A change that the map does not allow; the text says why."""


def slot_number(name: str) -> int:
    """The slot of a name made by `slot_letters`."""
    for slot in range(SLOTS):
        if slot_letters(slot) == name:
            return slot
    raise SlotMapError(f"{name!r} is no slot: two base64url letters are, from AA to __")


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One storage server, as the others see it."""

    node_id: NodeId
    host: str
    port: int
    fingerprint: bytes  # SHA-256 of the certificate that its link shows
    weight_new: int = WEIGHT_USUAL  # its share of new queues; 0 takes none
    status: Status = "up"
    references_left: int = 0  # slots whose references are not written yet (rule 6)

    @property
    def takes_new(self) -> bool:
        return self.status == "up" and self.weight_new > 0


class Assignment(msgspec.Struct, frozen=True):
    """The servers of one slot."""

    owner: NodeId = NOBODY
    target: NodeId = NOBODY
    state: State = "S"
    follower: NodeId = NOBODY
    in_step: bool = False  # the follower has everything that was answered
    move: int = 0  # the epoch at which the present move began: identifies the attempt
    # How often it changed hands: shows a reader that skipped maps that the slot moved away and
    # back, though its owner is the same.
    turn: int = 0

    @property
    def server(self) -> NodeId:
        """The server that may serve it now."""
        return NOBODY if self.state == "F" else self.owner


_UNOWNED = Assignment()


class Move(msgspec.Struct, frozen=True):
    """A planned move of a slot."""

    slot: int
    target: NodeId


class SlotMap(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """All slots and all servers at one epoch."""

    epoch: int = 0
    nodes: Mapping[NodeId, Node] = {}
    slots: tuple[Assignment, ...] = (_UNOWNED,) * SLOTS
    planned: tuple[Move, ...] = ()  # in this order; not begun
    last_node: int = 0  # the highest id that was removed: certificates outlive servers

    # Queries

    @cached_property
    def owned(self) -> tuple[tuple[int, Assignment], ...]:
        """The slots with an owner; cached, because it is asked for often."""
        return tuple([(slot, one) for slot, one in enumerate(self.slots) if one.owner != NOBODY])

    def owned_by(self, node_id: NodeId) -> list[int]:
        return [slot for slot, one in enumerate(self.slots) if one.owner == node_id]

    def followed_by(self, node_id: NodeId) -> list[int]:
        return [slot for slot, one in enumerate(self.slots) if one.follower == node_id]

    def moving(self) -> Iterator[tuple[int, Assignment]]:
        return ((slot, one) for slot, one in self.owned if one.state != "S")

    def serves(self, node_id: NodeId, slot: int) -> bool:
        return self.slots[slot].server == node_id

    def may_leave(self, slot: int) -> bool:
        """Whether its owner has written the references of its queues."""
        owner = self.nodes.get(self.slots[slot].owner)
        return owner is None or not owner.references_left

    # Servers

    def with_node(self, node: Node) -> "SlotMap":
        """Adds a server, or replaces its entry."""
        if node.node_id == NOBODY:
            raise SlotMapError("0 is no node id: ids begin at 1")
        if node.node_id not in self.nodes and len(self.nodes) >= NODES_MAX:
            raise SlotMapError(f"{NODES_MAX} servers are the most a map holds")
        if not 0 <= node.weight_new <= WEIGHT_MAX:
            raise SlotMapError(f"a weight is between 0 and {WEIGHT_MAX}")
        return self._next(nodes={**self.nodes, node.node_id: node})

    @property
    def next_node_id(self) -> NodeId:
        """An id that no server had before."""
        return NodeId(max((self.last_node, *self.nodes)) + 1)

    def without_node(self, node_id: NodeId) -> "SlotMap":
        """Removes a server without slots; its id is not used again."""
        self._known(node_id)
        owned, followed = self.owned_by(node_id), self.followed_by(node_id)
        comes = [slot for slot, one in self.moving() if one.target == node_id]
        comes += [move.slot for move in self.planned if move.target == node_id]
        if owned or followed or comes:
            raise SlotMapError(
                f"node {node_id} has {len(owned)} slots, follows {len(followed)}, and"
                f" {len(comes)} are on their way to it: drain it first"
            )
        nodes = {known: node for known, node in self.nodes.items() if known != node_id}
        removed = self._next(nodes=nodes)
        return msgspec.structs.replace(removed, last_node=max(self.last_node, node_id))

    # Slots

    def claimed(self, slots: Iterable[int], owner: NodeId) -> "SlotMap":
        """Gives slots without an owner to `owner`: how a cluster begins."""
        self._known(owner)
        wanted = {*slots}
        for slot in wanted:
            if self.slots[slot].owner != NOBODY:
                raise SlotMapError(f"slot {slot_letters(slot)} has an owner already")
        return self._next(
            slots=tuple(
                Assignment(owner) if slot in wanted else one for slot, one in enumerate(self.slots)
            )
        )

    def followed(self, slot: int, follower: NodeId) -> "SlotMap":
        """`follower` keeps a copy from now on; NOBODY ends it."""
        one = self.slots[slot]
        if follower != NOBODY:
            self._known(follower)
            self._referenced(slot)
        if follower != NOBODY and follower == one.owner:
            raise SlotMapError(
                f"node {follower} cannot follow slot {slot_letters(slot)} and have it"
            )
        changed = msgspec.structs.replace(one, follower=follower, in_step=False)
        return self._with(slot, changed)

    def in_step(self, slot: int, value: bool) -> "SlotMap":
        """The owner reports whether its follower has everything."""
        one = self.slots[slot]
        if one.follower == NOBODY:
            raise SlotMapError(f"slot {slot_letters(slot)} has no follower")
        return self._with(slot, msgspec.structs.replace(one, in_step=value))

    def preparing(self, slot: int, target: NodeId) -> "SlotMap":
        one = self._stable(slot)
        self._known(target)
        if target == one.owner:
            raise SlotMapError(f"slot {slot_letters(slot)} is at node {target} already")
        if self.nodes[target].status != "up":
            raise SlotMapError(f"node {target} is {self.nodes[target].status}: nothing moves there")
        self._referenced(slot)
        moving = msgspec.structs.replace(one, target=target, state="P", move=self.epoch + 1)
        if target == one.follower:
            # The copy begins again; until it is complete, the follower must not be promoted.
            moving = msgspec.structs.replace(moving, follower=NOBODY, in_step=False)
        return self._with(slot, moving)

    def frozen(self, slot: int) -> "SlotMap":
        one = self._in_state(slot, "P")
        return self._with(slot, msgspec.structs.replace(one, state="F"))

    def moved(self, slot: int) -> "SlotMap":
        one = self._in_state(slot, "F")
        moved = Assignment(one.target, follower=one.follower, turn=one.turn + 1)
        return self._with(slot, moved)

    def returned(self, slot: int, *, again: bool = False) -> "SlotMap":
        """Ends a move: the owner, which has everything, serves again. `again` plans the move once
        more, after all other planned moves."""
        one = self.slots[slot]
        if one.state == "S":
            raise SlotMapError(f"slot {slot_letters(slot)} does not move")
        again = again and all(move.slot != slot for move in self.planned)
        planned = (*self.planned, Move(slot, one.target)) if again else self.planned
        changed = msgspec.structs.replace(one, target=NOBODY, state="S", move=0)
        return msgspec.structs.replace(self._with(slot, changed), planned=planned)

    def promoted(self, slot: int) -> "SlotMap":
        """The owner is down: the follower takes its place, and the slot has no follower."""
        one = self.slots[slot]
        if one.follower == NOBODY or not one.in_step:
            raise SlotMapError(f"slot {slot_letters(slot)} has no follower that is in step")
        return self._with(slot, Assignment(one.follower, turn=one.turn + 1))

    # Plans

    def planning(self, moves: Iterable[Move]) -> "SlotMap":
        """Replaces the planned moves."""
        planned = tuple(moves)
        for move in planned:
            self._known(move.target)
        if len({move.slot for move in planned}) != len(planned):
            raise SlotMapError("a plan moves each slot once")
        return self._next(planned=planned)

    def as_one_change(self, before: "SlotMap") -> "SlotMap":
        """Joins several changes since `before` into one commit."""
        epoch = before.epoch + 1
        if self.epoch == epoch:
            return self
        slots = tuple(
            msgspec.structs.replace(one, move=epoch) if one.move > epoch else one
            for one in self.slots
        )
        return msgspec.structs.replace(self, epoch=epoch, slots=slots)

    # Inside

    def _referenced(self, slot: int) -> None:
        if not self.may_leave(slot):
            owner = self.slots[slot].owner
            raise SlotMapError(
                f"slot {slot_letters(slot)} stays: node {owner} still writes references"
            )

    def _known(self, node_id: NodeId) -> Node:
        node = self.nodes.get(node_id)
        if node is None:
            raise SlotMapError(f"there is no node {node_id}")
        return node

    def _stable(self, slot: int) -> Assignment:
        one = self._in_state(slot, "S")
        if one.owner == NOBODY:
            raise SlotMapError(f"slot {slot_letters(slot)} has no owner")
        return one

    def _in_state(self, slot: int, state: State) -> Assignment:
        one = self.slots[slot]
        if one.state != state:
            words = {"S": "stable", "P": "preparing", "F": "frozen"}
            raise SlotMapError(
                f"slot {slot_letters(slot)} is {words[one.state]}, not {words[state]}"
            )
        return one

    def _with(self, slot: int, one: Assignment) -> "SlotMap":
        return self._next(slots=(*self.slots[:slot], one, *self.slots[slot + 1 :]))

    def _next(
        self,
        *,
        nodes: Mapping[NodeId, Node] | None = None,
        slots: tuple[Assignment, ...] | None = None,
        planned: tuple[Move, ...] | None = None,
    ) -> "SlotMap":
        return SlotMap(
            epoch=self.epoch + 1,
            nodes=self.nodes if nodes is None else nodes,
            slots=self.slots if slots is None else slots,
            planned=self.planned if planned is None else planned,
            last_node=self.last_node,
        )


def runs_of(slots: tuple[Assignment, ...]) -> Iterator[tuple[int, int, Assignment]]:
    """(first slot, count, assignment) of equal neighbours, for storage and display."""
    start = 0
    for slot in range(1, len(slots) + 1):
        if slot == len(slots) or slots[slot] != slots[start]:
            yield start, slot - start, slots[start]
            start = slot


class _Run(msgspec.Struct, array_like=True):
    start: int
    count: int
    owner: int
    target: int
    state: State
    follower: int
    in_step: bool
    move: int
    turn: int = 0  # 0 in maps that were stored before it existed


class _Stored(msgspec.Struct, array_like=True):
    """The stored form: runs of equal slots instead of 4,096 rows."""

    epoch: int
    nodes: list[Node]
    runs: list[_Run]
    planned: list[tuple[int, int]] = []
    last_node: int = 0


def encode_map(slot_map: SlotMap) -> bytes:
    return msgspec.msgpack.encode(
        _Stored(
            slot_map.epoch,
            list(slot_map.nodes.values()),
            [
                _Run(start, count, *msgspec.structs.astuple(one))
                for start, count, one in runs_of(slot_map.slots)
            ],
            [(move.slot, move.target) for move in slot_map.planned],
            slot_map.last_node,
        )
    )


def decode_map(data: bytes) -> SlotMap:
    """Raises `msgspec.MsgspecError` or `SlotMapError` for an invalid map."""
    stored = msgspec.msgpack.decode(data, type=_Stored)
    slots: list[Assignment] = []
    for run in stored.runs:
        if run.start != len(slots) or run.count < 1 or run.start + run.count > SLOTS:
            raise SlotMapError("the runs of a stored map do not join")
        one = Assignment(
            NodeId(run.owner),
            NodeId(run.target),
            run.state,
            NodeId(run.follower),
            run.in_step,
            run.move,
            run.turn,
        )
        slots.extend([one] * run.count)
    if len(slots) != SLOTS:
        raise SlotMapError(f"a stored map names {len(slots)} slots instead of {SLOTS}")
    return SlotMap(
        epoch=stored.epoch,
        nodes={node.node_id: node for node in stored.nodes},
        slots=tuple(slots),
        planned=tuple(Move(slot, NodeId(target)) for slot, target in stored.planned),
        last_node=stored.last_node,
    )
