"""One client's stream: its phase, session, inbox and end."""

import enum
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from waystation.net.http2.port import GrpcStatus, Stream
from waystation.presence.model import Detached, Now, SessionKey, Status, local_id_base
from waystation.presence.wire import server_messages as write
from waystation.presence.wire.error_forms import ending

from .session import Faults, Refusal, Session

if TYPE_CHECKING:
    from waystation.presence.grants import Grant
    from waystation.presence.wire.party_presence_pb2 import HandoffInfo


class Phase(enum.Enum):
    OPEN = "open"  # no JOIN yet
    JOINED = "joined"
    STANDBY = "standby"
    OVER = "over"


# Module constants: reading an enum member takes a third of a delivery's time.
_OPEN: Final = Phase.OPEN
_OVER: Final = Phase.OVER


class RelayedCall(Protocol):
    """A stream that this node passes on to the node of its party (`cluster.relay`)."""

    def send(self, data: bytes) -> None: ...

    def half_closed(self) -> None: ...

    def lost(self) -> None: ...

    def unblocked(self) -> None: ...


@dataclass(slots=True, eq=False, repr=False)  # ids do not reach a log
class ClientStream:
    """A dataclass, for the same reason as `Delivery`."""

    stream: Stream
    _on_over: Callable[["ClientStream"], None]  # called once, at its end
    phase: Phase = _OPEN
    over: bool = False
    session: Session | None = None
    key: SessionKey | None = None  # of a standby, and of a JOIN under way
    busy: bool = False  # a request waits for the store; later messages go into the inbox
    inbox: deque[bytes] | None = None
    paused: bool = False
    half_closed: bool = False
    lost: bool = False  # the transport has closed it
    join_handle: int = 0  # of the timer that is armed while its JOIN is late
    faults: Faults | None = None
    grant: "Grant | None" = None
    relayed: RelayedCall | None = None  # its party lives on another node
    _id_n: int = 0

    def next_id(self) -> int:
        session = self.session
        if session is not None:
            return session.delivery.next_id()
        self._id_n += 1
        return local_id_base(0) + self._id_n

    # --- answers ---------------------------------------------------------------------------------

    def ack(self, message_id: int, now: Now) -> None:
        if not self.over:
            self.stream.send(write.ack(self.next_id(), now.ms, message_id))

    def send(self, data: bytes) -> None:
        if not self.over:
            self.stream.send(data)

    def error(
        self,
        status: Status,
        now: Now,
        *,
        answers: int = 0,
        detail: str = "",
        retry_after_ms: int = 0,
        handoff: "HandoffInfo | None" = None,
    ) -> None:
        self.send(
            write.error(
                self.next_id(),
                now.ms,
                status,
                answers=answers,
                detail=detail,
                retry_after_ms=retry_after_ms,
                handoff=handoff,
            )
        )

    def end(
        self,
        status: Status,
        now: Now,
        *,
        answers: int = 0,
        detail: str = "",
        retry_after_ms: int = 0,
        handoff: "HandoffInfo | None" = None,
        discard_unsent: bool = False,
    ) -> None:
        """Sends ERROR and ends the call as `wire.error_forms` says."""
        if self.over:
            return
        self.error(
            status,
            now,
            answers=answers,
            detail=detail,
            retry_after_ms=retry_after_ms,
            handoff=handoff,
        )
        self.finish(ending(status), status.name, discard_unsent=discard_unsent)

    def finish(self, status: GrpcStatus, detail: str = "", *, discard_unsent: bool = False) -> None:
        if self.over:
            return
        self.over_now()
        if not self.lost:
            self.stream.finish(status, detail, discard_unsent=discard_unsent)

    def over_now(self) -> None:
        """Marks the stream as ended; nothing more is sent or read."""
        if not self.over:
            self._on_over(self)
        self.over = True
        self.phase = _OVER
        self.session = None
        self.inbox = None
        self.busy = False

    # --- inbox -----------------------------------------------------------------------------------

    def wait(self, data: bytes, inbox_max: int) -> None:
        if self.inbox is None:
            self.inbox = deque()
        self.inbox.append(data)
        if len(self.inbox) >= inbox_max and not self.paused:
            self.paused = True
            self.stream.pause_reading()

    def next_waiting(self) -> bytes | None:
        if not self.inbox:
            return None
        data = self.inbox.popleft()
        if self.paused and not self.inbox:
            self.paused = False
            self.stream.resume_reading()
        return data

    def fault(self, status: Status, mono: float) -> bool:
        """Counts a soft error before the JOIN; True if that was one too many."""
        if self.faults is None:
            self.faults = Faults()
        return self.faults.add(status, mono)


class StreamControl(Protocol):
    """What the steps of a stream ask of the broker."""

    def run(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` at once as far as it does not wait; the rest runs as a task."""
        ...

    def refuse(self, client: ClientStream, refusal: Refusal, message_id: int) -> None:
        """Answers with a soft error; too many of them end the stream."""
        ...

    def end(
        self,
        client: ClientStream,
        status: Status,
        *,
        answers: int = 0,
        cause: Detached = Detached.BAD_INPUT,
        discard_unsent: bool = False,
    ) -> None:
        """Ends the stream with an error and detaches its session, if it has one."""
        ...

    def failed(self, client: ClientStream, exc: Exception) -> None:
        """Logs a failure of ours and ends the stream with INTERNAL_ERROR."""
        ...

    def go_on(self, client: ClientStream) -> None:
        """Processes the inbox until a message has to wait for the store again."""
        ...
