"""One client's socket: what is true of it, and how others make it do something."""

from typing import Protocol

from waystation.queue.server.carrier import Carried
from waystation.queue.server.client import Client

# What is true of a connection, in one small integer.
SHAKING, HELLO, OPEN, FINISHING, LINGERING, DEAD = 1, 2, 4, 8, 16, 32
PAUSED, BLOCKED, TOUCHED, DOOMED = 64, 128, 256, 512


class Shell(Protocol):
    """What a connection asks of the server that holds it."""

    def touched(self, connection: "Connection") -> None: ...

    def watch(self, connection: "Connection") -> None:
        """Its flags say something new about what to watch for."""
        ...

    def look_again(self, connection: "Connection") -> None:
        """There is input of which no descriptor tells."""
        ...


class Connection:
    """One client's socket; `Line` to the other parts."""

    __slots__ = ("block", "carrier", "client", "fd", "flags", "origin", "server")

    def __init__(self, server: Shell, carrier: Carried, origin: str) -> None:
        self.server = server
        self.carrier = carrier
        self.fd = carrier.fd
        self.origin = origin
        self.flags = SHAKING
        self.client: Client | None = None
        self.block: bytes | None = None  # what the socket has not taken yet

    def touch(self) -> None:
        if not self.flags & (TOUCHED | DEAD):
            self.flags |= TOUCHED
            self.server.touched(self)

    def pause(self) -> None:
        if not self.flags & PAUSED:
            self.flags |= PAUSED
            self.server.watch(self)

    def resume(self) -> None:
        if self.flags & PAUSED:
            self.flags &= ~PAUSED
            self.server.watch(self)
            if not self.flags & DEAD and self.carrier.holds_more:
                self.server.look_again(self)

    def finish(self) -> None:
        self.flags |= FINISHING
        self.touch()

    def abort(self) -> None:
        self.flags |= DOOMED
        self.touch()
