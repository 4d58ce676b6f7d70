"""What deliveries ask of their node: timers, what a peer that does not read costs, what is counted.

A delivery calls it in the middle of its own step, or of a broadcast. So nothing here ends a stream
at once: whoever is too slow is let go when that step is over.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from .conversation import Conversation
from .delivery import Delivery
from .fan_out import FanOut
from .flight import Flight
from .log import Now
from .model import Detached, Status
from .reports import Reports
from .session import Session
from .settings import Presence

if TYPE_CHECKING:
    from .registry import Registry


class EndStream(Protocol):
    def __call__(
        self,
        conversation: Conversation,
        status: Status,
        *,
        answers: int = 0,
        cause: Detached = Detached.BAD_INPUT,
        discard_unsent: bool = False,
    ) -> None: ...


class DeliveryDesk:
    """A `Desk`."""

    def __init__(self, reports: Reports, settings: Presence, end: EndStream) -> None:
        self._reports = reports
        self._write_stall_s = settings.write_stall_s
        self.fan_out = FanOut(reports.tally, settings.max_inflight)
        self._end = end
        self.slow: list[Delivery] = []  # to be let go at the end of the step
        self.registry: Registry | None = None  # which has us, so it comes second
        self.tally = reports.tally
        self.latencies_s = reports.latencies_s
        self.acks_until_sample = reports.acks_until_sample

    def _arm(self, at_mono: float, timer: Delivery | Callable[[Now], None]) -> int:
        assert self.registry is not None
        return self.registry.arm(at_mono, timer)

    def arm_retry(self, delivery: Delivery, at_mono: float) -> int:
        assert self.registry is not None
        return self.registry.arm(at_mono, delivery)

    def blocked(self, delivery: Delivery, mono: float) -> None:
        session = session_of(delivery)
        if not session.stall_handle:

            def stalled(_now: Now) -> None:
                session.stall_handle = 0
                conversation = session.conversation
                if delivery.blocked_at is not None and isinstance(conversation, Conversation):
                    self._end(
                        conversation,
                        Status.WRITE_STALLED,
                        cause=Detached.STALLED,
                        discard_unsent=True,
                    )

            session.stall_handle = self._arm(mono + self._write_stall_s, stalled)

    def too_slow(self, delivery: Delivery, now: Now) -> None:
        if not self.slow:
            self._arm(now.mono, lambda _now: self.let_slow_go())
        self.slow.append(delivery)

    def let_slow_go(self) -> None:
        slow, self.slow = self.slow, []
        for delivery in slow:
            if delivery.holder is None:
                continue  # its session has ended meanwhile
            conversation = session_of(delivery).conversation
            if isinstance(conversation, Conversation) and not conversation.over:
                self._end(conversation, Status.SLOW_CONSUMER, cause=Detached.SLOW)

    def acked(self, delivery: Delivery, flight: Flight, mono: float) -> None:
        self.acks_until_sample = self._reports.ack_every
        self._reports.acked(session_of(delivery).key, flight, mono)

    def retried(self, delivery: Delivery, flight: Flight, mono: float) -> None:
        self._reports.retried(session_of(delivery).key, flight, mono)

    def dropped(self, delivery: Delivery, flight: Flight, mono: float) -> None:
        self._reports.dropped(session_of(delivery).key, flight, mono)


def session_of(delivery: Delivery) -> Session:
    session = delivery.holder
    assert isinstance(session, Session)
    return session
