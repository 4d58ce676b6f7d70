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
from abc import ABC, abstractmethod
from collections.abc import Sequence

from waystation.push.connect import effects as do
from waystation.push.connect.effects import Effect
from waystation.push.connect.simplepush import UpdateWindow
from waystation.push.connect.states import State
from waystation.push.connect.terms import Terms
from waystation.push.connect.window import DeliveryWindow
from waystation.push.model import UserAgent


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


class MonthSwitching(ABC):
    """The part of a session that moves its user agent to a new month."""

    __slots__ = ("_switch",)

    state: State
    connected_at_ms: int
    _switch: MonthSwitch | None
    _terms: Terms
    _window: DeliveryWindow | UpdateWindow

    @property
    @abstractmethod
    def busy(self) -> bool: ...

    @abstractmethod
    def _look(self) -> list[Effect]: ...

    @property
    def _draining(self) -> bool:
        return self._switch is not None and self._switch.stage is Stage.DRAINING

    @property
    def _moving(self) -> bool:
        return self._switch is not None and self._switch.stage is Stage.MOVING

    def _switch_of(self, record: UserAgent) -> MonthSwitch | None:
        limit = self._terms.settings.max_commands
        return MonthSwitch(held_max=limit) if record.behind else None

    def _read_through(self) -> list[Effect]:
        """Storage has nothing more of the old month."""
        assert self._switch is not None
        if self._window.unacked or self.busy:
            self._window.refuse()  # when all is quiet, storage is looked at again
            return []
        self._switch.move()
        return [do.SwitchMonth(self.connected_at_ms)]

    def switched(self, applied: bool) -> list[Effect]:
        """Not applied: another connection has the user agent now, and moves it."""
        switch, self._switch = self._switch, None
        if self.state is not State.IDENTIFIED or switch is None:
            return []
        self._window.check()
        return [do.TakeUp(switch.release()), *self._look()]

    def _switch_later(self) -> list[Effect]:
        assert self._switch is not None
        self._switch.postpone()
        later = do.SwitchLater(self._terms.switch_after_s())
        return [do.TakeUp(self._switch.release()), later, *self._look()]

    def switch_due(self) -> list[Effect]:
        if self.state is not State.IDENTIFIED or self._switch is None:
            return []
        self._switch.drain()
        self._window.check()
        return self._look()
