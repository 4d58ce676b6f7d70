"""Order of forwarded commands (RFWD): all clients of an SMP proxy share its connection.

Rule 1: commands from one connection for one id begin in order of arrival. Proofs are checked in
        threads, and the second of two could finish first: a recipient would get two messages of
        one sender in the wrong order.
Rule 2: a message may begin as soon as the one before has begun, because the store keeps the order
        of its calls; so one flush to disk serves many. Any other command waits until the one before
        is done, because it may read what that changes.
Rule 3: commands for different ids, or from different connections, do not wait for each other.

The caller limits how many wait (`queue.proxy_concurrency`).
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

Begun = Callable[[], None]


class _Turn:
    __slots__ = ("begun", "done", "is_message")

    def __init__(self, *, is_message: bool) -> None:
        self.is_message = is_message
        self.begun = asyncio.Event()
        self.done = asyncio.Event()


class ForwardedOrder:
    def __init__(self) -> None:
        self._last: dict[tuple[object, bytes], _Turn] = {}

    def __len__(self) -> int:
        return len(self._last)

    async def run(
        self,
        connection: object,
        entity_id: bytes,
        work: Callable[[Begun], Awaitable[T]],
        *,
        is_message: bool,
    ) -> T:
        """Calls `work` in its turn; `work` calls its argument when its order is settled."""
        key = (connection, entity_id)
        before = self._last.get(key)
        turn = self._last[key] = _Turn(is_message=is_message)
        try:
            if before is not None:
                both = is_message and before.is_message
                await (before.begun if both else before.done).wait()
            return await work(turn.begun.set)
        finally:
            turn.begun.set()
            turn.done.set()
            if self._last.get(key) is turn:
                del self._last[key]
