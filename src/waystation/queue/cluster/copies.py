"""Copies of slots in progress, from and to a storage server, and the state of followers.

Rule 1: of the copies to followers that still catch up, `COPIES_MAX` run at a time, and no more than
        `COPIES_PER_PEER_MAX` to one server: a server that is given followers for all its slots
        would read all of them at once, and a peer that does not answer would take every place.
Rule 2: a move takes a place without asking for one: the controller counts moves
        (`moves_per_node_max`), and an operator waits for them.
"""

from collections import Counter, deque
from collections.abc import Iterator
from typing import Final, Literal

from .effects import CopyId, Ticket
from .migration import CopySource, CopyTarget
from .slot_map import NodeId

COPIES_MAX: Final = 16
COPIES_PER_PEER_MAX: Final = 4
CONFIRM_MAX_S: Final = 2.0  # how long an answer waits for a follower before it is out of step

Phase = Literal["copying", "requiring", "leaving"]


class Outgoing:
    """A copy from here."""

    def __init__(self, slot: int, peer: NodeId, move: int) -> None:
        self.slot = slot
        self.peer = peer
        self.move = move  # 0: to a follower
        self.source = CopySource()
        self.freezing = False
        self.drained = False
        self.heard_at = 0.0  # when the other end last confirmed something, or owed us nothing


class Copies:
    """All copies from here, and who waits for a place."""

    def __init__(self) -> None:
        self._all: dict[CopyId, Outgoing] = {}
        self._of: dict[int, dict[CopyId, Outgoing]] = {}  # by slot: a move, a follower
        self._places: dict[CopyId, NodeId] = {}
        self._to: Counter[NodeId] = Counter()  # places by peer
        self._waiting: dict[int, NodeId] = {}  # slots, in the order of asking

    def __len__(self) -> int:
        return len(self._all)

    @property
    def catching_up(self) -> int:
        return len(self._places)

    def get(self, copy: CopyId) -> Outgoing | None:
        return self._all.get(copy)

    def all(self) -> list[tuple[CopyId, Outgoing]]:
        return [*self._all.items()]

    def of(self, slot: int) -> list[tuple[CopyId, Outgoing]]:
        found = self._of.get(slot)
        return [*found.items()] if found else []

    def slots(self) -> Iterator[int]:
        return iter(self._of)

    def has_room(self, slot: int, peer: NodeId) -> bool:
        """For a copy to a follower; otherwise it is remembered that this slot wants one."""
        if len(self._places) < COPIES_MAX and self._to[peer] < COPIES_PER_PEER_MAX:
            self._waiting.pop(slot, None)
            return True
        self._waiting[slot] = peer
        return False

    def next_waiting(self) -> int | None:
        """A slot for whose copy there is a place now; it waits no more."""
        if len(self._places) < COPIES_MAX:
            for slot, peer in self._waiting.items():
                if self._to[peer] < COPIES_PER_PEER_MAX:
                    del self._waiting[slot]
                    return slot
        return None

    def add(self, copy: CopyId, out: Outgoing) -> None:
        self._all[copy] = out
        self._of.setdefault(out.slot, {})[copy] = out
        self._places[copy] = out.peer
        self._to[out.peer] += 1

    def caught_up(self, copy: CopyId) -> None:
        """What follows is changes, a few at a time: its place is free."""
        peer = self._places.pop(copy, None)
        if peer is not None:
            self._to[peer] -= 1

    def drop(self, copy: CopyId) -> Outgoing | None:
        self.caught_up(copy)
        out = self._all.pop(copy, None)
        if out is not None:
            same = self._of[out.slot]
            del same[copy]
            if not same:
                del self._of[out.slot]
        return out


class Following:
    """What we know of the follower of a slot of ours.

    copying: it is not counted on. requiring: answers wait for it. leaving: it failed while the
    map may call it in step; answers wait until the map does not.
    """

    def __init__(self, peer: NodeId) -> None:
        self.peer = peer
        self.phase: Phase = "copying"
        self.join_seq = 0  # must be confirmed before it is called in step
        self.waiting: deque[tuple[int, float, Ticket]] = deque()  # seq, since, whose answer

    def is_restless(self, in_step: bool) -> bool:
        """Whether it is not yet, or no more, what the map calls in step."""
        return self.phase != "requiring" or not in_step

    def is_overdue(self, out: Outgoing, mono: float, *, sync: bool) -> bool:
        """It is counted on and has not confirmed for too long."""
        if self.phase != "requiring":
            return False
        if sync:
            return bool(self.waiting) and mono - self.waiting[0][1] >= CONFIRM_MAX_S
        return mono - out.heard_at >= CONFIRM_MAX_S

    def taken(self) -> tuple[Ticket, ...]:
        tickets = tuple(ticket for _, _, ticket in self.waiting)
        self.waiting.clear()
        return tickets


class Incoming:
    """A copy to here."""

    def __init__(self, copy: CopyId, peer: NodeId, move: int) -> None:
        self.copy = copy
        self.peer = peer
        self.move = move
        self.target = CopyTarget()
        self.applied = 0

    @property
    def durable(self) -> bool:
        return self.target.complete and self.applied == self.target.seq
