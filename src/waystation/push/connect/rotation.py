"""When a user agent is moved to the table of a new month, on a store that rotates.

Rule 1: it is moved on connect, by the clock of the node that it is connected to, and only when
        everything of its old month has been read and acked.
Rule 2: from its hello until it has been moved, whatever changes its subscriptions waits: it is
        taken up afterwards, in its order, and so lands in the new month.
Rule 3: while the store moves it (channel set, then pointer, then what came to the old table
        meanwhile), nothing is fetched. After that storage is looked at once more: what was stored
        during the switch is delivered, wherever it was stored.
Rule 4: a store that cannot do it now, because its throughput is used up for example, is asked
        again after a while that chance decides. Until then the user agent stays on its old month,
        and nothing waits.
Rule 5: whoever is cut off anywhere in between loses nothing: the next connect goes on from there.
"""

import enum
from collections.abc import Sequence


class Stage(enum.Enum):
    DRAINING = "draining"  # its old month is read and acked
    MOVING = "moving"  # the store is at it
    POSTPONED = "postponed"  # the store was not able to


class MonthSwitch:
    """Where the switch of one user agent stands; there is one only while it is needed."""

    __slots__ = ("_held", "_held_max", "stage")

    def __init__(self, *, held_max: int) -> None:
        assert held_max >= 1
        self.stage = Stage.DRAINING
        self._held_max = held_max
        self._held: list[bytes] = []

    def hold(self, text: bytes) -> bool:
        """Rule 2. Not held: the user agent has sent more than can wait."""
        assert self.stage is Stage.DRAINING
        if len(self._held) >= self._held_max:
            return False
        self._held.append(text)
        return True

    def release(self) -> Sequence[bytes]:
        """What was held, in its order."""
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
