"""Copies of a slot under way from and to a storage server, and what it knows of a follower."""

from collections import deque
from typing import Literal

from .duties import CopyId, Ticket
from .migration import CopySource, CopyTarget
from .slot_map import NodeId

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
