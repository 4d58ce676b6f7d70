"""Which slots should move to which server, so that load is even and little moves.

A pure function of the load: ties are decided by numbers and names, so the same input gives the
same plan.

Rule 1: a server's target is its share of the whole load by its capacity; capacity 0 is a server
        that is being drained, and gives everything away.
Rule 2: from each server above (1 + tolerance) · target, the largest slot that is not larger than
        its excess over the target is taken, again and again, until it is not above any more or
        nothing fits.
Rule 3: what was taken goes, largest first, to the server of least relative load.
Rule 4: promised: every slot has one owner; nothing moves when nobody is above; afterwards nobody
        is above (1 + tolerance) · target + the heaviest slot.

A slot heavier than a whole target cannot be placed well anywhere; it is listed as unsplittable.
"""

import hashlib
import heapq
from collections.abc import Mapping, Sequence

import msgspec

from waystation.queue.model import SLOTS, slot_letters

MOVE_COST_BYTES = 4096  # moving an empty slot is not free


class Slot(msgspec.Struct, frozen=True):
    """What a slot weighs on its server, and what moving it copies."""

    slot: int
    weight: float
    stored_bytes: int = 0


class Server(msgspec.Struct, frozen=True):
    """Who may own slots. Capacity is relative to the others; 0 drains it."""

    node: int
    capacity: float = 1.0


class Move(msgspec.Struct, frozen=True):
    slot: int
    name: str  # the two letters that ids of the slot begin with
    source: int
    target: int
    load: float
    bytes: int
    wave: int


class Load(msgspec.Struct, frozen=True):
    """A server before and after."""

    node: int
    capacity: float
    target: float
    before: float
    after: float
    slots_before: int
    slots_after: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What `cluster plan` shows and `cluster move --plan` applies."""

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
    """The input does not describe a cluster."""


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
    """Slots without a weight weigh nothing, and stay unless their owner is drained."""
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
        raise PlanError("a server is named twice")
    if any(capacity < 0 for capacity in capacities.values()) or tolerance < 0:
        raise PlanError("capacities and the tolerance are not negative")
    if not any(capacities.values()):
        raise PlanError("no server has capacity")
    unknown = sorted(set(owners.values()) - capacities.keys())
    if unknown:
        raise PlanError(
            f"slots are owned by servers that are not listed: {', '.join(map(str, unknown))}"
        )
    outside = [slot for slot in owners if not 0 <= slot < SLOTS]
    if outside:
        raise PlanError(f"slots are 0 to {SLOTS - 1}, not {outside[0]}")
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
    """Which slots leave whom (rules 1 and 2), and what load everybody keeps."""
    taken: dict[int, int] = {}
    load = dict(before)
    for name, capacity in capacities.items():
        if not capacity:
            taken |= dict.fromkeys(sorted(held[name]), name)
            load[name] = 0.0
            continue
        bound = (1 + tolerance) * targets[name]
        # Largest first; one that is too large now is too large later, as the excess only shrinks.
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
    """(slot, from, to) for what was taken (rule 3); empty slots are dealt out by number."""
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
    """Cut so that no wave moves too much at once; a slot larger than that has a wave alone."""
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
    """The greatest load over the mean, both relative to capacity; 1 is perfectly even."""
    able = [load for load in loads if load.capacity]
    whole = sum(getattr(load, when) for load in able)
    mean = whole / sum(load.capacity for load in able)
    return max(getattr(load, when) / load.capacity for load in able) / mean if mean else 1.0
