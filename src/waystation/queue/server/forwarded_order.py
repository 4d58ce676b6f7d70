"""Order of forwarded commands (RFWD): all clients of an SMP proxy share its connection.

Rule 1: what came over one connection about one id begins in the order in which it came. Checks are
        made in threads, and the second of two could be over first: a recipient would see two
        messages of one sender the wrong way round.
Rule 2: a message may begin as soon as the one before has begun, because the store keeps the order
        of what it was asked; so one flush to the disk serves many. Anything else waits until the
        one before is done, for it may look at what that changes.
Rule 3: commands about different ids, or of different connections, do not wait for each other.

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
        """`work` is called in its turn and says when it has begun what must not be overtaken."""
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
