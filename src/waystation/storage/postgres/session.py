"""Connections to one PostgreSQL: one operation each at a time, made when they are needed.

Rule 1: at most `connections_max` connections, and at most `queue_max` operations that wait for one;
        one more is refused with `BusyError`.
Rule 2: an operation has `operation_timeout_s`, its wait included. Then its connection is cut, and
        whether it took effect is unknown: a change is not tried again. A read whose connection
        broke is, once, because a server that was restarted has broken all of them.
Rule 3: after a failed attempt to connect, operations fail at once until the next attempt is due;
        the pause grows from PAUSE_FIRST_S to PAUSE_LAST_S. The first one after it tries again.
Rule 4: two statements that wait for each other end with one of them undone; it is done again.

The driver's exceptions become the store's own in `store_error` and nowhere else.
"""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import asyncpg  # pyright: ignore[reportMissingTypeStubs]
import msgspec

from waystation.base.errors import BusyError
from waystation.base.tasks import in_task
from waystation.push.errors import StoreFullError, StoreUnavailableError
from waystation.storage.postgres.layout import Row
from waystation.storage.postgres.url import PostgresUrl
from waystation.storage.settings import Store

PAUSE_FIRST_S = 0.1
PAUSE_LAST_S = 2.0
UNDONE_TRIES_MAX = 5
PARTING_S = 1.0

Connection = Any  # the driver has no types
_connect: Callable[..., Coroutine[Any, Any, Connection]] = vars(asyncpg)["connect"]

DriverError: tuple[type[Exception], ...] = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,  # a timeout is one
)
# A row stands in the way of another; the group it came in is tried one by one.
CollisionError: type[Exception] = asyncpg.IntegrityConstraintViolationError
_Undone: tuple[type[Exception], ...] = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
)
_Broken: tuple[type[Exception], ...] = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.InterfaceError,
    ConnectionResetError,
)
_Full: tuple[type[Exception], ...] = (asyncpg.DiskFullError, asyncpg.OutOfMemoryError)


class SessionStats(msgspec.Struct):
    """Counters of one store."""

    round_trips: int = 0
    failures: int = 0  # connections that could not be made, or broke under an operation
    refused: int = 0
    undone: int = 0  # statements that the server took back and that were sent again
    undecodable: int = 0  # rows that were passed over


def store_error(exc: Exception) -> StoreUnavailableError:
    """What an exception of the driver means to whoever asked the store."""
    if isinstance(exc, _Full):
        return StoreFullError("PostgreSQL has no room left")
    if isinstance(exc, CollisionError):
        # Its text would name the row.
        return StoreUnavailableError(f"PostgreSQL refuses a row: {type(exc).__name__}")
    return StoreUnavailableError(f"PostgreSQL: {str(exc) or type(exc).__name__}")


async def connect(url: PostgresUrl, settings: Store) -> Connection:
    return await _connect(
        url.dsn,
        timeout=url.connect_timeout_s or settings.connect_timeout_s,
        statement_cache_size=url.statement_cache_size,
        max_cached_statement_lifetime=0,
        server_settings={"application_name": url.application_name},
    )


async def part(connection: Connection) -> None:
    """Say good-bye, but do not wait for an answer for long."""
    with contextlib.suppress(*DriverError):
        await connection.close(timeout=PARTING_S)


class Session:
    """`make_ready` sees the first connection before anybody else; what it raises is the answer."""

    def __init__(
        self,
        url: PostgresUrl,
        settings: Store,
        make_ready: Callable[[Connection], Awaitable[None]],
    ) -> None:
        self.stats = SessionStats()
        self._url = url
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._slots = asyncio.Semaphore(settings.connections_max)
        self._queued = 0
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._paused_until_mono = -math.inf
        self._pause_s = 0.0
        self._why = ""
        self._closed = False
        self._make_ready = make_ready
        self._ready = False

    async def read(self, statement: str, *args: object) -> list[Row]:
        """The rows of a statement that changes nothing."""
        try:
            try:
                return await self._run(statement, args)
            except _Broken:
                return await self._run(statement, args)
        except DriverError as exc:
            raise store_error(exc) from exc

    async def change(self, statement: str, *args: object) -> list[Row]:
        try:
            return await self._run(statement, args)
        except DriverError as exc:
            raise store_error(exc) from exc

    async def change_or_collide(self, statement: str, *args: object) -> list[Row] | None:
        """As `change`, but None when a row stood in the way and nothing was changed."""
        try:
            return await self._run(statement, args)
        except CollisionError:
            return None
        except DriverError as exc:
            raise store_error(exc) from exc

    async def close(self) -> None:
        self._closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            await part(connection)
        for connection in list(self._all):
            connection.terminate()
        self._all.clear()

    # Inside

    async def _run(self, statement: str, args: tuple[object, ...]) -> list[Row]:
        if self._closed:
            raise StoreUnavailableError("the store is closed")
        ends_at_mono = self._loop.time() + self._settings.operation_timeout_s
        await self._take_slot()
        try:
            connection = await self._connection()
            for tries_left in reversed(range(UNDONE_TRIES_MAX)):
                try:
                    return await self._ask(connection, statement, args, ends_at_mono)
                except _Undone:
                    if not tries_left:
                        raise
                    self.stats.undone += 1
            raise AssertionError("the last try returns or raises")
        finally:
            self._slots.release()

    async def _take_slot(self) -> None:
        if not self._slots.locked():
            await self._slots.acquire()
            return
        if self._queued >= self._settings.queue_max:
            self.stats.refused += 1
            raise BusyError(
                f"store.queue_max {self._settings.queue_max} operations wait for PostgreSQL"
            )
        self._queued += 1
        try:
            await in_task()
            async with asyncio.timeout(self._settings.operation_timeout_s):
                await self._slots.acquire()
        except TimeoutError:
            raise TimeoutError(
                f"no connection within {self._settings.operation_timeout_s:g} s"
            ) from None
        finally:
            self._queued -= 1

    async def _connection(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
            self._all.discard(connection)
        if self._loop.time() < self._paused_until_mono:
            raise ConnectionError(self._why)
        await in_task()  # the driver has a timeout of its own
        try:
            connection = await connect(self._url, self._settings)
        except DriverError as exc:
            self.stats.failures += 1
            self._pause_s = min(max(2 * self._pause_s, PAUSE_FIRST_S), PAUSE_LAST_S)
            self._paused_until_mono = self._loop.time() + self._pause_s
            self._why = f"{self._url.address} cannot be reached: {str(exc) or type(exc).__name__}"
            raise ConnectionError(self._why) from exc
        if not self._ready:
            try:
                await self._make_ready(connection)
            except BaseException:
                connection.terminate()
                raise
            self._ready = True
        self._pause_s = 0.0
        self._all.add(connection)
        return connection

    async def _ask(
        self,
        connection: Connection,
        statement: str,
        args: tuple[object, ...],
        ends_at_mono: float,
    ) -> list[Row]:
        # Cutting it wakes us; cancelling would make the driver ask the silent server to cancel.
        cut = self._loop.call_at(ends_at_mono, connection.terminate)
        self.stats.round_trips += 1
        healthy = False
        try:
            rows: list[Row] = await connection.fetch(statement, *args)
            healthy = True
            return rows
        except DriverError as exc:
            if self._loop.time() >= ends_at_mono:
                timeout_s = self._settings.operation_timeout_s
                raise TimeoutError(f"no answer within {timeout_s:g} s") from exc
            healthy = isinstance(exc, asyncpg.PostgresError) and not connection.is_closed()
            raise
        finally:
            cut.cancel()
            if healthy and not self._closed:
                self._idle.append(connection)
            else:
                self.stats.failures += not self._closed
                self._all.discard(connection)
                connection.terminate()
