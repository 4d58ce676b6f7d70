"""What nearly every message is, receipts for deliveries or a bare PING, from bytes to effect.

Rule 1: a message is taken here only if its bytes are exactly those of `wire.client`'s three layouts
        and nothing about it is unusual. Otherwise nothing is done, and `Broker` takes it the long
        way, which decides; this one only comes to the same end with fewer steps.
Rule 2: such a receipt, or the first of several, acknowledges something outstanding, so it is free
        and needs no answer; such a PING is new and within its rate, and is answered with one ACK.
"""

from .delivery import Delivery
from .flight import Desk
from .model import MessageType
from .registry import Registry
from .session import Session
from .transport.port import Stream
from .wire.broker import ack
from .wire.client import (
    ONE_RECEIPT,
    PING_BYTES,
    RECEIPT_BYTES,
    bare_ping,
    one_receipt,
    several_receipts,
)

_LIST = MessageType.LIST


class ShortWay:
    __slots__ = ("_desk", "_mono", "_note_latency", "_now", "_receipts", "_tally")

    def __init__(self, registry: Registry, desk: Desk) -> None:
        self._desk = desk
        self._tally = desk.tally
        self._note_latency = desk.latencies_s.append  # that list stays the same
        self._receipts = not registry.settings.answer_acks
        self._now = registry.now
        self._mono = registry.mono

    def take(self, session: Session, stream: Stream, data: bytes) -> bool:
        delivery = session.delivery
        size = len(data)
        if size == RECEIPT_BYTES:
            # `Delivery.acked` for one that is in flight, without its calls: half of all messages.
            head, acked = one_receipt(data)
            if head != ONE_RECEIPT or not self._receipts:
                return False
            inflight = delivery.inflight
            flight = inflight.pop(acked, None)
            if flight is None:
                return False
            session.last_rx = mono = self._mono()
            session.messages_in += 1
            delivery.unacked_since = mono if inflight else None
            delivery.acked_n += 1
            self._tally.acked += 1
            self._note_latency(mono - flight.first_mono)
            if flight.seq > delivery.acked_high:  # noqa: PLR1730 for every ack
                delivery.acked_high = flight.seq
            if delivery.resync_from is not None and flight.kind is _LIST:
                delivery.resync_from = None
            desk = self._desk
            until_sample = desk.acks_until_sample
            if until_sample:
                desk.acks_until_sample = until_sample - 1
                if until_sample == 1:
                    desk.acked(delivery, flight, mono)
            if delivery.behind_at is not None:
                delivery.pump(self._now())
            return True
        if size != PING_BYTES:
            ids = several_receipts(data)
            return bool(ids) and self._receipts and self._acked(session, delivery, ids)
        message_id = bare_ping(data)
        if not message_id:
            return False
        now = self._now()
        if not session.pinged(message_id, now.mono):
            return False
        stream.send(ack(delivery.next_id(), now.ms, message_id))
        if not stream.writable:
            delivery.stop(now.mono)  # answers count against who does not read them
        return True

    def _acked(self, session: Session, delivery: Delivery, ids: tuple[int, ...]) -> bool:
        """`Delivery.acked` for what was sent and not acknowledged yet, without a call for each."""
        inflight, desk = delivery.inflight, self._desk
        if ids[0] not in inflight or 0 < desk.acks_until_sample <= len(ids):
            return False  # the long way finds out which of them is the sample
        mono = self._mono()
        high, settled = delivery.acked_high, 0
        note = desk.latencies_s.append
        for one in ids:
            flight = inflight.pop(one, None)
            if flight is None:
                delivery.acked((one,), 0, self._now())  # counts it as repeated or unknown
                continue
            settled += 1
            note(mono - flight.first_mono)
            if flight.seq > high:  # noqa: PLR1730 for every ack
                high = flight.seq
            if flight.kind is _LIST:
                delivery.resync_from = None
        delivery.acked_high = high
        delivery.acked_n += settled
        desk.tally.acked += settled
        if desk.acks_until_sample:
            desk.acks_until_sample -= settled
        delivery.unacked_since = mono if inflight else None
        session.last_rx = mono
        session.messages_in += 1
        if delivery.behind_at is not None:
            delivery.pump(self._now())
        return True
