"""Tells new failures from repeated ones, so that a retried step logs its reason once."""

import time
from collections.abc import Callable

AGAIN_S = 60.0  # the same failure counts as new after this long without one


class Failures:
    """The last failure of each retried step, by name; the names are few and fixed."""

    def __init__(self, mono: Callable[[], float] = time.monotonic) -> None:
        self._mono = mono
        self._last: dict[str, tuple[str, float]] = {}

    def is_new(self, name: str, error: BaseException) -> bool:
        """Whether `name` failed for another reason than last time, or not within `AGAIN_S`."""
        reason, mono = f"{type(error).__name__}: {error}", self._mono()
        told, at = self._last.get(name, ("", 0.0))
        self._last[name] = (reason, mono)
        return reason != told or mono - at > AGAIN_S
