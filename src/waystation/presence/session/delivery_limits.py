"""Limits for slow clients: ends streams that do not read or stay behind; retry timers, ack samples.

Deliveries call it in the middle of a fan-out. So it never ends a stream at once: streams that are
too slow are ended after the current step.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from waystation.presence.model import Detached, Now, Status
from waystation.presence.party.fan_out import FanOut
from waystation.presence.party.registry import Registry
from waystation.presence.reports import Reports
from waystation.presence.settings import Presence

from .client_stream import ClientStream, StreamControl
from .delivery import Delivery
from .in_flight import SentMessage
from .session import Session

if TYPE_CHECKING:
    from waystation.presence.party.registry import Registry


class DeliveryLimits:
    """Implements `DeliveryPort`."""

    def __init__(self, reports: Reports, settings: Presence, control: StreamControl) -> None:
        self._reports = reports
        self._write_stall_s = settings.write_stall_s
        self.fan_out = FanOut(reports.counters, settings.max_inflight)
        self._control = control
        self.slow: list[Delivery] = []  # to be ended after the current step
        self.registry: Registry | None = None  # set later: it needs this object first
        self.counters = reports.counters
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
                client = session.client
                if delivery.blocked_at is not None and isinstance(client, ClientStream):
                    self._control.end(
                        client,
                        Status.WRITE_STALLED,
                        cause=Detached.STALLED,
                        discard_unsent=True,
                    )

            session.stall_handle = self._arm(mono + self._write_stall_s, stalled)

    def too_slow(self, delivery: Delivery, now: Now) -> None:
        if not self.slow:
            self._arm(now.mono, lambda _now: self.end_slow_streams())
        self.slow.append(delivery)

    def end_slow_streams(self) -> None:
        slow, self.slow = self.slow, []
        for delivery in slow:
            if delivery.holder is None:
                continue  # its session has ended in the meantime
            client = session_of(delivery).client
            if isinstance(client, ClientStream) and not client.over:
                self._control.end(client, Status.SLOW_CONSUMER, cause=Detached.SLOW)

    def acked(self, delivery: Delivery, sent: SentMessage, mono: float) -> None:
        self.acks_until_sample = self._reports.ack_every
        self._reports.acked(session_of(delivery).key, sent, mono)

    def retried(self, delivery: Delivery, sent: SentMessage, mono: float) -> None:
        self._reports.retried(session_of(delivery).key, sent, mono)

    def dropped(self, delivery: Delivery, sent: SentMessage, mono: float) -> None:
        self._reports.dropped(session_of(delivery).key, sent, mono)


def session_of(delivery: Delivery) -> Session:
    session = delivery.holder
    assert isinstance(session, Session)
    return session
