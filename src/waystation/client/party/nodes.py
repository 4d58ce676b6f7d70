"""Known nodes: the order of attempts, and nodes to avoid after a failure."""

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
        """Endpoints named by a node are tried first, even if they failed before."""
        for endpoint in reversed(endpoints):
            if endpoint in self._endpoints:
                self._endpoints.remove(endpoint)
            self._endpoints.insert(0, endpoint)
            self._avoided.pop(endpoint, None)
            self._turn = 0

    def avoid(self, endpoint: str, now: float) -> None:
        self._avoided[endpoint] = now + self._avoid_s

    def next(self, now: float) -> str:
        """The next endpoint in turn that is not avoided; the next of all if every one is."""
        count = len(self._endpoints)
        order = [self._endpoints[(self._turn + step) % count] for step in range(count)]
        self._turn += 1
        return next((one for one in order if self._avoided.get(one, 0.0) <= now), order[0])

    def another(self, than: str, now: float) -> str | None:
        """An endpoint for a standby: not `than`, and not avoided."""
        for endpoint in self._endpoints:
            if endpoint != than and self._avoided.get(endpoint, 0.0) <= now:
                return endpoint
        return None
