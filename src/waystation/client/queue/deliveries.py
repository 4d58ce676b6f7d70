"""Detects messages that are delivered again, so that they are not handed over again. No I/O.

A server sends the next message of a queue only after the ACK of the last, and sends the last again
after a broken connection, because it cannot know whether the client had it.

Rule 1: a message that the caller still holds is not handed over a second time.
Rule 2: an acknowledged message arrives again only if its ACK was lost: the ACK is
        repeated, the message is not handed over.
Rule 3: only the last few ids of a queue are remembered; a server never goes back further than one.
"""

import enum
from collections import deque
from collections.abc import Iterable

REMEMBERED_MAX = 8


class Verdict(enum.Enum):
    HAND_OVER = "hand over"
    HELD = "the caller has it"
    ACK_AGAIN = "acknowledge again"


class _Queue:
    __slots__ = ("acked", "held")

    def __init__(self) -> None:
        self.held: bytes | None = None
        self.acked: deque[bytes] = deque(maxlen=REMEMBERED_MAX)


class Deliveries:
    def __init__(self) -> None:
        self._queues: dict[bytes, _Queue] = {}
        self.repeated = 0  # delivered again and not handed over

    def expect(self, recipient_id: bytes, acked: Iterable[bytes] = ()) -> None:
        """`acked`: ids that were handled before this program started."""
        queue = self._queues.setdefault(recipient_id, _Queue())
        queue.acked.extend(acked)

    def arrived(self, recipient_id: bytes, message_id: bytes) -> Verdict:
        queue = self._queues.setdefault(recipient_id, _Queue())
        if message_id in queue.acked:
            self.repeated += 1
            return Verdict.ACK_AGAIN
        if message_id == queue.held:
            self.repeated += 1
            return Verdict.HELD
        queue.held = message_id
        return Verdict.HAND_OVER

    def acked(self, recipient_id: bytes, message_id: bytes) -> None:
        queue = self._queues.setdefault(recipient_id, _Queue())
        if queue.held == message_id:
            queue.held = None
        if message_id not in queue.acked:
            queue.acked.append(message_id)

    def forget(self, recipient_id: bytes) -> None:
        self._queues.pop(recipient_id, None)
