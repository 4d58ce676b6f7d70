"""What all events share, and where a service leaves them."""

from collections.abc import Callable
from typing import ClassVar, Protocol

import msgspec

from waystation.base.clock import Clock, ManualClock


class Event(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """What all events share; `k` is the code."""

    k: ClassVar[int] = -1


class Attrs(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """What all `attrs` share; written as a JSON object inside one text column."""


class Written(msgspec.Struct, frozen=True, eq=False):
    """A kind of event that every message has, so its line is written by hand: `line` gets how all
    lines of the log start, the time in microseconds, the sequence number, and a tuple of what was
    deferred."""

    k: int  # -1 if a line of it may be of any code
    line: Callable[..., bytes]


class EventSink(Protocol):
    """Where a service leaves its events. Never waits, never raises."""

    def emit(self, event: Event, w: int = 1) -> None:
        """`w` is how many events this one stands for, when its kind is sampled."""
        ...

    def defer(self, make: Callable[..., Event], *args: object) -> None:
        """The event that `make(*args)` returns, as of now; it is made when there is time for it.
        What happens to every message is told this way: hashes and texts cost a fraction when
        many are made in a row."""
        ...

    def write(self, kind: Written, what: tuple[object, ...]) -> None:
        """As `defer`, for an event whose line `kind.line(start, ts_us, seq, what)` writes."""
        ...


class NoEvents:
    """For those who do not want any."""

    def emit(self, event: Event, w: int = 1) -> None:
        pass

    def defer(self, make: Callable[..., Event], *args: object) -> None:
        pass

    def write(self, kind: Written, what: tuple[object, ...]) -> None:
        pass


class RecordedEvents:
    """For tests: keeps what was emitted."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or ManualClock()
        self.events: list[Event] = []
        self.weights: list[int] = []

    def emit(self, event: Event, w: int = 1) -> None:
        self.events.append(event)
        self.weights.append(w)

    def defer(self, make: Callable[..., Event], *args: object) -> None:
        self.emit(make(*args))

    def write(self, kind: Written, what: tuple[object, ...]) -> None:
        line = kind.line(b'{"ts":', self._clock.now_us(), len(self.events), what)
        columns = msgspec.json.decode(line)
        if "attrs" in columns:  # a text that holds a JSON object
            columns["attrs"] = msgspec.json.decode(columns["attrs"])
        self.emit(msgspec.convert(columns, event_types()[kind.k]))


def event_types() -> dict[int, type[Event]]:
    """Every kind of event that has been defined, by its code."""
    return {cls.k: cls for cls in _leaves(Event)}


def _leaves(cls: type[Event]) -> list[type[Event]]:
    return [cls] * (cls.k >= 0) + [
        leaf for child in cls.__subclasses__() for leaf in _leaves(child)
    ]
