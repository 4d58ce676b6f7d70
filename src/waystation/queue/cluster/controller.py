"""Decides changes of the slot map: servers up or down, moves, promotions.

Rule 1: the controller only proposes. Each proposal is one next map, committed over the epoch it was
        made from or not at all, so a stale controller does no harm. A move that has begun needs no
        controller: its source freezes the slot and its target takes it over.
Rule 2: a server whose lease expired is down. Its slots go to followers that are in step. Slots
        without one wait for the server: only it has what it acknowledged.
Rule 3: a move whose target is down, or that stays frozen too long, goes back to its owner.
Rule 4: at most `moves_per_node_max` slots move from or to one server, and `moves_max` in all: each
        step is a commit of the whole map, and a server whose commit fails stays frozen longer.
Rule 5: a move waits while its source still writes the references of its queues.
Rule 6: with `replicas` each slot has a follower; one that stays down is replaced. When all are in
        step and nothing moves, up to `FOLLOWERS_SHIFT_MAX` at a time are shifted from servers that
        leave or follow too many slots.

No clock and no store: ages are arguments, the next map is the result.
"""

from collections import Counter
from collections.abc import Mapping

import msgspec

from .plan import followers, shifted_followers
from .slot_map import NOBODY, Assignment, NodeId, SlotMap, SlotMapError, Status

LEASE_S = 10.0
FREEZE_MAX_S = 5.0
PREPARE_MAX_S = 3600.0
FOLLOWER_PATIENCE_S = 60.0
FOLLOWERS_SHIFT_MAX = 32


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the controller that operators choose."""

    replicas: int = 0
    moves_per_node_max: int = 4
    moves_max: int = 8
    lease_s: float = LEASE_S
    freeze_max_s: float = FREEZE_MAX_S
    prepare_max_s: float = PREPARE_MAX_S
    follower_patience_s: float = FOLLOWER_PATIENCE_S


class Proposal(msgspec.Struct, frozen=True):
    """The next map, and the changes as text for the log."""

    slot_map: SlotMap
    reasons: tuple[str, ...]


class Controller:
    """Its only state is since when each slot has been moving."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._since: dict[int, tuple[Assignment, float]] = {}

    def decide(
        self, slot_map: SlotMap, ages: Mapping[NodeId, float], mono: float
    ) -> Proposal | None:
        """`ages`: seconds since each server's lease was renewed; a missing one never renewed."""
        self._watch(slot_map, mono)
        reasons: list[str] = []
        after = self._with_statuses(slot_map, ages, reasons)
        after = self._with_promotions(after, ages, reasons)
        after = self._with_returns(after, mono, reasons)
        after = self._with_moves(after, reasons)
        after = self._with_followers(after, ages, reasons)
        if not reasons:
            return None
        return Proposal(after.as_one_change(slot_map), tuple(reasons))

    def _watch(self, slot_map: SlotMap, mono: float) -> None:
        moving = dict(slot_map.moving())
        self._since = {
            slot: (one, self._since[slot][1])
            if self._since.get(slot, (None,))[0] == one
            else (one, mono)
            for slot, one in moving.items()
        }

    def _alive(self, ages: Mapping[NodeId, float], node_id: NodeId) -> bool:
        return ages.get(node_id, float("inf")) < self._terms.lease_s

    def _with_statuses(
        self, slot_map: SlotMap, ages: Mapping[NodeId, float], reasons: list[str]
    ) -> SlotMap:
        for node_id, node in slot_map.nodes.items():
            seen: Status = "up" if self._alive(ages, node_id) else "down"
            if node.status not in ("drain", seen):
                slot_map = slot_map.with_node(msgspec.structs.replace(node, status=seen))
                reasons.append(f"node {node_id} is {seen}")
        return slot_map

    def _with_promotions(
        self, slot_map: SlotMap, ages: Mapping[NodeId, float], reasons: list[str]
    ) -> SlotMap:
        promoted: Counter[tuple[NodeId, NodeId]] = Counter()
        for slot, one in slot_map.owned:
            if one.in_step and not self._alive(ages, one.owner) and self._alive(ages, one.follower):
                slot_map = slot_map.promoted(slot)
                promoted[one.owner, one.follower] += 1
        reasons.extend(
            f"{count} slots of node {gone} go to their follower, node {heir}"
            for (gone, heir), count in promoted.items()
        )
        return slot_map

    def _with_returns(self, slot_map: SlotMap, mono: float, reasons: list[str]) -> SlotMap:
        terms = self._terms
        for slot, (one, since) in self._since.items():
            if slot_map.slots[slot] != one:
                continue  # promoted in this proposal
            waited_s = mono - since
            target = slot_map.nodes.get(one.target)
            lost = target is None or target.status == "down"
            patience_s = terms.prepare_max_s if one.state == "P" else terms.freeze_max_s
            # The target may have taken a frozen slot in a commit that we have not seen; then this
            # proposal is refused. So a target that seems down is given up at once.
            if lost or waited_s >= patience_s:
                slot_map = slot_map.returned(slot)
                why = "its target is down" if lost else f"it took longer than {patience_s:g} s"
                reasons.append(f"slot {slot} stays at node {one.owner}: {why}")
        return slot_map

    def _with_moves(self, slot_map: SlotMap, reasons: list[str]) -> SlotMap:
        if not slot_map.planned:
            return slot_map
        busy: Counter[NodeId] = Counter()
        for _, one in slot_map.moving():
            busy.update((one.owner, one.target))
        limit = self._terms.moves_per_node_max
        places = self._terms.moves_max - busy.total() // 2
        waiting = list(slot_map.planned)
        for move in slot_map.planned:
            one = slot_map.slots[move.slot]
            if one.state != "S" or not slot_map.may_leave(move.slot):
                continue
            if places <= 0 or max(busy[one.owner], busy[move.target]) >= limit:
                continue
            waiting.remove(move)
            try:
                slot_map = slot_map.preparing(move.slot, move.target)
            except SlotMapError as exc:  # the map has changed since the plan was made
                reasons.append(f"left out of the plan: {exc}")
                continue
            busy.update((one.owner, move.target))
            places -= 1
            reasons.append(f"slot {move.slot} begins to move: {one.owner} → {move.target}")
        if len(waiting) == len(slot_map.planned):
            return slot_map
        return slot_map.planning(waiting)

    def _with_followers(
        self, slot_map: SlotMap, ages: Mapping[NodeId, float], reasons: list[str]
    ) -> SlotMap:
        if not self._terms.replicas:
            return slot_map
        patience_s = self._terms.follower_patience_s
        for slot, one in slot_map.owned:
            if one.follower == NOBODY or one.in_step:
                continue
            known = slot_map.nodes.get(one.follower)
            gone = known is None or known.status == "drain"  # will not follow again
            if gone or ages.get(one.follower, float("inf")) >= patience_s:
                slot_map = slot_map.followed(slot, NOBODY)
        chosen = followers(slot_map)
        for slot, follower in chosen.items():
            slot_map = slot_map.followed(slot, follower)
        if chosen:
            reasons.append(f"{len(chosen)} slots are given a follower")
            return slot_map
        settled = all(one.in_step and one.state == "S" for _, one in slot_map.owned)
        if settled and not slot_map.planned:
            chosen = shifted_followers(slot_map, FOLLOWERS_SHIFT_MAX)
            for slot, follower in chosen.items():
                slot_map = slot_map.followed(slot, follower)
            if chosen:
                reasons.append(f"{len(chosen)} slots are given another follower")
        return slot_map
