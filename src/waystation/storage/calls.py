"""Limits and pauses of calls to a server store, shared by the sessions of several backends.

What a driver's exceptions mean and which calls may be repeated differs: each session says it.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine, Hashable, Mapping
from typing import Any, Generic, TypeAlias, TypeVar

from waystation.base.errors import BusyError

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")

# What is asked about each row, and the callers that wait for the answer.
_Batch: TypeAlias = dict[K, tuple[R, list[asyncio.Future[Any]]]]

PAUSE_FIRST_S = 0.1
PAUSE_LAST_S = 2.0


def too_many_waiting(queue_max: int, server: str) -> BusyError:
    return BusyError(f"store.queue_max {queue_max} operations wait for {server}")


class ReconnectPause:
    """After a failed attempt to connect, calls fail at once until `until_mono`. The first call
    after that connects again. The pause doubles from PAUSE_FIRST_S to PAUSE_LAST_S."""

    def __init__(self) -> None:
        self.until_mono = -math.inf
        self.why = ""
        self._pause_s = 0.0

    def failed(self, why: str, now_mono: float) -> None:
        self.why = why
        self._pause_s = min(max(2 * self._pause_s, PAUSE_FIRST_S), PAUSE_LAST_S)
        self.until_mono = now_mono + self._pause_s

    def connected(self) -> None:
        self._pause_s = 0.0


class TurnBatches(Generic[K, R]):
    """Collects what one turn of the loop asks about rows, and sends it in batches.

    Equal requests for one row share an answer; a different one for the same row goes into
    another batch. `send` returns the answer of each row, or the exception for its callers.
    """

    def __init__(
        self,
        send: Callable[[Mapping[K, R]], Coroutine[Any, Any, Mapping[K, Any]]],
        batch_max: int,
    ) -> None:
        self._send = send
        self._batch_max = batch_max
        self._batches: list[_Batch[K, R]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, row: K, request: R) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        if not self._batches:
            loop.call_soon(self._send_all)
            self._batches.append({})
        answer: asyncio.Future[Any] = loop.create_future()
        batch = self._batches[-1]
        held = batch.get(row)
        if held is not None and held[0] == request:
            held[1].append(answer)
            return answer
        if held is not None or len(batch) >= self._batch_max:
            batch: _Batch[K, R] = {}
            self._batches.append(batch)
        batch[row] = (request, [answer])
        return answer

    def _send_all(self) -> None:
        batches, self._batches = self._batches, []
        for batch in batches:
            task = asyncio.get_running_loop().create_task(self._send_batch(batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send_batch(self, batch: _Batch[K, R]) -> None:
        results: Mapping[K, Any]
        try:
            results = await self._send({row: request for row, (request, _) in batch.items()})
        except Exception as exc:
            results = dict.fromkeys(batch, exc)
        for row, (_, answers) in batch.items():
            result = results[row]
            for answer in answers:
                if answer.done():  # its caller was cancelled
                    continue
                if isinstance(result, Exception):
                    answer.set_exception(result)
                else:
                    answer.set_result(result)
