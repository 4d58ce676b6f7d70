"""Replication of a storage server's slots: copies, freezes, takeovers, and followers.

Rule 1: the map in the cluster's store decides. A server proposes the next map; if its proposal was
        not applied, it reads the new map and decides again. So no message between servers can make
        two of them serve a slot.
Rule 2: to move a slot, its owner copies it, freezes it, waits for running commands, commits the
        freeze and ends the copy. The target has all rows on disk before it commits that it is the
        owner. Either may give up: the first commit counts.
Rule 3: a follower is called in step after every answer so far is confirmed there. From the moment
        the owner intends to call it so, it sends no unconfirmed answer. A follower that cannot keep
        up is called out of step, in a commit, before anything is answered without it.
Rule 4: a copy to a follower begins only while the map says that it is out of step. A target with a
        complete copy accepts no other one until it knows whether its commit was applied: a new
        copy erases the rows.
Rule 5: one proposal is in flight at a time. The changes to propose are derived from the state each
        time, so a lost proposal loses nothing.
Rule 6: an input checks the slots that it touched, a new map all of ours, and the clock those that
        wait for time, a lease or a commit: a busy server has a thousand slots and checks a thousand
        times a second. Every `SWEEP_S` all slots are checked.
Rule 7: without `sync` no answer waits for a follower that keeps up: when the owner dies, what was
        answered last, within `CONFIRM_MAX_S`, may be lost with it.

Inputs in, effects out; the driver has links, store and clock.
"""

from collections.abc import Callable, Iterator, Sequence

from waystation.queue.store import Row

from .copies import Copies, Following, Incoming, Outgoing, Phase
from .effects import (
    Apply,
    CopyId,
    Effect,
    Erase,
    Freeze,
    Propose,
    ReadRows,
    Refresh,
    Refuse,
    Release,
    SendAck,
    SendFrame,
    Ticket,
)
from .map_changes import MapChange, called_in_step, called_out_of_step, returned_for_another_try
from .migration import BrokenCopyError, Frame
from .migration import Effect as CopyEffect
from .migration import GiveUp as CopyGivenUp
from .migration import ReadRows as CopyReads
from .slot_lease import SlotLease
from .slot_map import NOBODY, Assignment, NodeId, SlotMap

STALL_MAX_S = 10.0  # a copy without confirmations for so long begins again
AGAIN_S = 0.5  # pause before a failed copy begins again
SWEEP_S = 5.0  # interval of checks of all slots
FORGET_S = 3600.0  # how long rows of a slot that moved away stay, for inspection


class Replication:
    def __init__(
        self, slot_lease: SlotLease, *, new_copy_id: Callable[[], CopyId], sync: bool = True
    ) -> None:
        self.slot_lease = slot_lease
        self._new_copy_id = new_copy_id
        self._sync = sync
        self.copies = Copies()
        self._following: dict[int, Following] = {}
        self._incoming: dict[int, Incoming] = {}
        self._again_at: dict[tuple[int, NodeId], float] = {}
        self._returning: set[int] = set()  # frozen by us for a move that failed
        self._proposed: SlotMap | None = None
        self._tickets = 0
        self._held: set[int] = set()  # slots that may have rows here
        self._forget_at: dict[int, float] = {}
        self._effects: list[Effect] = []
        self._mono = 0.0
        self._scanned = -1  # the epoch of the last map that was scanned completely
        self._own_slots: list[int] = []  # its slots that concern this server
        self._touched: set[int] = set()  # not checked since
        self._to_propose: set[int] = set()  # slots with a map change to propose
        self._unsettled: set[int] = set()  # slots that the clock checks (rule 6)
        self._swept_at = float("-inf")

    # Inputs: the map and the clock

    def started(self, held: Sequence[int], mono: float) -> list[Effect]:
        """Called after the map was read. `held`: the slots that have rows here."""
        self._held.update(held)
        self._mono = mono
        return self._checked_all()

    def learned(self, slot_map: SlotMap, mono: float) -> list[Effect]:
        self._mono = mono
        if not self.slot_lease.learned(slot_map):
            return []
        return self._checked_all()

    def proposed(self, slot_map: SlotMap, mono: float) -> list[Effect]:
        """`slot_map` was read after a proposal, whether that was applied or not."""
        self._mono = mono
        self._proposed = None
        self.slot_lease.learned(slot_map)
        return self._checked_all()

    def tick(self, mono: float) -> list[Effect]:
        """Called a few times a second."""
        self._mono = mono
        for copy, out in self.copies.all():
            if not out.source.lag:
                out.heard_at = mono
            following = None if out.move else self._following.get(out.slot)
            late = following is not None and following.is_overdue(out, mono, sync=self._sync)
            if late or mono - out.heard_at >= STALL_MAX_S:
                self._fail(copy)
        here = self.slot_lease.node_id
        for slot, at in list(self._forget_at.items()):
            one = self.slot_lease.slot_map.slots[slot]
            if here in (one.owner, one.target, one.follower):
                del self._forget_at[slot]
            elif mono >= at:
                del self._forget_at[slot]
                self._held.discard(slot)
                self._effects.append(Erase(slot))
        for key in [key for key, at in self._again_at.items() if mono >= at]:
            del self._again_at[key]
            self._touched.add(key[0])
        if mono - self._swept_at >= SWEEP_S:
            return self._checked_all()
        return self._checked(*self._unsettled)

    # Inputs: our own store

    def committed(
        self, slot: int, changes: Sequence[Row], mono: float
    ) -> tuple[Ticket | None, list[Effect]]:
        """A commit is durable here. With a ticket the answer waits for `Release` or `Refuse`."""
        self._mono = mono
        self._held.add(slot)
        ticket, seq = None, 0
        for copy, out in self.copies.of(slot):
            self._carry(copy, out, out.source.changed(changes))
            if not out.move:
                seq = out.source.seq
        following = self._following.get(slot)
        waits = ("requiring", "leaving") if self._sync else ("leaving",)
        if following is not None and following.phase in waits:
            self._tickets += 1
            ticket = self._tickets
            following.waiting.append((seq, mono, ticket))
        return ticket, self._checked(slot) if self._effects or self._touched else []

    def rows(self, copy: CopyId, rows: Sequence[Row]) -> list[Effect]:
        """A chunk that `ReadRows` asked for."""
        out = self.copies.get(copy)
        if out is None:
            return []
        self._carry(copy, out, out.source.rows(rows))
        return self._checked(out.slot)

    def drained(self, slot: int) -> list[Effect]:
        """No command runs in a slot that `Freeze` named, and its last change was passed on."""
        for _, out in self.copies.of(slot):
            if out.move and out.freezing:
                out.drained = True
        return self._checked(slot)

    def applied(self, slot: int, copy: CopyId, seq: int) -> list[Effect]:
        """The rows of an `Apply` are durable."""
        incoming = self._incoming.get(slot)
        if incoming is None or incoming.copy != copy:
            return []
        incoming.applied = seq
        self._effects.append(SendAck(incoming.peer, copy, seq))
        if not incoming.durable:
            return self._out()
        if self.slot_lease.slot_map.slots[slot].state != "F":
            self._effects.append(Refresh())  # its source has frozen it and waits for us
        return self._checked(slot)

    def awaits(self, slot: int, copy: CopyId) -> bool:
        """Whether rows of this copy are still wanted: checked before they are applied."""
        incoming = self._incoming.get(slot)
        return incoming is not None and incoming.copy == copy

    def not_applied(self, slot: int, copy: CopyId) -> list[Effect]:
        """Our store refused the rows of an `Apply`: later rows must not be applied either."""
        incoming = self._incoming.get(slot)
        if incoming is None or incoming.copy != copy:
            return []
        del self._incoming[slot]
        return [SendAck(incoming.peer, copy, 0, broken=True)]

    # Inputs: other servers

    def acked(self, peer: NodeId, copy: CopyId, seq: int, *, broken: bool = False) -> list[Effect]:
        out = self.copies.get(copy)
        if out is None or out.peer != peer:
            return []
        if broken:
            self._fail(copy)
        else:
            out.heard_at = self._mono
            self._carry(copy, out, out.source.acked(seq))
            self._confirm(out)
        return self._checked(out.slot)

    def frame(self, peer: NodeId, copy: CopyId, slot: int, move: int, frame: Frame) -> list[Effect]:
        """From the owner of a slot that we follow or take over."""
        incoming = self._incoming.get(slot)
        fresh = incoming is None or incoming.copy != copy
        if fresh and incoming is not None and incoming.target.complete:
            return []  # Rule 4: whether our commit was applied is not known yet
        if not self.slot_lease.takes_from(slot, peer, move):
            return [SendAck(peer, copy, 0, broken=True), Refresh()]
        if fresh and frame.seq != 1:
            return [SendAck(peer, copy, 0, broken=True)]
        if incoming is None or fresh:
            self._incoming[slot] = incoming = Incoming(copy, peer, move)
        try:
            changes = incoming.target.receive(frame)
        except BrokenCopyError:
            del self._incoming[slot]
            self._effects.append(SendAck(peer, copy, 0, broken=True))
            return self._out()
        self._held.add(slot)
        self._forget_at.pop(slot, None)
        self._effects.append(
            Apply(copy=copy, slot=slot, seq=frame.seq, changes=changes, erase=fresh)
        )
        return self._out()

    def link_lost(self, peer: NodeId, mono: float) -> list[Effect]:
        self._mono = mono
        for copy, out in self.copies.all():
            if out.peer == peer:
                self._fail(copy)
        for slot, incoming in list(self._incoming.items()):
            if incoming.peer == peer and not incoming.target.complete:
                del self._incoming[slot]
                self._touched.add(slot)
        return self._checked()

    # State changes after an input

    def _checked_all(self) -> list[Effect]:
        slot_map = self.slot_lease.slot_map
        self._swept_at = self._mono
        if self._scanned != slot_map.epoch:
            here = self.slot_lease.node_id
            self._scanned = slot_map.epoch
            self._own_slots = [
                slot for slot, one in slot_map.owned if one.owner == here or slot in self._held
            ]
        self._touched.update(self._own_slots, self._following, self.copies.slots(), self._incoming)
        self._touched.update(self._returning, self._to_propose)
        return self._checked()

    def _checked(self, *touched: int) -> list[Effect]:
        self._touched.update(touched)
        while self._touched:
            slots, self._touched = sorted(self._touched), set()
            for slot in slots:
                self._check(slot)
            if not self._touched and (waiting := self.copies.next_waiting()) is not None:
                self._touched.add(waiting)
        if self._proposed is None and self._to_propose:
            before = after = self.slot_lease.slot_map
            for slot in sorted(self._to_propose):
                for change in self._map_changes(slot):
                    after = change(after, slot)
            if after is not before:
                self._proposed = after.as_one_change(before)
                self._effects.append(Propose(self._proposed))
        return self._out()

    def _check(self, slot: int) -> None:
        self._drop_ended_copies(slot)
        self._begin_wanted_copies(slot)
        for copy, out in self.copies.of(slot):
            self._advance(copy, out)
        map_changes = next(self._map_changes(slot), None) is not None
        (self._to_propose.add if map_changes else self._to_propose.discard)(slot)
        stirs = map_changes or self._is_unsettled(slot)
        (self._unsettled.add if stirs else self._unsettled.discard)(slot)

    def _is_unsettled(self, slot: int) -> bool:
        incoming, following = self._incoming.get(slot), self._following.get(slot)
        leaves = slot in self._returning or any(out.move for _, out in self.copies.of(slot))
        comes = incoming is not None and incoming.move > 0
        in_step = self.slot_lease.slot_map.slots[slot].in_step
        return leaves or comes or (following is not None and following.is_unsettled(in_step))

    def _out(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def _mine(self, slot: int) -> Assignment | None:
        one = self.slot_lease.slot_map.slots[slot]
        return one if one.owner == self.slot_lease.node_id else None

    def _drop_ended_copies(self, slot: int) -> None:
        mine = self._mine(slot)
        following = self._following.get(slot)
        if following is None:
            pass
        elif mine is None:
            self._unfollow(slot)
            if tickets := following.taken():
                self._effects.append(Refuse(tickets))
        elif mine.follower != following.peer:
            # The map itself ended it: the follower cannot be promoted any more.
            self._unfollow(slot)
            if tickets := following.taken():
                self._effects.append(Release(tickets))
        elif following.phase == "leaving" and not mine.in_step and self._proposed is None:
            self._enter(slot, following, "copying")
            if tickets := following.taken():
                self._effects.append(Release(tickets))
        for copy, out in self.copies.of(slot):
            if mine is None or (out.move != mine.move if out.move else out.peer != mine.follower):
                self.copies.drop(copy)
        if mine is None or mine.state == "S":
            self._returning.discard(slot)
        incoming = self._incoming.get(slot)
        if incoming and not self.slot_lease.takes_from(slot, incoming.peer, incoming.move):
            del self._incoming[slot]

    def _begin_wanted_copies(self, slot: int) -> None:
        here = self.slot_lease.node_id
        one = self.slot_lease.slot_map.slots[slot]
        if one.owner != here:
            if slot in self._held and here not in (one.target, one.follower):
                self._forget_at.setdefault(slot, self._mono + FORGET_S)
            return
        if one.state != "S" and slot not in self._returning:
            self._begin(slot, one.target, one.move)
        if one.follower == NOBODY:
            return
        following = self._following.get(slot)
        if following is None:
            self._following[slot] = following = Following(one.follower)
            if one.in_step:
                self._enter(slot, following, "leaving")
        if following.phase == "copying" and not one.in_step:
            self._begin(slot, one.follower, 0)

    def _begin(self, slot: int, peer: NodeId, move: int) -> None:
        if any(out.move == move for _, out in self.copies.of(slot)):
            return
        if self._mono < self._again_at.get((slot, peer), 0.0):
            return
        if not move and not self.copies.has_room(slot, peer):
            return
        out = Outgoing(slot, peer, move)
        out.heard_at = self._mono
        copy = self._new_copy_id()
        self.copies.add(copy, out)
        self._carry(copy, out, out.source.begin())

    def _advance(self, copy: CopyId, out: Outgoing) -> None:
        one = self.slot_lease.slot_map.slots[out.slot]
        if not out.move:
            following = self._following[out.slot]
            if following.phase == "copying" and out.source.caught_up:
                self._enter(out.slot, following, "requiring")
                following.join_seq = out.source.seq
                self.copies.caught_up(copy)
        elif one.state == "F":
            if out.source.rows_done and not out.source.ended:
                self._carry(copy, out, out.source.end())
        elif out.source.caught_up and not out.freezing:
            out.freezing = True
            self.slot_lease.freeze(out.slot)
            self._effects.append(Freeze(out.slot))

    def _map_changes(self, slot: int) -> Iterator[MapChange]:
        """The changes that we would make to the present map."""
        one = self.slot_lease.slot_map.slots[slot]
        following = self._following.get(slot)
        for _, out in self.copies.of(slot):
            if out.move and out.drained and one.state == "P":
                yield SlotMap.frozen
            elif not out.move and following is not None:
                confirmed = out.source.confirmed >= following.join_seq
                # Without a lease we would be replaced the moment it is called in step.
                ready = confirmed and self.slot_lease.leased(self._mono)
                if following.phase == "requiring" and ready and not one.in_step:
                    yield called_in_step
        if slot in self._returning:
            yield returned_for_another_try
        incoming = self._incoming.get(slot)
        if incoming is not None and incoming.durable and incoming.move and one.state == "F":
            yield SlotMap.moved
        if following is not None and following.phase == "leaving" and one.in_step:
            yield called_out_of_step

    # Copies from this server

    def _carry(self, copy: CopyId, out: Outgoing, effects: Sequence[CopyEffect]) -> None:
        for effect in effects:
            match effect:
                case CopyReads(after):
                    self._effects.append(ReadRows(copy, out.slot, after))
                case CopyGivenUp():
                    self._fail(copy)
                case _:
                    self._effects.append(
                        SendFrame(out.peer, copy, out.slot, out.move, effect.frame)
                    )

    def _confirm(self, out: Outgoing) -> None:
        following = None if out.move else self._following.get(out.slot)
        if following is None or following.phase != "requiring":
            return
        released: list[Ticket] = []
        while following.waiting and following.waiting[0][0] <= out.source.confirmed:
            released.append(following.waiting.popleft()[2])
        if released:
            self._effects.append(Release(tuple(released)))

    def _fail(self, copy: CopyId) -> None:
        """The copy failed; another one begins after `AGAIN_S`."""
        out = self.copies.drop(copy)
        if out is None:
            return
        self._touched.add(out.slot)
        self._again_at[out.slot, out.peer] = self._mono + AGAIN_S
        if out.move:
            # Frozen by us, or in the map: serving it again needs a commit.
            if out.freezing or self.slot_lease.slot_map.slots[out.slot].state == "F":
                self._returning.add(out.slot)
            return
        following = self._following.get(out.slot)
        if following is not None and following.phase == "requiring":
            self._enter(out.slot, following, "leaving")

    # Followers

    def _enter(self, slot: int, following: Following, phase: Phase) -> None:
        following.phase = phase
        if phase == "copying":
            self.slot_lease.guarded.discard(slot)
        else:
            self.slot_lease.guarded.add(slot)

    def _unfollow(self, slot: int) -> None:
        del self._following[slot]
        self.slot_lease.guarded.discard(slot)
