"""The last message ids of a session, so that a repeated message has no further effect.

A dict holds the ids. Once it is full, a ring beside it tells the oldest id: reading the first key
of a dict takes microseconds after keys in front of it were deleted.
"""

from collections.abc import Iterable

import msgspec


class RecentIds(msgspec.Struct, eq=False):
    """A struct: every join makes one, four times as fast as with an `__init__`."""

    _ids_max: int
    known: dict[int, None] = {}  # in the order of arrival; read only
    _ring: list[int] | None = None  # made when the first id is forgotten
    _at: int = 0  # index of the oldest id in the ring

    __repr__ = object.__repr__  # ids do not reach a log

    def __len__(self) -> int:
        return len(self.known)

    def __contains__(self, message_id: int) -> bool:
        return message_id in self.known

    def add(self, message_id: int) -> bool:
        """Adds an id, and forgets the oldest above `ids_max`; False if it is known."""
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
                self._ring[self._ring.index(message_id)] = 0  # no message has id 0

    def extend(self, ids: Iterable[int]) -> None:
        for one in ids:
            self.add(one)

    def oldest_first(self) -> list[int]:
        return list(self.known)
