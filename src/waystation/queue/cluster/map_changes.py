"""Changes of one slot that a storage server proposes for the map.

Each function takes a map and returns the next one; a proposal applies all changes that are due.
"""

from collections.abc import Callable

from .slot_map import SlotMap

MapChange = Callable[[SlotMap, int], SlotMap]


def called_in_step(slot_map: SlotMap, slot: int) -> SlotMap:
    return slot_map.in_step(slot, True)


def called_out_of_step(slot_map: SlotMap, slot: int) -> SlotMap:
    return slot_map.in_step(slot, False)


def returned_for_another_try(slot_map: SlotMap, slot: int) -> SlotMap:
    return slot_map.returned(slot, again=True)
