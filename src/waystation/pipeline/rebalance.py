"""Plans slot moves that balance load across servers with few moves.

The plan is a pure function of the load: numbers and names break ties, so the same input gives the
same plan.

Rule 1: a server's target is its share of the total load by capacity. Capacity 0 drains a server:
        all its slots move.
Rule 2: a server above (1 + tolerance) · target gives up the largest slot that is not larger than
        its excess over the target, repeatedly, until it is below that limit or no slot fits.
Rule 3: these slots go, largest first, to the server with the lowest relative load.
Rule 4: guarantees: every slot has one owner; no slot moves if no server is above its limit;
        afterwards no server is above (1 + tolerance) · target + the heaviest slot.

A slot heavier than a whole target cannot be balanced; it is listed as unsplittable.
"""

import hashlib
import heapq
from collections.abc import Mapping, Sequence

import msgspec

from waystation.queue.model import SLOTS, slot_letters

MOVE_COST_BYTES = 4096  # fixed cost of moving a slot, even an empty one


class Slot(msgspec.Struct, frozen=True):
    """A slot's load, and the bytes that a move copies."""

    slot: int
    weight: float
    stored_bytes: int = 0


class Server(msgspec.Struct, frozen=True):
    """A server that may own slots. Capacity is relative to the others; 0 drains the server."""

    node: int
    capacity: float = 1.0


class Move(msgspec.Struct, frozen=True):
    slot: int
    name: str  # the first two letters of ids in the slot
    source: int
    target: int
    load: float
    bytes: int
    wave: int


class Load(msgspec.Struct, frozen=True):
    """A server's load before and after the plan."""

    node: int
    capacity: float
    target: float
    before: float
    after: float
    slots_before: int
    slots_after: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan that `cluster plan` shows and `cluster move --plan` applies."""

    form: str = "waystation-plan/1"
    plan: str
    epoch: int | None
    tolerance: float
    moves: tuple[Move, ...]
    servers: tuple[Load, ...]
    unsplittable: tuple[int, ...]
    lower_bound: float
    moved_load: float
    moved_bytes: int
    max_over_mean_before: float
    max_over_mean: float
    heaviest_slot: float


class PlanError(ValueError):
    """The input is not a valid cluster."""


def rebalance(
    slots: Sequence[Slot],
    owners: Mapping[int, int],
    servers: Sequence[Server],
    *,
    tolerance: float = 0.05,
    epoch: int | None = None,
    wave_moves_max: int = 64,
    wave_bytes_max: int = 1 << 30,
) -> Plan:
    """Slots without a weight have weight 0, and stay unless their owner is drained."""
    capacities = _checked(owners, servers, tolerance)
    weights = {slot.slot: slot.weight for slot in slots}
    stored = {slot.slot: slot.stored_bytes for slot in slots}
    held: dict[int, set[int]] = {server.node: set() for server in servers}
    for slot, owner in owners.items():
        held[owner].add(slot)
    before = {name: _sum(its, weights) for name, its in held.items()}
    whole = sum(before.values())
    all_capacity = sum(capacities.values())
    targets = {name: whole * capacity / all_capacity for name, capacity in capacities.items()}

    taken, load = _taken(
        held,
        weights,
        before=before,
        targets=targets,
        capacities=capacities,
        tolerance=tolerance,
    )
    placed = _placed(taken, load, weights, capacities)
    moves = _waves(placed, weights, stored, wave_moves_max, wave_bytes_max)
    after = {
        name: [*(held[name] - taken.keys()), *(slot for slot, _, to in placed if to == name)]
        for name in capacities
    }
    excess = [
        before[name] - (1 + tolerance) * targets[name] if capacities[name] else before[name]
        for name in capacities
    ]
    receivers = [name for name in capacities if capacities[name]]
    smallest_target = min(targets[name] for name in receivers)
    loads = tuple(
        Load(
            name,
            capacities[name],
            targets[name],
            before[name],
            _sum(after[name], weights),
            len(held[name]),
            len(after[name]),
        )
        for name in capacities
    )
    return Plan(
        plan=_name_of(moves),
        epoch=epoch,
        tolerance=tolerance,
        moves=moves,
        servers=loads,
        lower_bound=sum(amount for amount in excess if amount > 0),
        moved_load=sum(move.load for move in moves),
        moved_bytes=sum(move.bytes for move in moves),
        max_over_mean_before=_evenness(loads, "before"),
        max_over_mean=_evenness(loads, "after"),
        heaviest_slot=max(weights.values(), default=0.0),
        unsplittable=tuple(
            sorted(slot for slot in owners if weights.get(slot, 0.0) > smallest_target > 0)
        ),
    )


def _checked(
    owners: Mapping[int, int], servers: Sequence[Server], tolerance: float
) -> dict[int, float]:
    capacities = {server.node: server.capacity for server in servers}
    if len(capacities) != len(servers):
        raise PlanError("a server is listed twice")
    if any(capacity < 0 for capacity in capacities.values()) or tolerance < 0:
        raise PlanError("capacities and tolerance must not be negative")
    if not any(capacities.values()):
        raise PlanError("no server has a capacity above 0")
    unknown = sorted(set(owners.values()) - capacities.keys())
    if unknown:
        raise PlanError(
            f"slots are owned by servers that are not listed: {', '.join(map(str, unknown))}"
        )
    outside = [slot for slot in owners if not 0 <= slot < SLOTS]
    if outside:
        raise PlanError(f"slots must be 0 to {SLOTS - 1}, not {outside[0]}")
    return dict(sorted(capacities.items()))


def _sum(slots: Sequence[int] | set[int], weights: Mapping[int, float]) -> float:
    return sum(weights.get(slot, 0.0) for slot in sorted(slots))


def _taken(
    held: Mapping[int, set[int]],
    weights: Mapping[int, float],
    *,
    before: Mapping[int, float],
    targets: Mapping[int, float],
    capacities: Mapping[int, float],
    tolerance: float,
) -> tuple[dict[int, int], dict[int, float]]:
    """The slots that leave each server (rules 1 and 2), and the load that each server keeps."""
    taken: dict[int, int] = {}
    load = dict(before)
    for name, capacity in capacities.items():
        if not capacity:
            taken |= dict.fromkeys(sorted(held[name]), name)
            load[name] = 0.0
            continue
        bound = (1 + tolerance) * targets[name]
        # Largest first; a slot that is too large stays too large, because the excess only shrinks.
        for slot in sorted(held[name], key=lambda slot: (-weights.get(slot, 0.0), slot)):
            if load[name] <= bound:
                break
            weight = weights.get(slot, 0.0)
            if 0 < weight <= load[name] - targets[name]:
                taken[slot] = name
                load[name] -= weight
    return taken, load


def _placed(
    taken: Mapping[int, int],
    load: Mapping[int, float],
    weights: Mapping[int, float],
    capacities: Mapping[int, float],
) -> list[tuple[int, int, int]]:
    """(slot, from, to) for the moving slots (rule 3); empty slots are distributed by number."""
    heap = [(load[name] / capacity, 0, name) for name, capacity in capacities.items() if capacity]
    heapq.heapify(heap)
    placed: list[tuple[int, int, int]] = []
    for slot in sorted(taken, key=lambda slot: (-weights.get(slot, 0.0), slot)):
        relative, count, name = heapq.heappop(heap)
        if name != taken[slot]:
            placed.append((slot, taken[slot], name))
        relative += weights.get(slot, 0.0) / capacities[name]
        heapq.heappush(heap, (relative, count + 1, name))
    return placed


def _waves(
    placed: Sequence[tuple[int, int, int]],
    weights: Mapping[int, float],
    stored: Mapping[int, int],
    moves_max: int,
    bytes_max: int,
) -> tuple[Move, ...]:
    """Splits the moves into waves of limited bytes; a larger slot has its own wave."""
    moves: list[Move] = []
    wave = in_wave = wave_bytes = 0
    for slot, source, target in placed:
        cost = stored.get(slot, 0) + MOVE_COST_BYTES
        if in_wave and (in_wave >= moves_max or wave_bytes + cost > bytes_max):
            wave, in_wave, wave_bytes = wave + 1, 0, 0
        in_wave += 1
        wave_bytes += cost
        moves.append(
            Move(slot, slot_letters(slot), source, target, weights.get(slot, 0.0), cost, wave)
        )
    return tuple(moves)


def _name_of(moves: Sequence[Move]) -> str:
    return hashlib.sha256(msgspec.json.encode(moves)).hexdigest()[:12]


def _evenness(loads: Sequence[Load], when: str) -> float:
    """Maximum load divided by the mean, both relative to capacity; 1 is perfectly even."""
    able = [load for load in loads if load.capacity]
    whole = sum(getattr(load, when) for load in able)
    mean = whole / sum(load.capacity for load in able)
    return max(getattr(load, when) / load.capacity for load in able) / mean if mean else 1.0
