"""Copies of slots in progress, from and to a storage server, and the state of followers.

Rule 1: of the copies to followers that catch up, `COPIES_MAX` run at a time, and at most
        `COPIES_PER_PEER_MAX` to one server. Otherwise a server that gets followers for all its
        slots would read all of them at once, and one peer that does not answer would use up the
        limit.
Rule 2: a move is counted but never waits: the controller limits moves (`moves_per_node_max`), and
        an operator waits for them.
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
    """A copy from this server."""

    def __init__(self, slot: int, peer: NodeId, move: int) -> None:
        self.slot = slot
        self.peer = peer
        self.move = move  # 0: to a follower
        self.source = CopySource()
        self.freezing = False
        self.drained = False
        self.heard_at = 0.0  # last confirmation, or when none was due


class Copies:
    """All copies from this server, and the slots that wait for one."""

    def __init__(self) -> None:
        self._all: dict[CopyId, Outgoing] = {}
        self._of: dict[int, dict[CopyId, Outgoing]] = {}  # by slot: a move, a follower
        self._places: dict[CopyId, NodeId] = {}
        self._to: Counter[NodeId] = Counter()  # copies that catch up, by peer
        self._waiting: dict[int, NodeId] = {}  # slots that wait, oldest first

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
        """Whether a copy to a follower may begin; if not, the slot waits."""
        if len(self._places) < COPIES_MAX and self._to[peer] < COPIES_PER_PEER_MAX:
            self._waiting.pop(slot, None)
            return True
        self._waiting[slot] = peer
        return False

    def next_waiting(self) -> int | None:
        """Takes out a waiting slot whose copy may begin now."""
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
        """From now on it sends only changes and no longer counts against the limits."""
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
    """State of the follower of one of our slots.

    copying: not relied on. requiring: answers wait for it. leaving: it failed while the map may
    call it in step; answers wait until the map does not.
    """

    def __init__(self, peer: NodeId) -> None:
        self.peer = peer
        self.phase: Phase = "copying"
        self.join_seq = 0  # must be confirmed before it is called in step
        self.waiting: deque[tuple[int, float, Ticket]] = deque()  # seq, since, ticket of the answer

    def is_unsettled(self, in_step: bool) -> bool:
        """Whether its state differs from what the map says."""
        return self.phase != "requiring" or not in_step

    def is_overdue(self, out: Outgoing, mono: float, *, sync: bool) -> bool:
        """Whether answers rely on it and its confirmation is overdue."""
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
    """A copy to this server."""

    def __init__(self, copy: CopyId, peer: NodeId, move: int) -> None:
        self.copy = copy
        self.peer = peer
        self.move = move
        self.target = CopyTarget()
        self.applied = 0

    @property
    def durable(self) -> bool:
        return self.target.complete and self.applied == self.target.seq
