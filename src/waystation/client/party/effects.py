"""What a session of the client asks of its shell."""

import msgspec

from waystation.presence.wire.party_presence_pb2 import ClientMessage

from .model import Event


class Open(msgspec.Struct, frozen=True):
    """Begin a stream there; `received` and `ended` carry its number."""

    line: int
    endpoint: str


class Say(msgspec.Struct, frozen=True):
    line: int
    message: ClientMessage


class Close(msgspec.Struct, frozen=True):
    line: int


class Tell(msgspec.Struct, frozen=True):
    """For the application."""

    event: Event


class FetchToken(msgspec.Struct, frozen=True):
    """Get a new JWT and call `renewed`."""


class FindNodes(msgspec.Struct, frozen=True):
    """Ask the directory which nodes there are and call `nodes_found`."""


class Finish(msgspec.Struct, frozen=True):
    """It is over: by our own leave (code 0) or because the broker will not have us."""

    code: int
    reason: str


Effect = Open | Say | Close | Tell | FetchToken | FindNodes | Finish
