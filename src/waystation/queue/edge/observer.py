"""The observer of an edge: counts for metrics, without any id of a client."""

from typing import Protocol

from waystation.queue.wire.commands import Command


class EdgeObserver(Protocol):
    def took(self, command: Command, size_bytes: int) -> None:
        """A client's command was accepted for routing."""
        ...

    def refused(self, response: bytes) -> None:
        """A server answered with an error."""
        ...

    def unserved(self, *, disconnected: bool) -> None:
        """No server served a command in time."""
        ...

    def waited(self, held_s: float) -> None:
        """A command was sent after waiting for its slot."""
        ...


class NoEdgeObserver:
    def took(self, command: Command, size_bytes: int) -> None: ...

    def refused(self, response: bytes) -> None: ...

    def unserved(self, *, disconnected: bool) -> None: ...

    def waited(self, held_s: float) -> None: ...
