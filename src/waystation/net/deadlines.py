"""Deadlines of one duration for many items, of which nearly all finish in time.

With one duration, arrival order is deadline order. Items that arrive in one tick share an entry:
8 bytes per waiting item, and nothing to cancel. The caller of `expired` checks whether an item
still needs its deadline. An item never expires early, and at most one tick late.
"""

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Deadlines(Generic[T]):
    __slots__ = ("_entries", "_tick_s", "_timeout_s")

    def __init__(self, timeout_s: float, tick_s: float) -> None:
        assert timeout_s > 0
        assert tick_s > 0
        self._timeout_s = timeout_s
        self._tick_s = tick_s
        self._entries: deque[tuple[float, list[T]]] = deque()  # start of the entry, its items

    def __bool__(self) -> bool:
        return bool(self._entries)

    def add(self, mono: float, item: T) -> None:
        entries = self._entries
        if entries and mono < entries[-1][0] + self._tick_s:
            entries[-1][1].append(item)
        else:
            entries.append((mono, [item]))

    def expired(self, mono: float, limit: int) -> list[T]:
        """At most `limit` expired items; the next call returns further ones."""
        begun_by = mono - self._timeout_s - self._tick_s
        taken: list[T] = []
        while self._entries and self._entries[0][0] <= begun_by and len(taken) < limit:
            items = self._entries[0][1]
            room = limit - len(taken)
            taken += items[:room]
            if len(items) > room:
                del items[:room]
            else:
                self._entries.popleft()
        return taken
