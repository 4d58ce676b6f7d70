"""Where ids lead that do not begin with the slot of their queue: what an edge remembers of it.

Rule 1: the home of an id never changes, so what is known stays right however old it is. An entry
        for a queue that is gone only leads to the server whose refusal is the right answer.
Rule 2: at most `entries_max`; the one that was used least recently goes first.
"""

from collections import OrderedDict

from waystation.queue.model import RefKind, Slot, slot_of


class RefCache:
    __slots__ = ("_entries_max", "_homes")

    def __init__(self, entries_max: int = 1_000_000) -> None:
        assert entries_max >= 1
        self._entries_max = entries_max
        self._homes: OrderedDict[tuple[RefKind, bytes], Slot] = OrderedDict()

    def home(self, kind: RefKind | None, entity_id: bytes) -> Slot:
        """The slot to ask: the known home, or the one that the id itself begins with."""
        if kind is not None:
            key = (kind, entity_id)
            known = self._homes.get(key)
            if known is not None:
                self._homes.move_to_end(key)
                return known
        # Too short to be an id of anybody's: any server will refuse it as it should be refused.
        return slot_of(entity_id) if len(entity_id) >= 2 else Slot(0)

    def learn(self, kind: RefKind, entity_id: bytes, home: Slot) -> None:
        key = (kind, entity_id)
        self._homes[key] = home
        self._homes.move_to_end(key)
        if len(self._homes) > self._entries_max:
            self._homes.popitem(last=False)

    def forget(self, kind: RefKind, entity_id: bytes) -> bool:
        return self._homes.pop((kind, entity_id), None) is not None

    def __len__(self) -> int:
        return len(self._homes)
