"""What a storage server would have changed in the map about one slot.

Each takes a map and gives the next one; a proposal is made of all that are wished for.
"""

from collections.abc import Callable

from .slot_map import SlotMap

Wish = Callable[[SlotMap, int], SlotMap]


def called_in_step(slot_map: SlotMap, slot: int) -> SlotMap:
    return slot_map.in_step(slot, True)


def called_out_of_step(slot_map: SlotMap, slot: int) -> SlotMap:
    return slot_map.in_step(slot, False)


def returned_for_another_try(slot_map: SlotMap, slot: int) -> SlotMap:
    return slot_map.returned(slot, again=True)
