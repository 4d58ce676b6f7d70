"""An announcement goes to everybody of a party: the loop that every delivery passes through.

It does to each delivery what a method of it would do, without the calls between: twenty recipients
are the usual size of a party, and the calls cost as much as what they did. What is sent is the same
for all, so they share one `Flight`, which nobody may change.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from .flight import Flight, Tally
from .log import Announcement, Now
from .model import MessageType

if TYPE_CHECKING:
    from .delivery import Delivery

_PARTY: Final = MessageType.JOIN  # stands for any party message


def fan_out(recipients: Iterable["Delivery"], one: Announcement, now: Now, tally: Tally) -> None:
    """Something was appended to the party's log."""
    seq, message_id, data, session_id = one.seq, one.message_id, one.data, one.session_id
    before, mono, is_signal = seq - 1, now.mono, one.is_signal
    flight = Flight(seq, message_id, data, _PARTY, mono, mono)
    out = 0
    for delivery in recipients:
        if delivery.sent_seq != before or not delivery.flowing:
            delivery.offer_later(one, now)
            continue
        delivery.sent_seq = seq
        if delivery.session_id == session_id and delivery.client_id == one.client_id:
            continue  # nobody is told of what they did themselves
        if is_signal and delivery.seed:
            continue
        inflight, stream = delivery.inflight, delivery.stream
        assert stream is not None
        inflight[message_id] = flight
        delivery.out_n += 1
        out += 1
        stream.send(data)
        count = len(inflight)
        if count == 1:  # else both are so already
            if delivery.unacked_since is None:
                delivery.unacked_since = mono
            if not delivery.retry_handle:
                delivery.arm()
        if count >= delivery.inflight_max:
            delivery.flowing = False
        elif not stream.writable:
            delivery.block(mono)
    tally.out += out
