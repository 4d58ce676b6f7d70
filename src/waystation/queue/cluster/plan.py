"""Plans moves: equal numbers of slots per server with as few moves as possible.

Rule 1: a plan depends on the map alone, with ties broken by numbers, so that two operators get the
        same plan.
Rule 2: adding servers moves slots only to the new ones; draining moves only the leaving server's
        slots.
Rule 3: slots that are moving are not touched.
Rule 4: earlier plans stay in force and are counted as if they were done. Of two plans for one slot
        the later one counts. So moving other slots never ends a drain.
Rule 5: a move that an operator requests goes before planned moves, which may take hours.

The pipeline makes plans by measured load; `read_plan` checks its file.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from waystation.base.decode_errors import DECODE_ERRORS
from waystation.queue.model import SLOTS, slot_letters

from .slot_map import NOBODY, WEIGHT_USUAL, Move, NodeId, SlotMap, SlotMapError

FORM = "waystation-plan/1"
_STATUSES = {"up": "is up", "drain": "is drained", "down": "is down"}
UNEVEN = 1.1  # above this multiple of its share, a server gives followed slots away


class PlannedMove(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a plan file; other fields of the line are for readers."""

    slot: int
    source: int
    target: int


class PlanFile(msgspec.Struct, frozen=True, kw_only=True):
    """What `waystation pipeline rebalance --out` writes."""

    form: str
    moves: list[PlannedMove]
    epoch: int | None = None


def read_plan(data: bytes, slot_map: SlotMap) -> list[Move]:
    """Raises `SlotMapError` with every objection."""
    try:
        plan = msgspec.json.decode(data, type=PlanFile)
    except DECODE_ERRORS as exc:
        raise SlotMapError(f"this is no plan: {exc}") from exc
    if plan.form != FORM:
        raise SlotMapError(f"this plan has the form {plan.form!r}; {FORM!r} is understood")
    problems = list(_objections(plan.moves, slot_map))
    if problems:
        raise SlotMapError("\n".join(problems))
    return [Move(move.slot, NodeId(move.target)) for move in plan.moves]


def _objections(moves: Sequence[PlannedMove], slot_map: SlotMap) -> Iterable[str]:
    seen: set[int] = set()
    for move in moves:
        if not 0 <= move.slot < SLOTS:
            yield f"{move.slot} is no slot"
            continue
        name = slot_letters(move.slot)
        owner = slot_map.slots[move.slot].owner
        target = slot_map.nodes.get(NodeId(move.target))
        if move.slot in seen:
            yield f"slot {name} is moved twice"
        seen.add(move.slot)
        if owner != move.source:
            yield f"slot {name} is not at node {move.source} but at node {owner}: plan again"
        if target is None:
            yield f"slot {name} should go to node {move.target}, which is not in the cluster"
        elif target.status != "up":
            yield f"slot {name} should go to node {move.target}, which {_STATUSES[target.status]}"
        elif owner == move.target:
            yield f"slot {name} is at node {move.target} already"


def asked_for(slot_map: SlotMap, move: Move) -> list[Move]:
    """The planned moves with one manual move before them."""
    target = slot_map.nodes.get(move.target)
    if target is None:
        raise SlotMapError(f"there is no node {move.target}")
    if target.status != "up":
        raise SlotMapError(
            f"node {move.target} {_STATUSES[target.status]}: no slot is moved to it"
            + (" (`waystation cluster undrain` takes it back)" * (target.status == "drain"))
        )
    others = [one for one in slot_map.planned if one.slot != move.slot]
    return merged(msgspec.structs.replace(slot_map, planned=(move, *others)), ())


def undrained(slot_map: SlotMap, node_id: NodeId) -> SlotMap:
    """Ends the drain of a server; it keeps the slots that have not left it yet."""
    node = slot_map.nodes.get(node_id)
    if node is None:
        raise SlotMapError(f"there is no node {node_id}")
    if node.status != "drain":
        raise SlotMapError(f"node {node_id} is not drained: it {_STATUSES[node.status]}")
    back = msgspec.structs.replace(node, status="up", weight_new=WEIGHT_USUAL)
    kept = [one for one in slot_map.planned if slot_map.slots[one.slot].owner != node_id]
    return slot_map.with_node(back).planning(kept)


def merged(slot_map: SlotMap, moves: Iterable[Move]) -> list[Move]:
    """The planned moves and these."""
    wanted = {move.slot: move for move in (*slot_map.planned, *moves)}
    # A slot that stays where it is needs no move, unless it is about to leave.
    return [
        move
        for move in wanted.values()
        if slot_map.slots[move.slot].state != "S" or slot_map.slots[move.slot].owner != move.target
    ]


def foreseen(slot_map: SlotMap) -> SlotMap:
    """The map after all planned moves."""
    slots = list(slot_map.slots)
    for move in slot_map.planned:
        if slots[move.slot].state == "S":
            slots[move.slot] = msgspec.structs.replace(slots[move.slot], owner=move.target)
    return msgspec.structs.replace(slot_map, slots=tuple(slots))


def equalised(slot_map: SlotMap) -> list[Move]:
    """Moves after which the counts of all servers that are up differ by one at most."""
    counts = _counts(slot_map)
    if not counts:
        raise SlotMapError("no server is up")
    quotas = _quotas(counts, sum(counts.values()))
    lacking = {node: quota - counts[node] for node, quota in quotas.items()}
    moves: list[Move] = []
    for slot, one in enumerate(slot_map.slots):
        if one.state != "S" or lacking.get(one.owner, 0) >= 0:
            continue
        target = max(lacking, key=lambda node: (lacking[node], -node))
        if lacking[target] <= 0:
            break
        lacking[one.owner] += 1
        lacking[target] -= 1
        moves.append(Move(slot, target))
    return moves


def drained(slot_map: SlotMap, leaving: NodeId) -> list[Move]:
    """All slots of one server, each to the server with the fewest."""
    if leaving not in slot_map.nodes:
        raise SlotMapError(f"there is no node {leaving}")
    counts = _counts(slot_map)
    counts.pop(leaving, None)
    if not counts:
        raise SlotMapError(f"node {leaving} is the last that is up: no other could take its slots")
    moves: list[Move] = []
    for slot in slot_map.owned_by(leaving):
        if slot_map.slots[slot].state != "S":
            continue
        target = min(counts, key=lambda node: (counts[node], node))
        counts[target] += 1
        moves.append(Move(slot, target))
    return moves


def followers(slot_map: SlotMap) -> dict[int, NodeId]:
    """A follower for each slot that has none: the least loaded server that is up, on another
    machine if there is one."""
    up = [node for node in slot_map.nodes.values() if node.status == "up"]
    burden = {node.node_id: 0 for node in up}
    for _, one in slot_map.owned:
        if one.follower in burden:
            burden[one.follower] += 1
    chosen: dict[int, NodeId] = {}
    for slot, one in slot_map.owned:
        if one.follower != NOBODY or one.state != "S" or not slot_map.may_leave(slot):
            continue
        home = slot_map.nodes[one.owner].host
        others = [node for node in up if node.node_id != one.owner]
        if not others:
            break
        best = min(others, key=lambda n: (n.host == home, burden[n.node_id], n.node_id))
        burden[best.node_id] += 1
        chosen[slot] = best.node_id
    return chosen


def shifted_followers(slot_map: SlotMap, at_most: int) -> dict[int, NodeId]:
    """Other followers for a few slots: from servers that leave or follow more than their share to
    those that follow less. A shifted slot has no follower in step meanwhile, so it is a few at a
    time, and none for small differences."""
    up = {id_: 0 for id_, node in sorted(slot_map.nodes.items()) if node.status == "up"}
    if len(up) < 2:
        return {}
    followed = [(slot, one) for slot, one in slot_map.owned if one.follower != NOBODY]
    for _, one in followed:
        if one.follower in up:
            up[one.follower] += 1
    share = len(followed) / len(up)
    chosen: dict[int, NodeId] = {}
    for slot, one in followed:
        if len(chosen) >= at_most:
            break
        leaves = one.follower not in up
        if one.state != "S" or not (leaves or up[one.follower] > share * UNEVEN):
            continue
        others = [node for node in up if node not in (one.owner, one.follower)]
        best = min(others, key=lambda node: (up[node], node), default=None)
        if best is None or not (leaves or up[best] < share):
            continue
        if not leaves:
            up[one.follower] -= 1
        up[best] += 1
        chosen[slot] = best
    return chosen


def _counts(slot_map: SlotMap) -> dict[NodeId, int]:
    """Slots per server that is up; a moving slot counts at its target."""
    counts = {id_: 0 for id_, node in sorted(slot_map.nodes.items()) if node.status == "up"}
    for one in slot_map.slots:
        holder = one.target or one.owner
        if holder in counts:
            counts[NodeId(holder)] += 1
    return counts


def _quotas(counts: Mapping[NodeId, int], total: int) -> dict[NodeId, int]:
    """Equal shares; the remainder goes to the servers with most slots, so that it does not move."""
    share, left_over = divmod(total, len(counts))
    by_count = sorted(counts, key=lambda node: (-counts[node], node))
    return {node: share + (rank < left_over) for rank, node in enumerate(by_count)}
