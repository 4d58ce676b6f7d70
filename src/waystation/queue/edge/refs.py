"""Cache of references: where an id leads whose queue is in another slot.

Rule 1: the home of an id never changes, so an entry stays right. An entry of a deleted queue leads
        to the server whose refusal is the right answer.
Rule 2: at most `entries_max`; the least recently used one is removed first.
Rule 3: that an id has no reference is cached briefly, because it may get one through another edge.
"""

from collections import OrderedDict
from typing import Final

from waystation.queue.model import RefKind, Slot, slot_of

ABSENT_S: Final = 5.0
ABSENT_MAX: Final = 100_000

_Key = tuple[RefKind, bytes]


class RefCache:
    __slots__ = ("_absent", "_entries_max", "_homes", "hits", "misses")

    def __init__(self, entries_max: int = 1_000_000) -> None:
        assert entries_max >= 1
        self._entries_max = entries_max
        self._homes: OrderedDict[_Key, Slot] = OrderedDict()
        self._absent: OrderedDict[_Key, float] = OrderedDict()  # until when, soonest first
        self.hits = 0  # since the start
        self.misses = 0

    def get(self, kind: RefKind, entity_id: bytes) -> Slot | None:
        key = (kind, entity_id)
        known = self._homes.get(key)
        if known is not None:
            self._homes.move_to_end(key)
        return known

    def home(self, kind: RefKind | None, entity_id: bytes) -> Slot:
        """The slot to ask: the cached home, or the one that the id begins with."""
        if kind is not None:
            known = self.get(kind, entity_id)
            if known is not None:
                self.hits += 1
                return known
            self.misses += 1
        # Too short for an id: any server refuses it correctly.
        return slot_of(entity_id) if len(entity_id) >= 2 else Slot(0)

    def learn(self, kind: RefKind, entity_id: bytes, home: Slot) -> None:
        key = (kind, entity_id)
        self._absent.pop(key, None)
        self._homes[key] = home
        self._homes.move_to_end(key)
        if len(self._homes) > self._entries_max:
            self._homes.popitem(last=False)

    def forget(self, kind: RefKind, entity_id: bytes) -> bool:
        return self._homes.pop((kind, entity_id), None) is not None

    def learn_absent(self, kind: RefKind, entity_id: bytes, mono: float) -> None:
        key = (kind, entity_id)
        self._absent[key] = mono + ABSENT_S
        self._absent.move_to_end(key)
        if len(self._absent) > ABSENT_MAX:
            self._absent.popitem(last=False)

    def is_absent(self, kind: RefKind, entity_id: bytes, mono: float) -> bool:
        until = self._absent.get((kind, entity_id))
        return until is not None and mono < until

    def __len__(self) -> int:
        return len(self._homes)
