"""People who write to each other through queues, checked as in `tests/e2e/queue/exchange.py`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from tests.e2e.queue.exchange import check_outcome
from tests.e2e.queue_cluster.trial import Pair
from waystation.client.queue.address import ServerAddress

PAIRS = 2
PAUSE_S = 0.03


class _OneServer:
    """Where a `Pair` would ask a fleet."""

    def __init__(self, address: str) -> None:
        self._address = ServerAddress.parse(address)

    def address(self, first: int = 0) -> ServerAddress:
        return self._address


class QueueLoad:
    def __init__(self, address: str) -> None:
        server = _OneServer(address)
        self._pairs = [Pair(server, number, PAUSE_S) for number in range(PAIRS)]

    @property
    def sent(self) -> int:
        return sum(pair.sent for pair in self._pairs)

    async def open(self, stack: AsyncExitStack) -> None:
        for pair in self._pairs:
            await stack.enter_async_context(pair.sender)
            await stack.enter_async_context(pair.recipient)
            await pair.meet()

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """As long as the block lasts; then all that was sent is received."""
        over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for pair in self._pairs:
                group.create_task(pair.send(over))
                group.create_task(pair.receive())
            try:
                yield
            finally:
                over.set()

    def broken_promises(self) -> list[str]:
        found: list[str] = []
        for number, pair in enumerate(self._pairs):
            try:
                check_outcome(pair.outcome(), pair.sent)
            except AssertionError as exc:
                found.append(f"queue {number}: {exc}")
        return found
