"""Which messages we still have to acknowledge, and when to say so. No I/O.

Rule 1: an ack leaves within `delay_s` of its message, or as soon as `batch` of them wait.
Rule 2: whatever we send takes the waiting ones along, up to what one message may carry.
Rule 3: after a broken stream what was sent may be lost: the broker will repeat it, and so do we.
"""

ACK_IDS_MAX = 1024


class AckBatch:
    def __init__(self, *, delay_s: float, batch: int) -> None:
        assert 1 <= batch <= ACK_IDS_MAX
        self._delay_s = delay_s
        self._batch = batch
        self._ids: dict[int, None] = {}
        self._due_at: float | None = None

    def add(self, message_id: int, now: float) -> None:
        if not self._ids:
            self._due_at = now + self._delay_s
        self._ids[message_id] = None
        if len(self._ids) >= self._batch:
            self._due_at = now

    @property
    def due_at(self) -> float | None:
        return self._due_at

    def take(self) -> list[int]:
        """The oldest that fit into one message."""
        taken = list(self._ids)[:ACK_IDS_MAX]
        for message_id in taken:
            del self._ids[message_id]
        if not self._ids:
            self._due_at = None
        return taken
