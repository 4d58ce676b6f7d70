"""The observer of an edge: counts for metrics, without any id of a client."""

from typing import Protocol

from waystation.queue.wire.commands import Command


class EdgeObserver(Protocol):
    def took(self, command: Command, size_bytes: int) -> None:
        """A client's command, to be passed on."""
        ...

    def refused(self, response: bytes) -> None:
        """A server answered it with an error."""
        ...

    def unserved(self, *, disconnected: bool) -> None:
        """No server served it in time."""
        ...

    def waited(self, held_s: float) -> None:
        """It was served, after a while in which no server served its slot."""
        ...


class NoEdgeObserver:
    def took(self, command: Command, size_bytes: int) -> None: ...

    def refused(self, response: bytes) -> None: ...

    def unserved(self, *, disconnected: bool) -> None: ...

    def waited(self, held_s: float) -> None: ...
