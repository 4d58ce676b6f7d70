"""What all events share, and where a service leaves them."""

from collections.abc import Callable
from typing import ClassVar, Protocol

import msgspec


class Event(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """What all events share; `k` is the code."""

    k: ClassVar[int] = -1


class Attrs(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """What all `attrs` share; written as a JSON object inside one text column."""


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


class NoEvents:
    """For those who do not want any."""

    def emit(self, event: Event, w: int = 1) -> None:
        pass

    def defer(self, make: Callable[..., Event], *args: object) -> None:
        pass


class RecordedEvents:
    """For tests: keeps what was emitted."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.weights: list[int] = []

    def emit(self, event: Event, w: int = 1) -> None:
        self.events.append(event)
        self.weights.append(w)

    def defer(self, make: Callable[..., Event], *args: object) -> None:
        self.emit(make(*args))


def event_types() -> dict[int, type[Event]]:
    """Every kind of event that has been defined, by its code."""
    return {cls.k: cls for cls in _leaves(Event)}


def _leaves(cls: type[Event]) -> list[type[Event]]:
    return [cls] * (cls.k >= 0) + [
        leaf for child in cls.__subclasses__() for leaf in _leaves(child)
    ]
