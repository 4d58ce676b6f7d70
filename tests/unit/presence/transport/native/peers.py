"""Both ends of an HTTP/2 connection in memory: the core under test, and whoever speaks to it."""

import struct
from collections.abc import Sequence

from waystation.presence.transport.native import frames
from waystation.presence.transport.native.connection import Connection
from waystation.presence.transport.native.hpack import literal
from waystation.presence.transport.native.limits import Limits
from waystation.presence.transport.port import RPC_PATH, Gone, GrpcStatus, Stream

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
        high, low, kind, flags, stream_id = frames.HEAD.unpack_from(data, at)
        end = at + 9 + (high << 8 | low)
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


class Peer:
    """A client that may say anything."""

    def __init__(self, *, greet: bool = True, **limits: float) -> None:
        self.broker = Witness()
        self.failures: list[Exception] = []
        self.mono = 1000.0
        self.told = 0
        self.connection = Connection(
            self.broker,
            frozenset((RPC_PATH.encode(),)),
            Limits(**limits),  # type: ignore[arg-type]
            "127.0.0.1:9",
            self.mono,
            on_output=lambda _: self._note(),
            on_failure=self.failures.append,
        )
        if greet:
            self.say(frames.PREFACE + frames.settings({}) + frames.SETTINGS_ACK)
            self.hear()

    def _note(self) -> None:
        self.told += 1

    def say(self, *parts: bytes) -> None:
        self.connection.feed(b"".join(parts), self.mono)

    def hear(self) -> list[Frame]:
        found = split(b"".join(self.connection.out))
        self.connection.out.clear()
        return found

    def wait(self, seconds: float) -> float | None:
        self.mono += seconds
        return self.connection.wake(self.mono)

    def goodbye(self) -> Frame:
        """The GOAWAY that ended the connection."""
        assert self.connection.closing, "the connection goes on"
        last = self.hear()[-1]
        assert last.kind == frames.GOAWAY
        return last
