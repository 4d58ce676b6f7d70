"""Decides which slots a storage server may serve, by its map and its lease.

Rule 1: a server serves the slots that the map gives it, except those that it has frozen itself.
Rule 2: a follower that is in step, or may be as far as the server knows, could be promoted without
        its knowledge. Such a slot is served only while the lease holds: until `fence_s` after a
        successful renewal was *sent*, by the monotonic clock. Other slots need no lease.
Rule 3: a slot that it froze stays frozen until a newer map names its server.
Rule 4: an older map is ignored.
"""

from .slot_map import NodeId, SlotMap

FENCE_S = 7.0


class SlotLease:
    def __init__(self, node_id: NodeId, slot_map: SlotMap, *, fence_s: float = FENCE_S) -> None:
        self.node_id = node_id
        self.slot_map = slot_map
        self._fence_s = fence_s
        self._renewed = float("-inf")
        self._frozen: set[int] = set()
        self.guarded: set[int] = set()  # slots whose follower may be in step in a newer map

    def renewed(self, sent: float) -> None:
        """A renewal that was sent at `sent` has succeeded."""
        self._renewed = max(self._renewed, sent)

    def learned(self, slot_map: SlotMap) -> bool:
        """Takes over a map; False if it is not newer."""
        if slot_map.epoch <= self.slot_map.epoch:
            return False
        self.slot_map = slot_map
        # Ours again by a commit after our freeze, or another server's.
        self._frozen = {
            slot
            for slot in self._frozen
            if slot_map.slots[slot].state != "S" and slot_map.slots[slot].owner == self.node_id
        }
        return True

    def freeze(self, slot: int) -> None:
        """Answers nothing for the slot from now on; called before the map says so."""
        assert self.slot_map.slots[slot].owner == self.node_id
        self._frozen.add(slot)

    def serves(self, slot: int, mono: float) -> bool:
        one = self.slot_map.slots[slot]
        if one.server != self.node_id or slot in self._frozen:
            return False
        guarded = one.in_step or slot in self.guarded
        return not guarded or self.leased(mono)

    def leased(self, mono: float) -> bool:
        return mono - self._renewed < self._fence_s

    def frozen(self, slot: int) -> bool:
        """Whether a command for it should wait, because a server will serve it soon."""
        one = self.slot_map.slots[slot]
        mine = self.node_id in (one.owner, one.target)
        return mine and (one.state == "F" or slot in self._frozen)

    def takes_from(self, slot: int, source: NodeId, move: int) -> bool:
        """Whether rows of `source` may be applied here: it owns the slot, and this is the current
        move to us, or we follow it (`move` is 0). A former owner is refused, and so is an earlier
        attempt of the same move: it lacks what was answered between the two."""
        one = self.slot_map.slots[slot]
        if one.owner != source:
            return False
        return self.node_id == (one.target if move else one.follower) and move in (0, one.move)
