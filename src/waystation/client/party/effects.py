"""Effects of a client session, performed by `member`."""

import msgspec

from waystation.presence.wire.party_presence_pb2 import ClientMessage

from .model import Event


class Open(msgspec.Struct, frozen=True):
    """Open a stream to `endpoint`; `received` and `ended` are called with its number."""

    stream: int
    endpoint: str


class Send(msgspec.Struct, frozen=True):
    stream: int
    message: ClientMessage


class Close(msgspec.Struct, frozen=True):
    stream: int


class Notify(msgspec.Struct, frozen=True):
    """Hand an event to the application."""

    event: Event


class FetchToken(msgspec.Struct, frozen=True):
    """Fetch a new JWT and call `renewed`."""


class FindNodes(msgspec.Struct, frozen=True):
    """Ask the node directory for nodes and call `nodes_found`."""


class Finish(msgspec.Struct, frozen=True):
    """The session is over: the client left (code 0) or the broker refused it."""

    code: int
    reason: str


Effect = Open | Send | Close | Notify | FetchToken | FindNodes | Finish
