"""A slot map as text for operators: a row for each server, and the slots as 64 lines of 64."""

from collections import Counter
from collections.abc import Iterator, Mapping

from waystation.queue.model import SLOTS, slot_letters

from .controller import LEASE_S
from .slot_map import NOBODY, NodeId, SlotMap

_MARKS = "123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_FREE = "."
_MOVING = "*"
_FROZEN = "!"


def marks(slot_map: SlotMap) -> dict[NodeId, str]:
    """One character for each server; beyond 61 servers they repeat."""
    return {
        node_id: _MARKS[rank % len(_MARKS)] for rank, node_id in enumerate(sorted(slot_map.nodes))
    }


def table(slot_map: SlotMap, ages: Mapping[NodeId, float]) -> Iterator[str]:
    """A line for each server."""
    owned = Counter(one.owner for one in slot_map.slots)
    followed = Counter(one.follower for one in slot_map.slots)
    in_step = Counter(one.follower for one in slot_map.slots if one.in_step)
    yield "     node  status  slots  follows  in step  new queues  lease     link"
    for node_id, mark in marks(slot_map).items():
        node = slot_map.nodes[node_id]
        age = ages.get(node_id)
        lease = "never" if age is None else f"{age:.1f} s ago"
        yield (
            f"  {mark}  {node_id:>4}  {node.status:<6}  {owned[node_id]:>5}  {followed[node_id]:>7}"
            f"  {in_step[node_id]:>7}  {node.weight_new:>10}  {lease:<8}  {node.host}:{node.port}"
        )
    if owned[NOBODY]:
        yield f"  {_FREE}  {owned[NOBODY]} slots have no owner"


def references(slot_map: SlotMap, ages: Mapping[NodeId, float]) -> Iterator[str]:
    """A line for each server that still writes the references of older queues."""
    for node_id, node in sorted(slot_map.nodes.items()):
        if node.references_left:
            done = SLOTS - node.references_left
            line = (
                f"node {node_id} writes the references of its queues: {done:,} of {SLOTS:,} slots"
                " are done, none moves before all are"
            )
            starts = "" if ages.get(node_id, LEASE_S) < LEASE_S else "; it is not running"
            yield line + starts


def grid(slot_map: SlotMap) -> Iterator[str]:
    """64 lines of 64 slots; each line begins with the first letter of its slots."""
    shown = marks(slot_map)
    for start in range(0, SLOTS, 64):
        line = "".join(
            _FROZEN
            if one.state == "F"
            else _MOVING
            if one.state == "P"
            else shown.get(one.owner, _FREE)
            for one in slot_map.slots[start : start + 64]
        )
        yield f"  {slot_letters(start)[0]}  {line}"


def summary(slot_map: SlotMap) -> str:
    moving = Counter(one.state for _, one in slot_map.moving())
    parts = [f"epoch {slot_map.epoch}", f"{len(slot_map.nodes)} servers"]
    if moving:
        parts.append(f"{moving['P']} slots move, {moving['F']} are frozen")
    if slot_map.planned:
        parts.append(f"{len(slot_map.planned)} moves are planned")
    return ", ".join(parts)
