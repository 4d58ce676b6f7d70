"""What nearly every message is, a receipt for one delivery or a bare PING, from bytes to effect.

Rule 1: a message is taken here only if its bytes are exactly those of `wire.client`'s two layouts
        and nothing about it is unusual. Otherwise nothing is done, and `Broker` takes it the long
        way, which decides; this one only comes to the same end with fewer steps.
Rule 2: such a receipt acknowledges something outstanding, so it is free and needs no answer; such a
        PING is new and within its rate, and is answered with one ACK.
"""

from .registry import Registry
from .session import Session
from .transport.port import Stream
from .wire.broker import ack
from .wire.client import RECEIPT_BYTES, bare_ping, one_receipt


class ShortWay:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._receipts = not registry.settings.answer_acks
        self._now = registry.now
        self._mono = registry.mono

    def take(self, session: Session, stream: Stream, data: bytes) -> bool:
        delivery = session.delivery
        if len(data) == RECEIPT_BYTES:
            acked, mono = one_receipt(data), self._mono()
            if not self._receipts or not delivery.acked_one(acked, mono):
                return False
            session.last_rx = mono
            session.messages_in += 1
            if not delivery.flowing:
                delivery.pump(self._now())
            return True
        message_id = bare_ping(data)
        if not message_id:
            return False
        now = self._now()
        if not session.pinged(message_id, now.mono):
            return False
        stream.send(ack(delivery.next_id(), now.ms, message_id))
        if not stream.writable:
            delivery.block(now.mono)  # answers count against who does not read them
        return True
