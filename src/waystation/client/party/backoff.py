"""Waits between attempts: random, below a limit that doubles with each failure."""

import random


class Backoff:
    def __init__(self, min_s: float, max_s: float, chance: random.Random) -> None:
        self._min_s = min_s
        self._max_s = max_s
        self._chance = chance
        self._failures = 0

    def next_s(self) -> float:
        most = min(self._max_s, self._min_s * 2.0 ** min(self._failures, 30))
        self._failures += 1
        return self._chance.uniform(0, most)

    def reset(self) -> None:
        self._failures = 0
