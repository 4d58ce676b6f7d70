"""Connections to one PostgreSQL server, opened on demand; each runs one operation at a time.

Rule 1: at most `connections_max` connections, and at most `queue_max` operations that wait for one;
        one more is refused with `BusyError`.
Rule 2: an operation, including its wait, may take `operation_timeout_s`. Then its connection is
        cut. Whether a change took effect is unknown, so it is not repeated. A read whose connection
        broke is repeated once, because a restart of the server breaks all connections.
Rule 3: after a failed attempt to connect, operations fail at once for a `ReconnectPause`.
Rule 4: a statement that the server rolled back because of a deadlock is sent again.

`store_error` alone maps exceptions of the driver to errors of the store.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import asyncpg  # pyright: ignore[reportMissingTypeStubs]
import msgspec

from waystation.base.errors import StoreFullError, StoreUnavailableError
from waystation.base.tasks import in_task
from waystation.storage.calls import ReconnectPause, too_many_waiting
from waystation.storage.postgres.layout import Row
from waystation.storage.postgres.url import PostgresUrl
from waystation.storage.settings import Store

UNDONE_TRIES_MAX = 5
CLOSE_TIMEOUT_S = 1.0

Connection = Any  # the driver has no types
_connect: Callable[..., Coroutine[Any, Any, Connection]] = vars(asyncpg)["connect"]

DriverError: tuple[type[Exception], ...] = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,  # a timeout is one
)
# A constraint refused a row; the rows of the group are then sent one by one.
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
    failures: int = 0  # failed connection attempts, and connections that broke during an operation
    refused: int = 0
    undone: int = 0  # statements that the server rolled back and that were repeated
    undecodable: int = 0  # invalid rows that were skipped


def store_error(exc: Exception) -> StoreUnavailableError:
    """Maps an exception of the driver to an error of the store."""
    if isinstance(exc, _Full):
        return StoreFullError("PostgreSQL has no room left")
    if isinstance(exc, CollisionError):
        # Its text contains values of the row.
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


async def close_connection(connection: Connection) -> None:
    """Close the connection; wait up to CLOSE_TIMEOUT_S for the server."""
    with contextlib.suppress(*DriverError):
        await connection.close(timeout=CLOSE_TIMEOUT_S)


class Session:
    """Runs `make_ready` on the first connection before any operation; its errors are raised by
    that operation."""

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
        self._pause = ReconnectPause()
        self._closed = False
        self._make_ready = make_ready
        self._ready = False

    async def read(self, statement: str, *args: object) -> list[Row]:
        """The rows of a read-only statement."""
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
        """Like `change`, but None if a constraint refused a row; then nothing was changed."""
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
            await close_connection(connection)
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
            raise too_many_waiting(self._settings.queue_max, "PostgreSQL")
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
        if self._loop.time() < self._pause.until_mono:
            raise ConnectionError(self._pause.why)
        await in_task()  # the driver's own timeout needs a task
        try:
            connection = await connect(self._url, self._settings)
        except DriverError as exc:
            self.stats.failures += 1
            why = f"{self._url.address} cannot be reached: {str(exc) or type(exc).__name__}"
            self._pause.failed(why, self._loop.time())
            raise ConnectionError(why) from exc
        if not self._ready:
            try:
                await self._make_ready(connection)
            except BaseException:
                connection.terminate()
                raise
            self._ready = True
        self._pause.connected()
        self._all.add(connection)
        return connection

    async def _ask(
        self,
        connection: Connection,
        statement: str,
        args: tuple[object, ...],
        ends_at_mono: float,
    ) -> list[Row]:
        # Cutting the connection ends the wait; a cancellation would make the driver send a cancel
        # request to the silent server.
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
