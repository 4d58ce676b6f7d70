"""Orders the answers to a client like its commands, as a single server would.

Rule 1: an answer waits until all earlier commands are answered.
Rule 2: an event waits for answers that are ready and for answers to subscriptions that the client
        sent before the event arrived. It waits for nothing else, so a message may come before the
        `OK` to its sender on the same connection.
Rule 3: a slow command delays no other: the caller calls `pass_over` for commands that wait for
        their slot or longer than `ORDER_WAIT_S`. Their answers are sent when they arrive.
"""

from collections import deque
from typing import Final

READY_MAX: Final = 512  # waiting answers and events; above it all open commands are passed over


class _Place:
    __slots__ = ("is_event", "item", "passed", "subscribes")

    def __init__(self, item: bytes | None, *, is_event: bool, subscribes: bool = False) -> None:
        self.item = item
        self.is_event = is_event
        self.subscribes = subscribes
        self.passed = False


class AnswerOrder:
    __slots__ = ("_places", "_ready", "_row", "_subscribing")

    def __init__(self) -> None:
        self._row: deque[_Place] = deque()
        self._places: dict[int, _Place] = {}  # of unanswered commands
        self._subscribing = 0  # unanswered subscription commands
        self._ready = 0  # answers and events that wait for earlier answers

    def expect(self, number: int, *, subscribes: bool) -> None:
        self._places[number] = place = _Place(None, is_event=False, subscribes=subscribes)
        self._row.append(place)
        self._subscribing += subscribes

    def answered(self, number: int, item: bytes) -> list[bytes]:
        """Returns what may be sent now."""
        place = self._places.pop(number, None)
        if place is None:
            return [item]  # its command was passed over
        self._subscribing -= place.subscribes
        place.item = item
        self._ready += 1
        return self._flush()

    def at_once(self, item: bytes) -> list[bytes]:
        """Adds the answer to a command that the edge answered itself."""
        if not self._row:
            return [item]
        self._row.append(_Place(item, is_event=False))
        self._ready += 1
        return self._flush()

    def event(self, item: bytes) -> list[bytes]:
        if not self._ready and not self._subscribing:
            return [item]
        self._row.append(_Place(item, is_event=True))
        self._ready += 1
        if self._ready > READY_MAX:
            for place in self._places.values():
                place.passed = True
            self._places.clear()
            self._subscribing = 0
        return self._flush()

    def pass_over(self, number: int) -> list[bytes]:
        place = self._places.pop(number, None)
        if place is None:
            return []
        self._subscribing -= place.subscribes
        place.passed = True
        return self._flush()

    def _flush(self) -> list[bytes]:
        out: list[bytes] = []
        row = self._row
        while row:
            place = row[0]
            if place.item is not None:
                out.append(place.item)
            elif not place.passed:
                break
            row.popleft()
        self._ready -= len(out)
        if self._ready and not self._subscribing:
            out.extend(self._events())
        return out

    def _events(self) -> list[bytes]:
        """Takes out the events that have only unanswered commands before them."""
        out: list[bytes] = []
        kept: deque[_Place] = deque()
        blocked = False
        for place in self._row:
            if place.is_event and not blocked:
                assert place.item is not None
                out.append(place.item)
                continue
            blocked = blocked or place.item is not None
            kept.append(place)
        if out:
            self._row = kept
            self._ready -= len(out)
        return out
