"""Moves a user agent to the table of a new month, on a store that rotates monthly.

Rule 1: the switch happens after connecting, by the clock of the connection node, and only when
        all notifications of the old month are read and acked.
Rule 2: between hello and the end of the switch, commands that change subscriptions are held; they
        run afterwards in their order, and so write to the new month.
Rule 3: while the store moves the user agent (channel set, then pointer, then rows that arrived in
        the old table meanwhile), nothing is fetched. Then storage is checked once more, so that
        notifications stored during the switch are delivered.
Rule 4: if the store refuses (for example: throughput used up), the switch is retried after a
        random delay. Until then the user agent stays on the old month and no command is held.
Rule 5: a connection that breaks during the switch loses nothing: the next connect continues.
"""

import enum
from collections.abc import Sequence


class Stage(enum.Enum):
    DRAINING = "draining"  # its old month is read and acked
    MOVING = "moving"  # the store moves it
    POSTPONED = "postponed"  # the store refused; a retry is scheduled


class MonthSwitch:
    """State of one user agent's switch; exists only while a switch is needed."""

    __slots__ = ("_held", "_held_max", "stage")

    def __init__(self, *, held_max: int) -> None:
        assert held_max >= 1
        self.stage = Stage.DRAINING
        self._held_max = held_max
        self._held: list[bytes] = []

    def hold(self, text: bytes) -> bool:
        """Hold a command (rule 2). False: `held_max` commands are held already."""
        assert self.stage is Stage.DRAINING
        if len(self._held) >= self._held_max:
            return False
        self._held.append(text)
        return True

    def release(self) -> Sequence[bytes]:
        """The held commands, in their order."""
        held, self._held = self._held, []
        return held

    def move(self) -> None:
        assert self.stage is Stage.DRAINING
        self.stage = Stage.MOVING

    def postpone(self) -> None:
        assert self.stage is Stage.MOVING
        self.stage = Stage.POSTPONED

    def drain(self) -> None:
        assert self.stage is Stage.POSTPONED
        self.stage = Stage.DRAINING
