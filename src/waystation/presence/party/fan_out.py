"""Sends an announcement to every session that is up to date: the hottest loop of presence.

The loop sets the fields of each delivery itself instead of calling a method: the calls would take
as long as the work. All recipients share one immutable `SentMessage`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from waystation.presence.model import MessageType
from waystation.presence.session.in_flight import DeliveryCounters, SentMessage

from .log import Announcement

if TYPE_CHECKING:
    from waystation.net.http2.port import Stream
    from waystation.presence.session.delivery import Delivery

    from .party import Party

_PARTY: Final = MessageType.JOIN  # stands for any party message


class FanOut:
    """One object per node; its limits are the same for all sessions."""

    __slots__ = ("_counters", "_inflight_max")

    def __init__(self, counters: DeliveryCounters, inflight_max: int) -> None:
        self._counters = counters
        self._inflight_max = inflight_max

    def tell(
        self, party: "Party", one: Announcement, mono: float, origin: "Delivery | None"
    ) -> None:
        """Sends an entry of the log; `origin` is the delivery of the session that caused it."""
        if origin is not None:
            party.fall_behind(origin)  # a session is not sent its own messages
        if one.is_signal:
            for delivery in [
                each for each in party.flowing if each.seed
            ]:  # seed clients do not know SIGNAL
                party.fall_behind(delivery)
        try:
            self.send(party.flowing, one, mono)
        except Exception:  # of one stream: the recipients after it are sent the entry later
            for delivery in tuple(party.flowing):
                if one.message_id not in delivery.inflight:
                    party.fall_behind(delivery)
                    delivery.behind_at = one.seq - 1
            raise

    def send(
        self, recipients: Mapping["Delivery", "Stream"], one: Announcement, mono: float
    ) -> None:
        """`one` is the next announcement for all recipients."""
        message_id, data, inflight_max = one.message_id, one.data, self._inflight_max
        sent = SentMessage(one.seq, message_id, data, _PARTY, mono, mono)
        stopped: list[Delivery] = []  # `stop` changes `recipients`: after the loop
        for delivery, stream in recipients.items():
            inflight = delivery.inflight
            inflight[message_id] = sent
            stream.send(data)
            count = len(inflight)
            if count == 1:  # otherwise both are set
                if delivery.unacked_since is None:
                    delivery.unacked_since = mono
                if not delivery.retry_handle:
                    delivery.arm()
            if count >= inflight_max or not stream.writable:
                stopped.append(delivery)
        self._counters.out += len(recipients)
        for delivery in stopped:
            delivery.stop(mono)
