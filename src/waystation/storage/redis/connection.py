"""One pipelined connection to one Redis server: the commands of a loop turn share one write.

Rule 1: the next batch is sent without waiting for answers; answers come in order.
Rule 2: at most `queue_max` operations are in progress; one more is refused with `BusyError`.
Rule 3: if the server does not answer the oldest command within `operation_timeout_s`, the
        connection is cut and all pending operations fail. Whether their commands took effect is
        unknown, so none is repeated.
Rule 4: after a failed attempt to connect, calls fail at once for a `ReconnectPause`.
"""

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import hiredis
import msgspec
from redis.asyncio.connection import Connection, SSLConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, RedisError, ResponseError

from waystation.storage.calls import ReconnectPause, too_many_waiting
from waystation.storage.redis.url import Address, RedisUrl

Argument = str | bytes | int
Command = tuple[Argument, ...]
Reply = Any  # as the driver returns it: bytes, int, None, lists of them, or a ResponseError


# Implemented in C, practically untyped.
_pack = cast(Callable[[Command], bytes], hiredis.pack_command)  # pyright: ignore[reportUnknownMemberType]


class RedisStats(msgspec.Struct):
    """Counters, shared by all connections of a store."""

    commands: int = 0
    round_trips: int = 0  # batches, each sent with one write
    failures: int = 0  # failed connection attempts, and connections lost with answers pending
    refused: int = 0
    undecodable: int = 0


class PlainConnection(Connection):
    def abort(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()


class TlsConnection(SSLConnection):
    def abort(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()


class _Operation(msgspec.Struct, gc=False):
    packed: bytes
    count: int  # commands, which is the number of answers
    answered: "asyncio.Future[list[Reply]]"
    replies: list[Reply]
    sent_mono: float = 0.0


class RedisConnection:
    def __init__(
        self,
        url: RedisUrl,
        address: Address,
        *,
        connect_timeout_s: float,
        operation_timeout_s: float,
        queue_max: int,
        stats: RedisStats,
    ) -> None:
        self.address = address
        self._url = url
        self._connect_timeout_s = url.create_timeout_s or connect_timeout_s
        self._operation_timeout_s = operation_timeout_s
        self._queue_max = queue_max
        self._stats = stats
        self._loop = asyncio.get_running_loop()
        self._queue: list[_Operation] = []
        self._sent: deque[_Operation] = deque()
        self._wake = asyncio.Event()
        self._carrier: asyncio.Task[None] | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._stalled: asyncio.Event = asyncio.Event()
        self._pause = ReconnectPause()
        self._closed = False

    def send(self, commands: Sequence[Command]) -> "asyncio.Future[list[Reply]]":
        """The answers to `commands`, in order; an error of the server is an answer too.

        Raises for commands that cannot be packed, without effect on other callers."""
        if self._closed:
            raise RedisConnectionError("the store is closed")
        if len(self._queue) + len(self._sent) >= self._queue_max:
            self._stats.refused += 1
            raise too_many_waiting(self._queue_max, "Redis")
        if self._loop.time() < self._pause.until_mono:
            raise RedisConnectionError(self._pause.why)
        packed = b"".join(map(_pack, commands))
        answered: asyncio.Future[list[Reply]] = self._loop.create_future()
        self._queue.append(_Operation(packed, len(commands), answered, []))
        if self._carrier is None or self._carrier.done():
            self._carrier = self._loop.create_task(self._carry())
        self._wake.set()
        return answered

    async def close(self) -> None:
        self._closed = True
        carrier, self._carrier = self._carrier, None
        if carrier is not None:
            carrier.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await carrier
        self._fail_all("the store is closed")

    # The connection task: connects for the first operation, writes, reads, reconnects

    async def _carry(self) -> None:
        while True:
            await self._wake.wait()
            connection = await self._connect()
            if connection is not None:
                await self._serve(connection)

    async def _connect(self) -> "PlainConnection | TlsConnection | None":
        connection = self._new_connection()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await connection.connect()
        except (RedisError, OSError) as exc:  # a timeout is an OSError
            connection.abort()
            await connection.disconnect(nowait=True)
            reason = str(exc) or f"no answer within {self._connect_timeout_s:g} s"
            why = f"Redis at {self.address} cannot be reached: {reason}"
            self._pause.failed(why, self._loop.time())
            self._stats.failures += 1
            self._fail_all(why)
            return None
        self._pause.connected()
        return connection

    async def _serve(self, connection: "PlainConnection | TlsConnection") -> None:
        self._stalled.clear()
        parts: list[asyncio.Task[Any]] = [
            self._loop.create_task(self._write(connection)),
            self._loop.create_task(self._read(connection)),
            self._loop.create_task(self._stalled.wait()),
        ]
        why = "the store is closed"
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            why = self._ending(parts)
        finally:
            for part in parts:
                part.cancel()
            connection.abort()  # drops its buffer: those commands must not arrive later
            await asyncio.gather(*parts, return_exceptions=True)
            await connection.disconnect(nowait=True)
            if self._sent:
                self._stats.failures += 1
                self._fail(self._sent, f"the connection to Redis at {self.address} broke: {why}")

    def _ending(self, parts: "list[asyncio.Task[Any]]") -> str:
        for part in parts:
            if part.done() and (error := part.exception()) is not None:
                return str(error)
        return f"no answer within {self._operation_timeout_s:g} s"

    async def _write(self, connection: "PlainConnection | TlsConnection") -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch, self._queue = self._queue, []
            packed: list[bytes] = []
            mono = self._loop.time()
            for operation in batch:
                if operation.answered.done():
                    continue  # cancelled before it was sent
                packed.append(operation.packed)
                operation.packed = b""
                operation.sent_mono = mono
                self._sent.append(operation)
                self._stats.commands += operation.count
            if not packed:
                continue
            self._stats.round_trips += 1
            if self._watch is None:
                self._watch_for(self._operation_timeout_s)
            await connection.send_packed_command([b"".join(packed)], check_health=False)

    async def _read(self, connection: "PlainConnection | TlsConnection") -> None:
        sent = self._sent
        read = cast(Callable[..., Awaitable[Reply]], connection.read_response)
        while True:
            try:
                reply = await read(timeout=math.inf, disconnect_on_error=False)
            except ResponseError as exc:
                reply = exc
            if not sent:
                raise RedisConnectionError("an answer without a command")
            operation = sent[0]
            operation.replies.append(reply)
            if len(operation.replies) == operation.count:
                sent.popleft()
                if not operation.answered.done():
                    operation.answered.set_result(operation.replies)
            if isinstance(reply, ReadOnlyError):
                raise RedisConnectionError("the server has become a replica")  # find the new master

    def _watch_for(self, seconds: float) -> None:
        self._watch = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._watch = None
        if not self._sent:
            return
        left_s = self._sent[0].sent_mono + self._operation_timeout_s - self._loop.time()
        if left_s <= 0:
            self._stalled.set()
        else:
            self._watch_for(left_s)

    def _fail_all(self, why: str) -> None:
        self._wake.clear()
        self._fail(self._sent, why)
        waiting, self._queue = self._queue, []
        self._fail(deque(waiting), why)
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _fail(self, operations: "deque[_Operation]", why: str) -> None:
        while operations:
            operation = operations.popleft()
            if not operation.answered.done():
                operation.answered.set_exception(RedisConnectionError(why))

    def _new_connection(self) -> "PlainConnection | TlsConnection":
        return driver_connection(self._url, self.address, self._connect_timeout_s)


def driver_connection(
    url: RedisUrl, address: Address, connect_timeout_s: float
) -> "PlainConnection | TlsConnection":
    """An unconnected connection of the driver, for commands or for subscriptions."""
    shared: dict[str, Any] = {
        "host": address.host,
        "port": address.port,
        "db": url.db,
        "username": url.username or None,
        "password": url.password or None,
        "protocol": 2,
        "driver_info": None,
        "socket_timeout": None,
        "socket_connect_timeout": connect_timeout_s,
        "socket_keepalive": True,
    }
    if not url.tls:
        return PlainConnection(**shared)
    return TlsConnection(
        **shared,
        ssl_ca_certs=url.ssl_ca_certs or None,
        ssl_certfile=url.ssl_certfile or None,
        ssl_keyfile=url.ssl_keyfile or None,
        ssl_check_hostname=url.ssl_check_hostname,
    )
