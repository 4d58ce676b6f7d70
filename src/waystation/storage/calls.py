"""Limits and pauses of calls to a server store, shared by the sessions of several backends.

Each session maps its driver's exceptions and decides which calls may be repeated.
"""

import math

from waystation.base.errors import BusyError

PAUSE_FIRST_S = 0.1
PAUSE_LAST_S = 2.0


def too_many_waiting(queue_max: int, server: str) -> BusyError:
    return BusyError(f"store.queue_max {queue_max} operations wait for {server}")


class ReconnectPause:
    """Makes calls fail at once until `until_mono` after a failed attempt to connect. The first
    later call connects again. The pause doubles from PAUSE_FIRST_S to PAUSE_LAST_S."""

    def __init__(self) -> None:
        self.until_mono = -math.inf
        self.why = ""
        self._pause_s = 0.0

    def failed(self, why: str, now_mono: float) -> None:
        self.why = why
        self._pause_s = min(max(2 * self._pause_s, PAUSE_FIRST_S), PAUSE_LAST_S)
        self.until_mono = now_mono + self._pause_s

    def connected(self) -> None:
        self._pause_s = 0.0
