"""Both ends of an HTTP/2 connection in memory: the core under test, and whoever speaks to it."""

import struct
from collections.abc import Mapping, Sequence
from typing import cast

from waystation.net.connection import BLOCKED, OPEN, TOUCHED
from waystation.net.http2 import frames
from waystation.net.http2.call import Call
from waystation.net.http2.connection import Connection
from waystation.net.http2.hpack import literal
from waystation.net.http2.limits import Limits
from waystation.net.http2.port import Gone, GrpcStatus, Stream, StreamHandler
from waystation.net.loop import NetLoop, Port
from waystation.presence.transport.rpc import RPC_PATH

REQUEST = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", RPC_PATH.encode()),
    (b":authority", b"localhost"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)


class Witness:
    """A broker that notes what it is told; `on_message` may answer."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.messages: list[bytes] = []
        self.half_closes = 0
        self.ends: list[Gone] = []
        self.unblocks = 0
        self.echo = False
        self.fail = False
        self.finish_at_once: GrpcStatus | None = None
        self.pause_after: int | None = None

    def opened(self, stream: Stream) -> None:
        self.streams.append(stream)
        if self.finish_at_once is not None:
            stream.finish(self.finish_at_once, "refused")

    def message(self, stream: Stream, data: bytes) -> None:
        if self.fail:
            raise LookupError("a mistake of the broker's")
        self.messages.append(data)
        if self.echo:
            stream.send(data)
        if self.pause_after is not None and len(self.messages) >= self.pause_after:
            stream.pause_reading()

    def half_closed(self, stream: Stream) -> None:
        self.half_closes += 1

    def closed(self, stream: Stream, why: Gone) -> None:
        self.ends.append(why)

    def unblocked(self, stream: Stream) -> None:
        self.unblocks += 1


class Frame:
    def __init__(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        self.kind = kind
        self.flags = flags
        self.stream_id = stream_id
        self.payload = payload

    @property
    def code(self) -> int:
        """Of RST_STREAM and GOAWAY."""
        return struct.unpack(">I", self.payload[-4:] if self.kind == 3 else self.payload[4:8])[0]

    @property
    def last_id(self) -> int:
        return struct.unpack(">I", self.payload[:4])[0]

    def __repr__(self) -> str:
        return f"Frame({self.kind}, {self.flags:#x}, {self.stream_id}, {self.payload!r})"


def split(data: bytes) -> list[Frame]:
    found: list[Frame] = []
    at = 0
    while at < len(data):
        head, flags, stream_id = frames.HEAD.unpack_from(data, at)
        kind = head & 0xFF
        end = at + 9 + (head >> 8)
        found.append(Frame(kind, flags, stream_id, data[at + 9 : end]))
        at = end
    return found


def block(fields: Sequence[tuple[bytes, bytes]] = REQUEST) -> bytes:
    return b"".join(literal(name, value) for name, value in fields)


def changed(**fields: bytes | None) -> list[tuple[bytes, bytes]]:
    """The usual request, fields replaced or left out; `_` is `-`, a leading one is `:`."""
    renamed = {
        (":" + name[1:] if name.startswith("_") else name).replace("_", "-").encode(): value
        for name, value in fields.items()
    }
    kept = [
        (name, value if (new := renamed.get(name, value)) is None else new)
        for name, value in REQUEST
        if renamed.get(name, value) is not None
    ]
    names = {name for name, _ in kept}
    return kept + [(n, v) for n, v in renamed.items() if v is not None and n not in names]


def headers(
    stream_id: int = 1, fields: Sequence[tuple[bytes, bytes]] = REQUEST, flags: int = 0
) -> bytes:
    return frames.frame(frames.HEADERS, frames.END_HEADERS | flags, stream_id, block(fields))


def message(data: bytes, flag: int = 0) -> bytes:
    return bytes((flag,)) + len(data).to_bytes(4, "big") + data


def data(payload: bytes, stream_id: int = 1, flags: int = 0) -> bytes:
    return frames.frame(frames.DATA, flags, stream_id, payload)


class StillLoop:
    """The loop of all sockets, standing still: connections fill their output, nothing leaves."""

    def __init__(self) -> None:
        self.touches = 0

    def touched(self, connection: Connection) -> None:
        self.touches += 1

    def ending(self, connection: Connection) -> None:
        connection.touch()

    def write(self, connection: Connection) -> None:
        """The kernel takes nothing."""
        connection.flags |= BLOCKED


class Peer:
    """A client that may say anything, and the server of its connection."""

    def __init__(self, *, greet: bool = True, **limits: float) -> None:
        self.broker = Witness()
        self.failures: list[Exception] = []
        self.now = 1000.0
        self.limits = Limits(**limits)  # type: ignore[arg-type]
        self.net = StillLoop()
        self.port = Port(
            cast("NetLoop", self.net),
            send_high_bytes=self.limits.blocked_bytes_max,
            send_bytes_max=self.limits.blocked_bytes_max,
        )
        self.routes: Mapping[bytes, StreamHandler] = {RPC_PATH.encode(): self.broker}
        self.patient = False  # calls end when the test says so
        self.ending: list[Call] = []
        self.connection = Connection(self)
        self.connection.flags = OPEN
        if greet:
            self.say(frames.PREFACE + frames.settings({}) + frames.SETTINGS_ACK)
            self.hear()

    # what a connection needs of its server

    def mono(self) -> float:
        return self.now

    def end_soon(self, call: Call) -> None:
        if self.patient:
            self.ending.append(call)
        else:
            call.release()

    def left(self, connection: Connection) -> None: ...

    def failed(self, exc: Exception) -> None:
        self.failures.append(exc)

    # what the peer does

    @property
    def gone(self) -> bool:
        """Whether the server ends the connection."""
        return not self.connection.is_open

    def say(self, *parts: bytes) -> None:
        if not self.gone:
            self.connection.received(b"".join(parts))

    def hear(self) -> list[Frame]:
        return split(self.take())

    def take(self) -> bytes:
        """What the server has sent."""
        connection = self.connection
        out = b"".join(connection.out or ())
        connection.out, connection.out_bytes = None, 0
        connection.flags &= ~TOUCHED
        return out

    def read_on(self) -> list[Frame]:
        """After the kernel has taken nothing for a while."""
        heard = self.hear()
        self.connection.flags &= ~BLOCKED
        self.connection.drained()
        return heard

    def wait(self, seconds: float) -> float | None:
        self.now += seconds
        return self.connection.wake(self.now)

    def goodbye(self) -> Frame:
        """The GOAWAY that ended the connection; its calls hear of the end."""
        assert self.gone, "the connection goes on"
        last = self.hear()[-1]
        assert last.kind == frames.GOAWAY
        self.connection.closed()
        return last
