"""Rate limits, bounded caches and counters with a maximum.

Nothing here waits: each limit answers at once whether there is room, and the caller turns a refusal
into the documented answer of its wire. Monotonic time is passed with each call.

Entries in order of use are kept in an `OrderedDict`, which finds its oldest entry at once. A plain
dict skips the slots of removed entries (25 us in a cache of 16,384).
"""

from collections import OrderedDict
from collections.abc import Hashable
from math import inf
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TokenBucket:
    """`rate` tokens a second, at most `burst` of them saved up.

    Kept as one number, the moment at which the bucket will be full again (the "theoretical
    arrival time" of GCRA, less one interval); a bucket that is full remembers nothing.
    """

    __slots__ = ("_full_at", "_interval_s", "_slack_s")

    def __init__(self, rate: float, burst: float) -> None:
        assert rate > 0
        assert burst >= 1
        self._interval_s = 1.0 / rate
        self._slack_s = (burst - 1.0) / rate
        self._full_at = -inf

    def take(self, mono: float) -> float:
        """0.0 if a token was taken, else the seconds until one is there (and none is taken)."""
        full_at = self._full_at
        if full_at < mono:  # noqa: PLR1730 for every message
            full_at = mono
        wait_s = full_at - mono - self._slack_s
        if wait_s > 1e-9:  # rounding must not make a caller who waited exactly long enough wait on
            return wait_s
        self._full_at = full_at + self._interval_s
        return 0.0


class BucketTable(Generic[K]):
    """A token bucket for each key, for at most `keys_max` keys.

    A bucket that has become full again says nothing, so it is forgotten as soon as it is the
    longest unused. When all are in use and the table is full, the longest unused goes early
    (counted in `forgotten_early`): memory is bounded, and a crowd that large is itself the limit.
    """

    __slots__ = ("_full_at", "_interval_s", "_keys_max", "_slack_s", "forgotten_early")

    def __init__(self, rate: float, burst: float, *, keys_max: int) -> None:
        assert rate > 0
        assert burst >= 1
        assert keys_max >= 1
        self._interval_s = 1.0 / rate
        self._slack_s = (burst - 1.0) / rate
        self._keys_max = keys_max
        self._full_at: OrderedDict[K, float] = OrderedDict()  # in order of last use
        self.forgotten_early = 0

    def take(self, key: K, mono: float) -> float:
        """As `TokenBucket.take`, for this key's bucket."""
        full_at = self._full_at.pop(key, None)
        if full_at is None:
            self._make_room(mono)
            full_at = mono
        elif full_at < mono:
            full_at = mono
        wait_s = full_at - mono - self._slack_s
        if wait_s > 1e-9:
            self._full_at[key] = full_at
            return wait_s
        self._full_at[key] = full_at + self._interval_s
        return 0.0

    def _make_room(self, mono: float) -> None:
        # Two leave for one that comes, so the table shrinks to what is in use.
        table = self._full_at
        for _ in (1, 2):
            if not table:
                return
            oldest = next(iter(table))
            if table[oldest] > mono:
                if len(table) < self._keys_max:
                    return
                self.forgotten_early += 1
            del table[oldest]

    def __len__(self) -> int:
        return len(self._full_at)


class BoundedLru(Generic[K, V]):
    """A cache of at most `entries_max` values; the longest unused is forgotten first.

    An entry put with a deadline is not given out at or after it.
    """

    __slots__ = ("_entries", "_entries_max")

    def __init__(self, entries_max: int) -> None:
        assert entries_max >= 1
        self._entries_max = entries_max
        self._entries: OrderedDict[K, tuple[V, float]] = OrderedDict()  # in order of last use

    def get(self, key: K, mono: float = -inf) -> V | None:
        entries = self._entries
        entry = entries.get(key)
        if entry is None:
            return None
        if entry[1] <= mono:
            del entries[key]
            return None
        entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V, deadline: float = inf) -> None:
        entries = self._entries
        if key in entries:
            entries.move_to_end(key)
        entries[key] = (value, deadline)
        if len(entries) > self._entries_max:
            entries.popitem(last=False)

    def pop(self, key: K) -> V | None:
        entry = self._entries.pop(key, None)
        return None if entry is None else entry[0]

    def clear(self) -> None:
        self._entries.clear()

    def __contains__(self, key: K) -> bool:
        """Whether an entry is kept, its deadline aside."""
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)


class CountLimit:
    """Limits a count: connections, requests, bytes in flight.

    `enter` never waits: it refuses, and counts refusals.
    """

    __slots__ = ("limit", "name", "refused", "used")

    def __init__(self, name: str, limit: int) -> None:
        assert limit >= 1
        self.name = name  # the setting's name, for the log line and the metric
        self.limit = limit
        self.used = 0
        self.refused = 0

    def enter(self, amount: int = 1) -> bool:
        if self.used + amount > self.limit:
            self.refused += 1
            return False
        self.used += amount
        return True

    def leave(self, amount: int = 1) -> None:
        self.used -= amount
        assert self.used >= 0, f"{self.name}: more left than entered"
