"""Base class of events, and the port through which services emit them."""

from collections.abc import Callable
from typing import ClassVar, Protocol

import msgspec


class Event(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """Base class of all events; `k` is the code."""

    k: ClassVar[int] = -1


class Attrs(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """Base class of all `attrs`; encoded as a JSON object in one text column."""


class EventSink(Protocol):
    """Port for a service's events. Never waits, never raises."""

    def emit(self, event: Event, w: int = 1) -> None:
        """`w` is the number of events that this one represents, if its kind is sampled."""
        ...

    def defer(self, make: Callable[..., Event], *args: object) -> None:
        """Emit the event that `make(*args)` returns, with the time of this call. `make` is called
        later, because hashes and texts cost a fraction when many are made in a row."""
        ...


class NoEvents:
    """Discards all events."""

    def emit(self, event: Event, w: int = 1) -> None:
        pass

    def defer(self, make: Callable[..., Event], *args: object) -> None:
        pass


class RecordedEvents:
    """For tests: records emitted events."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.weights: list[int] = []

    def emit(self, event: Event, w: int = 1) -> None:
        self.events.append(event)
        self.weights.append(w)

    def defer(self, make: Callable[..., Event], *args: object) -> None:
        self.emit(make(*args))


def event_types() -> dict[int, type[Event]]:
    """All defined event types by code."""
    return {cls.k: cls for cls in _leaves(Event)}


def _leaves(cls: type[Event]) -> list[type[Event]]:
    return [cls] * (cls.k >= 0) + [
        leaf for child in cls.__subclasses__() for leaf in _leaves(child)
    ]
