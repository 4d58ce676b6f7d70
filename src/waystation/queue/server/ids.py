"""Creates ids: 24 random bytes, of which the first 12 bits may be a slot.

With `queue.id_mode = "hybrid"` all ids that the server draws for a queue begin with the queue's
slot, so a cluster finds its server without a reference. Ids chosen by clients have no such prefix.
"""

import secrets

from waystation.queue.model import (
    ID_BYTES,
    SLOTS,
    LinkId,
    MessageId,
    NotifierId,
    RecipientId,
    SenderId,
    Slot,
    slot_of,
)


class IdMaker:
    def __init__(self, *, hybrid: bool) -> None:
        self._hybrid = hybrid

    def home(self) -> Slot:
        """The slot of a new queue; on a single server any slot will do."""
        return Slot(secrets.randbelow(SLOTS))

    def recipient(self, slot: Slot) -> RecipientId:
        return RecipientId(_with_slot(slot))

    def sender(self, recipient_id: RecipientId) -> SenderId:
        return SenderId(self._beside(recipient_id))

    def notifier(self, recipient_id: RecipientId) -> NotifierId:
        return NotifierId(self._beside(recipient_id))

    def link(self, recipient_id: RecipientId) -> LinkId:
        return LinkId(self._beside(recipient_id))

    def message(self) -> MessageId:
        return MessageId(secrets.token_bytes(ID_BYTES))

    def _beside(self, recipient_id: RecipientId) -> bytes:
        if self._hybrid:
            return _with_slot(slot_of(recipient_id))
        return secrets.token_bytes(ID_BYTES)


def _with_slot(slot: Slot) -> bytes:
    drawn = secrets.token_bytes(ID_BYTES - 1)
    return bytes((slot >> 4, (slot & 15) << 4 | drawn[0] & 15)) + drawn[1:]
