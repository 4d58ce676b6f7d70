"""Sends the calls of one loop turn to a server store together.

Rule 1: a call waits for the end of the turn, and longer only while `IN_FLIGHT_MAX` groups are in
        progress; later calls form the next group.
Rule 2: at most `queue_max` calls wait; one more is refused with `BusyError`.
Rule 3: each caller gets its own answer or error. A call that is cancelled before its group is sent
        is left out; a later cancellation does not undo the call.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

from waystation.base.errors import BusyError, StoreUnavailableError, WaystationError
from waystation.storage.calls import too_many_waiting

Q = TypeVar("Q")
A = TypeVar("A")
K = TypeVar("K", bound=Hashable)
R = TypeVar("R")

IN_FLIGHT_MAX = 2


class Batcher(Generic[Q, A]):
    """`perform` takes a list of calls and returns an answer or an error for each, in order."""

    def __init__(
        self,
        perform: Callable[[Sequence[Q]], Awaitable[Sequence[A | WaystationError]]],
        *,
        server: str,
        group_max: int,
        queue_max: int,
        in_flight_max: int = IN_FLIGHT_MAX,
    ) -> None:
        """With `in_flight_max` 1, calls are performed in their order."""
        self._perform = perform
        self._server = server
        self._in_flight_max = in_flight_max
        self._group_max = group_max
        self._queue_max = queue_max
        self._waiting: deque[tuple[Q, asyncio.Future[A]]] = deque()
        self._in_flight: set[asyncio.Task[None]] = set()
        self._due = False
        self._closed = False

    def ask(self, question: Q) -> "asyncio.Future[A]":
        if self._closed:
            raise StoreUnavailableError("the store is closed")
        if len(self._waiting) >= self._queue_max:
            raise too_many_waiting(self._queue_max, self._server)
        answered: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, answered))
        self._plan()
        return answered

    async def close(self) -> None:
        """Waits for the calls that were submitted."""
        self._closed = True
        while self._waiting or self._in_flight:
            self._leave()
            if self._in_flight:
                await asyncio.wait(list(self._in_flight))

    def _plan(self) -> None:
        if not self._due and len(self._in_flight) < self._in_flight_max:
            self._due = True
            asyncio.get_running_loop().call_soon(self._leave)

    def _leave(self) -> None:
        self._due = False
        while self._waiting and len(self._in_flight) < self._in_flight_max:
            group: list[tuple[Q, asyncio.Future[A]]] = []
            while self._waiting and len(group) < self._group_max:
                asked = self._waiting.popleft()
                if not asked[1].done():
                    group.append(asked)
            if group:
                flight = asyncio.get_running_loop().create_task(self._fly(group))
                self._in_flight.add(flight)
                flight.add_done_callback(self._landed)

    def _landed(self, flight: "asyncio.Task[None]") -> None:
        self._in_flight.discard(flight)
        if self._waiting:
            self._plan()

    async def _fly(self, group: "list[tuple[Q, asyncio.Future[A]]]") -> None:
        answers: Sequence[A | WaystationError]
        try:
            answers = await self._perform([question for question, _ in group])
        except BusyError as exc:
            answers = [BusyError(str(exc)) for _ in group]
        except StoreUnavailableError as exc:
            answers = [type(exc)(str(exc)) for _ in group]
        except BaseException:
            for _, answered in group:
                answered.cancel()
            raise
        for (_, answered), answer in zip(group, answers, strict=True):
            if answered.done():
                continue
            if isinstance(answer, WaystationError):
                answered.set_exception(answer)
            else:
                answered.set_result(answer)


def by_row(
    send: Callable[[Mapping[K, R]], Awaitable[Mapping[K, A | WaystationError]]],
) -> Callable[[Sequence[tuple[K, R]]], Awaitable[Sequence[A | WaystationError]]]:
    """For a server that takes each row at most once in a call: a `perform` for questions of the
    form (row, request). Equal questions share an answer; another one about the same row is sent
    afterwards."""

    async def perform(questions: Sequence[tuple[K, R]]) -> Sequence[A | WaystationError]:
        answers: dict[int, A | WaystationError] = {}
        left = list(enumerate(questions))
        while left:
            requests: dict[K, R] = {}
            later = [one for one in left if requests.setdefault(one[1][0], one[1][1]) != one[1][1]]
            results = await send(requests)
            answers |= {
                number: results[row] for number, (row, request) in left if requests[row] == request
            }
            left = later
        return [answers[number] for number in range(len(questions))]

    return perform
