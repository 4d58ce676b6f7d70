"""Collects message ids to acknowledge and decides when to send them. No I/O.

Rule 1: an id is due `delay_s` after its message arrived, or as soon as `batch` ids wait.
Rule 2: each message that the client sends carries waiting ids, at most `ACK_IDS_MAX`.
Rule 3: acks on a broken stream may be lost. The broker then repeats the messages, and their ids
        are added again.
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
        """Removes and returns the oldest ids, at most `ACK_IDS_MAX`."""
        taken = list(self._ids)[:ACK_IDS_MAX]
        for message_id in taken:
            del self._ids[message_id]
        if not self._ids:
            self._due_at = None
        return taken
