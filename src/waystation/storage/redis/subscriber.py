"""Subscribes to sharded Redis channels, with one connection per server.

Rule 1: `subscribe` returns after the server's confirmation, so no later message is missed.
Rule 2: a broken connection is replaced and its channels are subscribed again; `on_gap` is called
        for them, because messages published in between are lost.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from redis.exceptions import RedisError

from waystation.base.tasks import kept
from waystation.presence.errors import PresenceStoreError
from waystation.storage.redis.connection import PlainConnection, TlsConnection, driver_connection
from waystation.storage.redis.url import Address, RedisUrl

PAUSE_FIRST_S: Final = 0.05
PAUSE_LAST_S: Final = 1.0

Locate = Callable[[str], Awaitable[Address]]
Hear = Callable[[str, bytes], None]


class _ServerConnection:
    """The connection to one server."""

    def __init__(self, bell: "Subscriber", address: Address) -> None:
        self._subscriber = bell
        self.address = address
        self.channels: dict[str, asyncio.Future[None]] = {}
        self._connection: PlainConnection | TlsConnection | None = None
        self._broke = False  # at least once: publications were lost
        self._task = asyncio.create_task(kept("bell", self._carry, bell.failed), name="bell")

    def say(self, *words: str) -> None:
        connection = self._connection
        if connection is not None:
            self._subscriber.spawn(self._send(connection, words))

    async def _send(self, connection: "PlainConnection | TlsConnection", words: Any) -> None:
        with contextlib.suppress(RedisError, OSError):
            await connection.send_command(*words, check_health=False)

    async def _carry(self) -> None:
        pause_s = PAUSE_FIRST_S
        while True:
            connection = driver_connection(
                self._subscriber.url, self.address, self._subscriber.timeout_s
            )
            try:
                async with asyncio.timeout(self._subscriber.timeout_s):
                    await connection.connect()
                self._connection = connection
                for channel in self.channels:
                    await connection.send_command("SSUBSCRIBE", channel, check_health=False)
                if self._broke:
                    self._subscriber.on_gap(list(self.channels))
                pause_s = PAUSE_FIRST_S
                await self._listen(connection)
            except (RedisError, OSError):  # a timeout is an OSError
                pass
            finally:
                self._connection = None
                connection.abort()
                await connection.disconnect(nowait=True)
                self._broke = True
                self._fail("the connection to Redis broke")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_LAST_S)

    async def _listen(self, connection: "PlainConnection | TlsConnection") -> None:
        read = cast(Callable[..., Awaitable[Any]], connection.read_response)
        while True:
            reply: Any = await read(timeout=None, disconnect_on_error=False)
            kind, channel = reply[0], reply[1].decode()
            if kind == b"smessage":
                self._subscriber.hear(channel, reply[2])
            elif kind == b"ssubscribe":
                confirmed = self.channels.get(channel)
                if confirmed is not None and not confirmed.done():
                    confirmed.set_result(None)

    def _fail(self, why: str) -> None:
        for channel, confirmed in list(self.channels.items()):
            if not confirmed.done():
                del self.channels[channel]
                confirmed.set_exception(PresenceStoreError(why))

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._fail("the store is closed")


class Subscriber:
    def __init__(
        self,
        url: RedisUrl,
        locate: Locate,
        *,
        hear: Hear,
        on_gap: Callable[[list[str]], None],
        timeout_s: float,
    ) -> None:
        self.url = url
        self._locate = locate
        self.hear = hear
        self.on_gap = on_gap
        self.timeout_s = timeout_s
        self._lines: dict[Address, _ServerConnection] = {}
        self._where: dict[str, _ServerConnection] = {}
        self._sending: set[asyncio.Task[None]] = set()

    async def subscribe(self, channel: str) -> None:
        """Raises `PresenceStoreError`."""
        await asyncio.sleep(0)  # a timeout needs a task, and an eagerly started coroutine has none
        line = self._where.get(channel)
        if line is None or channel not in line.channels:
            address = await self._locate(channel)
            line = self._lines.get(address)
            if line is None:
                line = self._lines[address] = _ServerConnection(self, address)
            if channel not in line.channels:
                line.channels[channel] = asyncio.get_running_loop().create_future()
                line.channels[channel].add_done_callback(_retrieve_exception)
                line.say("SSUBSCRIBE", channel)
            self._where[channel] = line
        confirmed = line.channels[channel]
        try:
            async with asyncio.timeout(self.timeout_s):
                await asyncio.shield(confirmed)
        except TimeoutError:
            raise PresenceStoreError("Redis did not confirm a subscription in time") from None

    def unsubscribe(self, channel: str) -> None:
        line = self._where.pop(channel, None)
        if line is not None and line.channels.pop(channel, None) is not None:
            line.say("SUNSUBSCRIBE", channel)

    @staticmethod
    def failed(name: str, error: BaseException) -> None:
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"error in {name}", "exception": error}
        )

    def spawn(self, coro: Any) -> None:
        task = asyncio.create_task(coro)
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def close(self) -> None:
        for line in self._lines.values():
            await line.close()
        for task in list(self._sending):
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)


def _retrieve_exception(confirmed: "asyncio.Future[None]") -> None:
    """Avoids asyncio's warning about an unretrieved exception if the caller was cancelled."""
    if not confirmed.cancelled():
        confirmed.exception()
