"""Routes commands in a Redis Cluster, and follows slots that move.

Rule 1: a command goes to the master of its key's slot; all commands of one call have one slot.
Rule 2: `MOVED` and `ASK` mean that the command was not executed, so the call is repeated at the
        node they name. After `MOVED` the slot map is read again, once for all concurrent calls.
Rule 3: a node that does not answer makes the map stale: the next call reads it from any other node.
"""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from redis.crc import key_slot
from redis.exceptions import AskError, MovedError, NoScriptError, RedisError, ResponseError

from waystation.storage.redis.connection import (
    Argument,
    Command,
    RedisConnection,
    RedisStats,
    Reply,
)
from waystation.storage.redis.scripts import Script
from waystation.storage.redis.session import (
    first_error,
    moved_to,
    new_connection,
    script_call,
    script_whole,
    store_error,
)
from waystation.storage.redis.url import Address, RedisUrl
from waystation.storage.settings import Store

HOPS_MAX = 5


class RedisCluster:
    def __init__(self, url: RedisUrl, settings: Store) -> None:
        self.stats = RedisStats()
        self._url = url
        self._settings = settings
        self._connections: dict[Address, RedisConnection] = {}
        self._masters: list[tuple[int, int, Address]] = []  # first slot, last slot, their master
        self._by_slot: dict[int, Address] = {}
        self._doubtful = True
        self._reading: asyncio.Task[None] | None = None

    async def run(self, key: str, commands: Sequence[Command]) -> list[Reply]:
        try:
            replies = await self._ask(key, commands)
            if (error := first_error(replies)) is not None:
                raise error
        except RedisError as exc:
            raise store_error(exc) from exc
        return replies

    async def run_script(self, script: Script, keys: Sequence[str], *args: Argument) -> Reply:
        call = script_call(script, keys, args)
        try:
            reply = (await self._ask(keys[0], (call,)))[0]
            if isinstance(reply, NoScriptError):
                reply = (await self._ask(keys[0], (script_whole(script, call),)))[0]
            if isinstance(reply, ResponseError):
                raise reply
        except RedisError as exc:
            raise store_error(exc) from exc
        return reply

    async def run_everywhere(self, command: Command) -> list[Reply]:
        try:
            await self._see_map()
            addresses = sorted({address for _, _, address in self._masters}, key=str)
            answers = await asyncio.gather(*(self._tell(node, command) for node in addresses))
            replies = [reply for answer in answers for reply in answer]
            if (error := first_error(replies)) is not None:
                raise error
        except RedisError as exc:
            self._doubtful = True
            raise store_error(exc) from exc
        return replies

    async def _tell(self, address: Address, command: Command) -> list[Reply]:
        return await self._connection(address).send((command,))

    async def server_of(self, key: str) -> Address:
        """The master of the key, for subscriptions."""
        try:
            await self._see_map()
            return self._master_of(key_slot(key.encode()))
        except RedisError as exc:
            raise store_error(exc) from exc

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        for link in self._connections.values():
            await link.close()

    async def _ask(self, key: str, commands: Sequence[Command]) -> list[Reply]:
        await self._see_map()
        address = self._master_of(key_slot(key.encode()))
        replies: list[Reply] = [None] * len(commands)
        open_ = list(range(len(commands)))  # of a moving slot, some keys are at the new master
        asking: tuple[Command, ...] = ()
        for _ in range(HOPS_MAX):
            try:
                # ASKING applies to one command, so each needs its own.
                sent = [part for n in open_ for part in (*asking, commands[n])]
                answers = await self._connection(address).send(sent)
            except RedisError:
                self._doubtful = True
                raise
            for n, answer in zip(open_, answers[1::2] if asking else answers, strict=True):
                replies[n] = answer
            open_ = [n for n in open_ if moved_to(replies[n]) is not None]
            if not open_:
                return replies
            error = replies[open_[0]]
            address = moved_to(error) or address
            asking = (("ASKING",),) if isinstance(error, AskError) else ()
            if isinstance(error, MovedError):
                self._doubtful = True
        raise RedisError("the key's slot moved again at every try")

    def _connection(self, address: Address) -> RedisConnection:
        link = self._connections.get(address)
        if link is None:
            link = new_connection(self._url, address, self._settings, self.stats)
            self._connections[address] = link
        return link

    def _master_of(self, slot: int) -> Address:
        address = self._by_slot.get(slot)
        if address is None:
            for first, last, master in self._masters:
                if first <= slot <= last:
                    self._by_slot[slot] = master
                    return master
            self._doubtful = True
            raise RedisError(f"no node of the cluster serves slot {slot}")
        return address

    # The map

    async def _see_map(self) -> None:
        if not self._doubtful and self._masters:
            return
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_map())
            self._reading.add_done_callback(_retrieve_exception)
        # A cancelled caller must not cancel the read of the others.
        await asyncio.shield(self._reading)

    async def _read_map(self) -> None:
        known = {address for _, _, address in self._masters}
        candidates = random.sample(sorted(known, key=str), len(known)) + [
            address for address in self._url.addresses if address not in known
        ]
        error: RedisError = RedisError("no node of the cluster is known")
        for address in candidates:
            try:
                reply = (await self._connection(address).send((("CLUSTER", "SLOTS"),)))[0]
                if isinstance(reply, ResponseError):
                    raise reply
            except RedisError as exc:
                error = exc
                continue
            self._masters = [_range_of(entry, address) for entry in reply]
            self._by_slot.clear()
            self._doubtful = False
            return
        raise error


def _range_of(entry: list[Any], asked: Address) -> tuple[int, int, Address]:
    first, last, master = entry[0], entry[1], entry[2]
    # A node that does not know its own address answers with an empty one.
    host = master[0].decode() if master[0] else asked.host
    return int(first), int(last), Address(host, int(master[1]))


def _retrieve_exception(reading: "asyncio.Task[None]") -> None:
    """Avoids asyncio's warning about an unretrieved exception if all callers were cancelled."""
    if not reading.cancelled():
        reading.exception()
