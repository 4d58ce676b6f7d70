"""The last ids that a client gave its messages, so that a repeated one has no further effect.

A dict answers. Once it is full, a ring beside it knows which id is the oldest: asking the dict for
its first key costs microseconds once keys have been deleted in front of it, and every message
passes here.
"""

from collections.abc import Iterable

import msgspec


class RecentIds(msgspec.Struct, eq=False):
    """A struct, because every join makes one: that takes a quarter of what an `__init__` does."""

    _ids_max: int
    known: dict[int, None] = {}  # in the order in which they came; to be read only
    _ring: list[int] | None = None  # until the first is to be forgotten
    _at: int = 0  # where the oldest is in it

    __repr__ = object.__repr__  # ids do not reach a log

    def __len__(self) -> int:
        return len(self.known)

    def __contains__(self, message_id: int) -> bool:
        return message_id in self.known

    def add(self, message_id: int) -> bool:
        """Whether it is new; at `ids_max` the oldest is forgotten for it."""
        ids = self.known
        if message_id in ids:
            return False
        ring = self._ring
        if ring is None:
            if len(ids) < self._ids_max:
                ids[message_id] = None
                return True
            ring = self._ring = list(ids)
        ids[message_id] = None
        at = self._at
        ids.pop(ring[at], None)
        ring[at] = message_id
        self._at = at + 1 if at + 1 < len(ring) else 0
        return True

    def forget(self, message_id: int) -> None:
        if message_id in self.known:
            del self.known[message_id]
            if self._ring is not None:
                self._ring[self._ring.index(message_id)] = 0  # no message has that id

    def extend(self, ids: Iterable[int]) -> None:
        for one in ids:
            self.add(one)

    def oldest_first(self) -> list[int]:
        return list(self.known)
