"""Runs commands and scripts on one Redis server, and maps the driver's exceptions.

`store_error` alone turns exceptions of the driver into the store's own.
"""

from collections.abc import Sequence
from typing import Protocol, cast

from redis.exceptions import (
    AskError,
    MovedError,
    NoScriptError,
    OutOfMemoryError,
    RedisError,
    ResponseError,
)

from waystation.base.errors import StoreFullError, StoreUnavailableError
from waystation.storage.redis.connection import (
    Argument,
    Command,
    RedisConnection,
    RedisStats,
    Reply,
)
from waystation.storage.redis.scripts import Script
from waystation.storage.redis.url import Address, RedisUrl
from waystation.storage.settings import Store


class Session(Protocol):
    """Runs commands; `key` selects the server of a cluster."""

    stats: RedisStats

    async def run(self, key: str, commands: Sequence[Command]) -> list[Reply]:
        """The answers to all commands, in one round trip; raises the first error."""
        ...

    async def run_script(self, script: Script, keys: Sequence[str], *args: Argument) -> Reply: ...

    async def run_everywhere(self, command: Command) -> list[Reply]:
        """Runs the command on every master."""
        ...

    async def server_of(self, key: str) -> Address:
        """The master of the key."""
        ...

    async def close(self) -> None: ...


def store_error(exc: RedisError) -> StoreUnavailableError:
    """Maps an exception of the driver to an error of the store."""
    if isinstance(exc, OutOfMemoryError) or "OOM " in str(exc):
        return StoreFullError("Redis has no memory left (maxmemory)")
    return StoreUnavailableError(str(exc) or type(exc).__name__)


def script_call(script: Script, keys: Sequence[str], args: Sequence[Argument]) -> Command:
    return ("EVALSHA", script.sha, len(keys), *keys, *args)


def script_whole(script: Script, call: Command) -> Command:
    """The same call with the script's text, for a server that does not know its hash."""
    return ("EVAL", script.text, *call[2:])


def first_error(replies: Sequence[Reply]) -> ResponseError | None:
    for reply in replies:
        if isinstance(reply, ResponseError):
            return reply
    return None


def new_connection(
    url: RedisUrl, address: Address, settings: Store, stats: RedisStats
) -> RedisConnection:
    return RedisConnection(
        url,
        address,
        connect_timeout_s=settings.connect_timeout_s,
        operation_timeout_s=settings.operation_timeout_s,
        queue_max=settings.queue_max,
        stats=stats,
    )


class OneServer:
    """One Redis server, or a proxy, at one address."""

    def __init__(self, url: RedisUrl, settings: Store) -> None:
        self.stats = RedisStats()
        self._connection = new_connection(url, url.addresses[0], settings, self.stats)
        self._address = url.addresses[0]

    async def run(self, key: str, commands: Sequence[Command]) -> list[Reply]:
        try:
            replies = await self._connection.send(commands)
            if (error := first_error(replies)) is not None:
                raise error
        except RedisError as exc:
            raise store_error(exc) from exc
        return replies

    async def run_script(self, script: Script, keys: Sequence[str], *args: Argument) -> Reply:
        call = script_call(script, keys, args)
        try:
            reply = (await self._connection.send((call,)))[0]
            if isinstance(reply, NoScriptError):
                reply = (await self._connection.send((script_whole(script, call),)))[0]
            if isinstance(reply, ResponseError):
                raise reply
        except RedisError as exc:
            raise store_error(exc) from exc
        return reply

    async def run_everywhere(self, command: Command) -> list[Reply]:
        return await self.run("", (command,))

    async def server_of(self, key: str) -> Address:
        return self._address

    async def close(self) -> None:
        await self._connection.close()


def moved_to(reply: Reply) -> Address | None:
    """The address in a `MOVED` or `ASK` error."""
    if isinstance(reply, MovedError | AskError):
        host, port = cast(tuple[str, int], vars(reply)["node_addr"])
        return Address(host, port)
    return None
