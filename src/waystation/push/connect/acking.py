"""The short way of an ack, which is nearly all that user agents say.

Rule 1: it is taken only where it leads to the same as `Session.received`: no command is under way,
        nobody is being moved, and the text is an ack as user agents write it.
Rule 2: whatever else it is, nothing has been changed, and no clock has been asked.
"""

from abc import ABC, abstractmethod

from waystation.push.connect.effects import Effect
from waystation.push.connect.rotation import MonthSwitch
from waystation.push.connect.simplepush import UpdateWindow
from waystation.push.connect.states import IDENTIFIED, State
from waystation.push.connect.window import DeliveryWindow
from waystation.push.wire import client as wire


class Acking(ABC):
    """The part of a session that takes acks by the short way."""

    __slots__ = ()

    state: State
    _command: wire.Register | wire.Unregister | wire.Hello | None
    _switch: MonthSwitch | None
    _window: DeliveryWindow | UpdateWindow

    @abstractmethod
    def _look(self) -> list[Effect]: ...

    def acked(self, text: bytes) -> list[Effect] | None:
        """As `received`; None if it has to be asked."""
        if (
            self.state is not IDENTIFIED
            or self._command is not None
            or self._switch is not None
            or (updates := wire.decode_ack(text)) is None
        ):
            return None
        window = self._window
        effects = window.acked(updates)
        return effects if window.at_rest() else effects + self._look()
