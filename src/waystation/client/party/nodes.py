"""Which nodes we know, in which order we ask them, and which ones we leave alone for a while."""

from collections.abc import Iterable, Sequence


class Nodes:
    def __init__(self, endpoints: Sequence[str], *, avoid_s: float) -> None:
        assert endpoints
        self._endpoints = list(endpoints)
        self._avoid_s = avoid_s
        self._avoided: dict[str, float] = {}  # endpoint -> until when
        self._turn = 0

    def add(self, endpoints: Iterable[str]) -> None:
        self._endpoints += [one for one in endpoints if one not in self._endpoints]

    def recommend(self, endpoints: Sequence[str]) -> None:
        """What a node names itself is tried first, and at once."""
        for endpoint in reversed(endpoints):
            if endpoint in self._endpoints:
                self._endpoints.remove(endpoint)
            self._endpoints.insert(0, endpoint)
            self._avoided.pop(endpoint, None)
            self._turn = 0

    def avoid(self, endpoint: str, now: float) -> None:
        self._avoided[endpoint] = now + self._avoid_s

    def next(self, now: float) -> str:
        """In turn, those first that did not just fail; there is always one."""
        count = len(self._endpoints)
        order = [self._endpoints[(self._turn + step) % count] for step in range(count)]
        self._turn += 1
        return next((one for one in order if self._avoided.get(one, 0.0) <= now), order[0])

    def another(self, than: str, now: float) -> str | None:
        """For a standby: not there, and nowhere that failed lately."""
        for endpoint in self._endpoints:
            if endpoint != than and self._avoided.get(endpoint, 0.0) <= now:
                return endpoint
        return None
