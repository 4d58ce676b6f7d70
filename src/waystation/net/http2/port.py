"""What a gRPC transport and its handler ask of each other, one stream at a time.

A transport carries bidirectional streaming calls. It knows HTTP/2, gRPC framing, TLS and flow
control, and nothing of what the messages say; the handler knows the messages and no socket.

Rule 1: everything happens on the loop's thread, and nothing here waits. Methods return at once.
Rule 2: for each stream the transport calls `opened` once, then `message` for each message in order,
        then at most one of `half_closed` and, if the handler has not finished it, `closed`.
Rule 3: the handler ends every stream that has not closed by itself with exactly one `finish`. After
        `finish` or `closed` neither side says anything more about the stream.
Rule 4: `opened` may call `finish` at once (bad token); nothing was sent then, so the answer has
        trailers only.
Rule 5: `send` never refuses. `writable` says whether more is welcome, and the handler stops asking
        the log for more while it is False; a transport promises `unblocked` when it is True again.
        During a `send` the handler is not told of any other stream: it may be sending to many.
Rule 6: what is sent during one turn of the loop to streams of one connection is written together.
Rule 7: reading that was paused brings no `message` and no `half_closed` until it is resumed; what
        had already been read waits in the transport (its receive window bounds it).
"""

import enum
from typing import Any, Protocol

SEND_HIGH_BYTES = 256 * 1024  # unsent bytes of a stream above which it is not writable
SEND_LOW_BYTES = 64 * 1024  # and below which it is again
MESSAGE_BYTES_MAX = 16 * 1024
METADATA_BYTES_MAX = 16 * 1024
STREAMS_PER_CONNECTION_MAX = 1000


class GrpcStatus(enum.IntEnum):
    """The numbers of google.rpc.Code that we use."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class Gone(enum.Enum):
    """Why a stream is gone without a `finish` of ours."""

    RESET = "reset"  # the client cancelled the call, or broke the rules of one stream
    TRANSPORT = "transport"  # the connection is lost, or did not answer our pings
    TOO_LARGE = "too_large"  # a message over MESSAGE_BYTES_MAX: ended with RESOURCE_EXHAUSTED


class Stream(Protocol):
    """One call, as the transport hands it to the handler."""

    holder: Any
    """The handler's own: whatever it wants to find again with this stream."""

    @property
    def peer(self) -> str:
        """The address of the other end; never in a log as it is."""
        ...

    @property
    def authorization(self) -> str | None:
        """The metadata value of that name, as it came; None if there is none."""
        ...

    @property
    def writable(self) -> bool:
        """Whether fewer than SEND_HIGH_BYTES wait; once False, True again below SEND_LOW_BYTES."""
        ...

    def send(self, message: bytes) -> None:
        """One message, without its gRPC prefix. Order is kept."""
        ...

    def finish(self, status: GrpcStatus, detail: str = "", *, discard_unsent: bool = False) -> None:
        """Ends the call after what was sent; with `discard_unsent` at once, for a peer that does
        not read. `detail` is the status message, ASCII."""
        ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class StreamHandler(Protocol):
    """Whoever serves the calls, as a transport sees it."""

    def opened(self, stream: Stream) -> None: ...

    def message(self, stream: Stream, data: bytes) -> None: ...

    def half_closed(self, stream: Stream) -> None:
        """The client has said all it will. It still reads, and waits for `finish`."""
        ...

    def closed(self, stream: Stream, why: Gone) -> None: ...

    def unblocked(self, stream: Stream) -> None:
        """`writable` is True again."""
        ...
