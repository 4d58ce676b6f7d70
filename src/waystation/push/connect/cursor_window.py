"""Delivery window that also maintains Autopush's read cursor of notifications without topic.

Autopush's nodes do not delete acked rows: they move a cursor past them and read from there. Our
nodes delete each row and need no cursor. But an Autopush node on the same store, to which our user
agent connects next, starts at the cursor; if it is far behind, that node reads in vain.

Rule 1: the cursor moves when a pass over storage is over: all its rows are acked by then.
Rule 2: it moves to the last key that was read, never back.
"""

from collections.abc import Sequence

from waystation.push.connect import effects as do
from waystation.push.model import Notification
from waystation.push.token import key_ms

from .effects import Effect
from .window import DeliveryWindow


class CursorWindow(DeliveryWindow):
    """A `DeliveryWindow` that tells how far storage has been read."""

    __slots__ = ("_last_key",)

    def __init__(self, *, unacked_max: int) -> None:
        super().__init__(unacked_max=unacked_max)
        self._last_key = ""

    def read(self, rows: Sequence[Notification]) -> list[Effect]:
        effects = super().read(rows)
        if rows:
            # Each read starts from the beginning, so its last key may be lower than an earlier one.
            self._last_key = max(self._last_key, rows[-1].sort_key)
            return effects
        key, self._last_key = self._last_key, ""
        return [*effects, do.AdvanceCursor(key_ms(key))] if key.startswith("02:") else effects
