"""Calls to Bigtable: limits, timeouts, retries, and what the driver's exceptions mean.

Rule 1: `database_pool_max_size` calls are under way at once (100 for each channel, unless set);
        `store.queue_max` more may wait for their turn, and one more is refused as busy.
Rule 2: reads and writes that may be repeated are tried again, `retry_count` times at most, when
        Bigtable was unavailable, aborted or too late; a write under a condition only when it
        was certainly not sent, or when its caller knows its own row again.
Rule 3: look-ups and unconditional writes of one turn of the loop share a call (`ReadRows` of
        several keys, `MutateRows`); a write under a condition has a call of its own.
Rule 4: the driver's exceptions become the store's own in `_store_error` and nowhere else.

The driver's clients belong to the loop in which they were made: `Session` is made in the running
one. They are several because one channel carries about a hundred calls at once.
"""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from itertools import cycle
from typing import Any, NamedTuple, TypeVar, cast

import msgspec
from google.api_core.exceptions import (
    Aborted,
    Cancelled,
    DeadlineExceeded,
    GoogleAPIError,
    InternalServerError,
    NotFound,
    PermissionDenied,
    ServiceUnavailable,
    Unauthenticated,
)
from google.auth.exceptions import GoogleAuthError

from waystation.base.breaker import Breaker
from waystation.base.clock import Clock
from waystation.base.errors import BusyError, StoreUnavailableError, WaystationError
from waystation.storage.batching import Batcher, by_row
from waystation.storage.bigtable.cells import Cells, Mutation, Row
from waystation.storage.bigtable.client import find_credentials, new_client
from waystation.storage.bigtable.filters import RowFilter
from waystation.storage.bigtable.rpc import Rpc
from waystation.storage.bigtable.url import BigtableUrl
from waystation.storage.calls import too_many_waiting
from waystation.storage.settings import Store

T = TypeVar("T")
R = TypeVar("R")

STREAMS_PER_CHANNEL = 100
ENTRIES_PER_CALL = 1000  # rows of one call that changes many
# Rows of one call that looks up what a turn of the loop asks for. Not more: their filter names a
# column for each of them, and the server compares each cell with all of these names.
KEYS_PER_READ = 8
_PAUSE_S = 0.05  # before a second attempt; doubled for each further one, and never exactly

_PASSING = (ServiceUnavailable, Aborted, DeadlineExceeded, Cancelled)
_TROUBLE = (*_PASSING, InternalServerError, GoogleAuthError, TimeoutError, OSError)
_NOT_SENT = "failed to connect to all addresses"


class SessionStats(msgspec.Struct):
    """What a process asked of Bigtable; a retry is a round trip of its own."""

    round_trips: int = 0
    retries: int = 0
    failures: int = 0
    refused: int = 0  # because the queue was full or the breaker open
    breaker_opened: int = 0
    undecodable: int = 0  # rows of somebody else that were passed over
    incomplete: int = 0  # records of which only remains were left, and were removed


class Limits(NamedTuple):
    """How long one attempt and all of them together may take."""

    attempt_s: float
    total_s: float


class Session:
    """One table, as this process sees it."""

    def __init__(self, url: BigtableUrl, settings: Store, clock: Clock) -> None:
        self.stats = SessionStats()
        self._clock = clock
        self._url = url
        self._breaker = Breaker(clock)
        patience_s = settings.operation_timeout_s
        # §6.4: 5 s and 15 s, scans 20 s and 25 s, at the default of `store.operation_timeout_s`.
        self._point = _limits(
            url.grpc_point_attempt_timeout, url.grpc_point_total_timeout, patience_s, 1, 3
        )
        self._scan = _limits(
            url.grpc_scan_attempt_timeout, url.grpc_scan_total_timeout, patience_s, 4, 5
        )
        connect_s = url.grpc_connect_timeout or settings.connect_timeout_s
        credentials = find_credentials(url)
        self._clients = [
            new_client(url, credentials, connect_s) for _ in range(url.grpc_channel_count)
        ]
        self._tables = [
            client.get_table(url.instance, url.table, app_profile_id=url.app_profile_id)
            for client in self._clients
        ]
        self._rpcs = [Rpc(client, url.table_name, url.app_profile_id) for client in self._clients]
        self._turns = cycle(self._rpcs)
        self._waiting = 0  # callers whose request is in a batch
        self._free = url.database_pool_max_size or STREAMS_PER_CHANNEL * url.grpc_channel_count
        self._wait_s = url.database_pool_wait_timeout or self._point.total_s
        self._queue_max = settings.queue_max
        self._waiting_max = self._free + settings.queue_max
        self._queue: deque[asyncio.Future[None]] = deque()
        self._batch_limits: dict[str, Any] = {
            "server": "Bigtable",
            "queue_max": self._waiting_max,
            "in_flight_max": self._free,
        }
        self._writes = Batcher[tuple[bytes, list[Mutation]], None](
            by_row(self._send_writes), group_max=ENTRIES_PER_CALL, **self._batch_limits
        )

    # Reads

    async def read_row(
        self, key: bytes, row_filter: RowFilter, *, guarded: bool = True
    ) -> Cells | None:
        async def call(rpc: Rpc, timeout_s: float) -> list[Row]:
            return await rpc.read_rows(
                row_filter, keys=(key,), after=None, limit=1, timeout_s=timeout_s
            )

        rows = await self._call(call, self._point, repeatable=True, guarded=guarded)
        return rows[0].cells if rows else None

    async def read_rows(
        self,
        row_filter: RowFilter,
        *,
        keys: Sequence[bytes] = (),
        after: tuple[bytes, bytes] | None = None,
        limit: int | None = None,
    ) -> list[Row]:
        """In the order of keys: these, and those between the two of `after` (both excluded)."""

        async def call(rpc: Rpc, timeout_s: float) -> list[Row]:
            return await rpc.read_rows(
                row_filter, keys=keys, after=after, limit=limit, timeout_s=timeout_s
            )

        return await self._call(call, self._scan, repeatable=True)

    def look_ups(
        self, filter_of: Callable[[Collection[R]], RowFilter]
    ) -> Callable[[bytes, R], Awaitable[Cells | None]]:
        """A function that reads a row together with the others that are asked for in this turn
        of the loop; `filter_of` makes their common filter of what is asked about each."""

        async def send(asked: Mapping[bytes, R]) -> Mapping[bytes, Cells | None]:
            row_filter, keys = filter_of(asked.values()), list(asked)

            async def call(rpc: Rpc, timeout_s: float) -> list[Row]:
                return await rpc.read_rows(
                    row_filter, keys=keys, after=None, limit=None, timeout_s=timeout_s
                )

            found: dict[bytes, Cells | None] = dict.fromkeys(asked)
            found.update(await self._call(call, self._point, repeatable=True))
            return found

        batches = Batcher[tuple[bytes, R], Cells | None](
            by_row(send), group_max=KEYS_PER_READ, **self._batch_limits
        )

        async def look_up(key: bytes, request: R) -> Cells | None:
            with self._counted():
                return await batches.ask((key, request))

        return look_up

    async def sample_keys(self) -> list[tuple[bytes, int]]:
        """Keys about evenly apart, and how many bytes lie before each; as many as there are."""

        async def call(_rpc: Rpc, timeout_s: float) -> list[tuple[bytes, int]]:
            table = self._tables[0]
            return await table.sample_row_keys(
                operation_timeout=timeout_s, attempt_timeout=timeout_s, retryable_errors=()
            )

        return await self._call(call, self._scan, repeatable=True)

    # Writes

    async def write(self, key: bytes, mutations: list[Mutation]) -> None:
        """All of them or none, with the other rows of this turn of the loop; they may be applied
        twice."""
        with self._counted():
            await self._writes.ask((key, mutations))

    async def write_many(self, rows: Sequence[tuple[bytes, list[Mutation]]]) -> None:
        """Each row all or nothing, in any order."""
        for start in range(0, len(rows), ENTRIES_PER_CALL):
            results = await self._write_rows(rows[start : start + ENTRIES_PER_CALL], self._scan)
            for result in results:
                if result is not None:
                    raise result

    async def _send_writes(
        self, asked: Mapping[bytes, list[Mutation]]
    ) -> Mapping[bytes, WaystationError | None]:
        if len(asked) == 1:
            ((key, mutations),) = asked.items()

            async def call(rpc: Rpc, timeout_s: float) -> None:
                await rpc.mutate_row(key, mutations, timeout_s)

            await self._call(call, self._point, repeatable=True)
            return dict.fromkeys(asked)
        results = await self._write_rows(list(asked.items()), self._point)
        return dict(zip(asked, results, strict=True))

    async def _write_rows(
        self, rows: Sequence[tuple[bytes, list[Mutation]]], limits: Limits
    ) -> list[WaystationError | None]:
        """Why each row was not written. Only rows that failed for a passing reason are sent again:
        a row that is written may be delivered and acked at once, and must not come back."""
        results: list[Exception | None] = [None] * len(rows)
        left = list(range(len(rows)))

        async def call(rpc: Rpc, timeout_s: float) -> None:
            nonlocal left
            found = await rpc.mutate_rows([rows[number] for number in left], timeout_s)
            for number, result in zip(left, found, strict=True):
                results[number] = result
            left = [number for number in left if isinstance(results[number], _TROUBLE)]
            for number in left[:1]:
                raise cast(Exception, results[number])

        try:
            await self._call(call, limits, repeatable=True)
        except WaystationError as exc:
            for number in left:
                results[number] = exc
        return [None if result is None else self._refusal(result) for result in results]

    def _refusal(self, result: Exception) -> WaystationError:
        if isinstance(result, WaystationError):
            return result
        return self._store_error(result) or StoreUnavailableError(str(result))

    async def check(
        self,
        key: bytes,
        predicate: RowFilter,
        *,
        then: list[Mutation] | None = None,
        otherwise: list[Mutation] | None = None,
        repeatable: bool = False,
    ) -> bool:
        """Whether the row had what the predicate asks for; one of the two was then applied.
        Repeatable for a caller that reads the row again when it was changed: the change may be
        its own."""

        async def call(rpc: Rpc, timeout_s: float) -> bool:
            return await rpc.check_and_mutate_row(
                key, predicate, then or (), otherwise or (), timeout_s
            )

        return await self._call(call, self._point, repeatable=repeatable)

    async def close(self) -> None:
        for table in self._tables:
            await table.close()
        for client in self._clients:
            await client.close()

    # Inside

    async def _call(
        self,
        call: Callable[[Rpc, float], Awaitable[T]],
        limits: Limits,
        *,
        repeatable: bool,
        guarded: bool = True,
    ) -> T:
        if guarded and (wait_s := self._breaker.wait_s()):
            self.stats.refused += 1
            raise StoreUnavailableError(
                f"Bigtable failed too often in a row; it is asked again in {wait_s:.0f} s"
            )
        await self._enter()
        try:
            result = await self._attempts(call, limits, repeatable)
        except Exception as exc:
            self.stats.failures += 1
            if guarded and isinstance(exc, _TROUBLE):
                self._breaker.failed()
                self.stats.breaker_opened = self._breaker.opened
            error = self._store_error(exc)
            if error is None:
                raise
            raise error from exc
        finally:
            self._leave()
        if guarded:
            self._breaker.succeeded()
        return result

    async def _attempts(
        self, call: Callable[[Rpc, float], Awaitable[T]], limits: Limits, repeatable: bool
    ) -> T:
        give_up_mono = self._clock.mono() + limits.total_s
        retries = 0
        while True:
            timeout_s = min(limits.attempt_s, give_up_mono - self._clock.mono())
            self.stats.round_trips += 1
            try:
                return await call(next(self._turns), timeout_s)
            except Exception as exc:
                again = isinstance(exc, _PASSING) if repeatable else _not_sent(exc)
                pause_s = _PAUSE_S * 2**retries * random.uniform(0.5, 1.5)
                late = self._clock.mono() + pause_s >= give_up_mono
                if not again or late or retries >= self._url.retry_count:
                    raise
                await asyncio.sleep(pause_s)
                if self._clock.mono() >= give_up_mono:
                    raise  # a busy process wakes late, and the driver takes no time that is over
            retries += 1
            self.stats.retries += 1

    @contextlib.contextmanager
    def _counted(self) -> Generator[None]:
        """A caller whose request goes out in a batch; as many may wait as for calls."""
        if self._waiting >= self._waiting_max:
            self.stats.refused += 1
            raise too_many_waiting(self._queue_max, "Bigtable")
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    async def _enter(self) -> None:
        if self._free:
            self._free -= 1
            return
        if len(self._queue) >= self._queue_max:
            self.stats.refused += 1
            raise too_many_waiting(self._queue_max, "Bigtable")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
        except (TimeoutError, asyncio.CancelledError) as exc:
            if turn.done() and not turn.cancelled():
                self._leave()  # its turn came at the same moment: pass it on
            if isinstance(exc, TimeoutError):
                raise BusyError("an operation waited too long for its turn at Bigtable") from exc
            raise

    def _leave(self) -> None:
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def _store_error(self, cause: BaseException) -> StoreUnavailableError | None:
        """What an exception of the driver means to whoever asked; None: it is not the driver's."""
        if isinstance(cause, NotFound) or "unknown family" in str(cause):
            return StoreUnavailableError(
                f"{self._url.table_name} is not there, or a family of it is missing: run"
                f" `waystation store init` ({cause})"
            )
        if isinstance(cause, PermissionDenied | Unauthenticated | GoogleAuthError):
            return StoreUnavailableError(f"Bigtable does not let us in: {cause}")
        if isinstance(cause, GoogleAPIError | TimeoutError | OSError):
            return StoreUnavailableError(str(cause) or type(cause).__name__)
        return None


def _not_sent(exc: BaseException) -> bool:
    """No connection was there to carry it."""
    return isinstance(exc, ServiceUnavailable) and _NOT_SENT in str(exc)


def _limits(
    attempt_s: int | None, total_s: int | None, patience_s: float, once: int, in_all: int
) -> Limits:
    attempt = attempt_s or patience_s * once
    return Limits(attempt, max(total_s or patience_s * in_all, attempt))
