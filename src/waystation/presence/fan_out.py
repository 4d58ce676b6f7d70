"""An announcement goes to everybody of a party: the loop that every delivery passes through.

It does to each delivery what a method of it would do, without the calls between: twenty recipients
are the usual size of a party, and the calls cost as much as what they did. What is sent is the same
for all, so they share one `Flight`, which nobody may change.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from .flight import Flight, Tally
from .log import Announcement, Now
from .model import MessageType

if TYPE_CHECKING:
    from .delivery import Delivery

_PARTY: Final = MessageType.JOIN  # stands for any party message


class FanOut:
    """Made once for a node: its limits are the same for all."""

    __slots__ = ("_inflight_max", "_tally")

    def __init__(self, tally: Tally, inflight_max: int) -> None:
        self._tally = tally
        self._inflight_max = inflight_max

    def __call__(
        self,
        recipients: Sequence["Delivery"],
        one: Announcement,
        now: Now,
        origin: "Delivery | None" = None,
    ) -> None:
        """Something was appended to the party's log; `origin` is of the session that did it."""
        seq, message_id, data = one.seq, one.message_id, one.data
        before, mono, inflight_max = seq - 1, now.mono, self._inflight_max
        if origin is not None and origin.flowing and origin.sent_seq == before:
            origin.sent_seq = seq  # nobody is told of what they did themselves
        if one.is_signal:
            for delivery in recipients:
                if delivery.seed and delivery.flowing and delivery.sent_seq == before:
                    delivery.sent_seq = seq
        flight = Flight(seq, message_id, data, _PARTY, mono, mono)
        later = 0
        for delivery in recipients:
            if delivery.sent_seq != before or not delivery.flowing:
                later += 1
                if delivery.sent_seq < seq:
                    delivery.offer_later(one, now)
                continue
            delivery.sent_seq = seq
            inflight, stream = delivery.inflight, delivery.stream
            assert stream is not None
            inflight[message_id] = flight
            stream.send(data)
            count = len(inflight)
            if count == 1:  # else both are so already
                if delivery.unacked_since is None:
                    delivery.unacked_since = mono
                if not delivery.retry_handle:
                    delivery.arm()
            if count >= inflight_max:
                delivery.flowing = False
            elif not stream.writable:
                delivery.block(mono)
        self._tally.out += len(recipients) - later
