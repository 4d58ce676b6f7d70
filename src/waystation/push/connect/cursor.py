"""How far a user agent has read what has no topic, for Autopush's nodes beside ours.

They do not delete what is acked: they move a cursor past it, and read from there. Ours delete each
row and need no cursor; but a node of Autopush that gets our user agent next begins at the cursor,
and what it finds far behind the present it reads in vain.

Rule 1: the cursor moves when a pass over storage is over: whatever it read has been acked by then.
Rule 2: it moves to the last key that was read, never back.
"""

from collections.abc import Sequence

from waystation.push.connect import effects as do
from waystation.push.connect.effects import Effect
from waystation.push.connect.window import DeliveryWindow
from waystation.push.model import Notification
from waystation.push.token import key_ms


class CursorWindow(DeliveryWindow):
    """A window that says how far storage has been read through."""

    __slots__ = ("_last_key",)

    def __init__(self, *, unacked_max: int) -> None:
        super().__init__(unacked_max=unacked_max)
        self._last_key = ""

    def read(self, rows: Sequence[Notification]) -> list[Effect]:
        effects = super().read(rows)
        if rows:
            # Each read begins anew, so the last row of a later one may be a late, lower one.
            self._last_key = max(self._last_key, rows[-1].sort_key)
            return effects
        key, self._last_key = self._last_key, ""
        return [*effects, do.AdvanceCursor(key_ms(key))] if key.startswith("02:") else effects
