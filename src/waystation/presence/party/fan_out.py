"""An announcement goes to everybody who is up to date: the loop that every delivery passes through.

It does to each delivery what a method of it would do, without the calls between: twenty recipients
are the usual size of a party, and the calls cost as much as what they did. What is sent is the same
for all, so they share one `SentMessage`, which nobody may change.
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
    """Made once for a node: its limits are the same for all."""

    __slots__ = ("_counters", "_inflight_max")

    def __init__(self, counters: DeliveryCounters, inflight_max: int) -> None:
        self._counters = counters
        self._inflight_max = inflight_max

    def tell(
        self, party: "Party", one: Announcement, mono: float, origin: "Delivery | None"
    ) -> None:
        """It was appended to the party's log; `origin` is of the session that did it."""
        if origin is not None:
            party.fall_behind(origin)  # nobody is told of what they did themselves
        if one.is_signal:
            for delivery in [each for each in party.flowing if each.seed]:  # do not know of it
                party.fall_behind(delivery)
        try:
            self.send(party.flowing, one, mono)
        except Exception:  # of one stream: whoever came after it is told later, not never
            for delivery in tuple(party.flowing):
                if one.message_id not in delivery.inflight:
                    party.fall_behind(delivery)
                    delivery.behind_at = one.seq - 1
            raise

    def send(
        self, recipients: Mapping["Delivery", "Stream"], one: Announcement, mono: float
    ) -> None:
        """It is next for all of them."""
        message_id, data, inflight_max = one.message_id, one.data, self._inflight_max
        sent = SentMessage(one.seq, message_id, data, _PARTY, mono, mono)
        stopped: list[Delivery] = []  # they leave `recipients`, so that comes after the loop
        for delivery, stream in recipients.items():
            inflight = delivery.inflight
            inflight[message_id] = sent
            stream.send(data)
            count = len(inflight)
            if count == 1:  # else both are so already
                if delivery.unacked_since is None:
                    delivery.unacked_since = mono
                if not delivery.retry_handle:
                    delivery.arm()
            if count >= inflight_max or not stream.writable:
                stopped.append(delivery)
        self._counters.out += len(recipients)
        for delivery in stopped:
            delivery.stop(mono)
