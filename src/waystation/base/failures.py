"""Which failures are new: what is tried again and again logs its reason once, not per attempt."""

import time
from collections.abc import Callable

AGAIN_S = 60.0  # the same failure counts as new after this long without one


class Failures:
    """The last failure of each thing that is tried, by name; the names are few and fixed."""

    def __init__(self, mono: Callable[[], float] = time.monotonic) -> None:
        self._mono = mono
        self._last: dict[str, tuple[str, float]] = {}

    def is_new(self, name: str, error: BaseException) -> bool:
        """Whether `name` has not just failed for the same reason; remembers it."""
        reason, mono = f"{type(error).__name__}: {error}", self._mono()
        told, at = self._last.get(name, ("", 0.0))
        self._last[name] = (reason, mono)
        return reason != told or mono - at > AGAIN_S
