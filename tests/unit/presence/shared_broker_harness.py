"""A stage whose store several nodes share: the store of production on the model of Redis.

Everything happens at once, in the order in which it is asked for; `before` lets something happen
first, and an answer may be lost.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from tests.sim.presence.redis import RedisModel, raw
from waystation.base.clock import Clock
from waystation.base.errors import StoreUnavailableError
from waystation.presence.cluster.membership import Membership
from waystation.presence.store import PresenceNode
from waystation.storage.redis.connection import Argument, Command, RedisStats, Reply
from waystation.storage.redis.presence import RedisPresenceStore
from waystation.storage.redis.presence_nodes import NodeRows
from waystation.storage.redis.presence_rows import PartyKeys
from waystation.storage.redis.scripts import Script
from waystation.storage.redis.subscriber import Subscriber
from waystation.storage.redis.url import Address

from .broker_harness import BrokerHarness


class NearRedis:
    """`Session` for a store: the server answers before anything else happens."""

    def __init__(self, redis: RedisModel) -> None:
        self.stats = RedisStats()
        self.redis = redis
        self.before: dict[str, Callable[[], object]] = {}  # once, before a script of that name
        self.loses_answer: set[str] = set()  # once, of a script that has run

    async def run(self, key: str, commands: Sequence[Command]) -> list[Reply]:
        return [self.redis.run(one) for one in commands]

    async def run_script(self, script: Script, keys: Sequence[str], *args: Argument) -> Reply:
        happens = self.before.pop(script.name, None)
        if happens is not None:
            result = happens()
            if isinstance(result, Awaitable):
                await result
        reply = self.redis.run_script(script.name, keys, args)
        if script.name in self.loses_answer:
            self.loses_answer.discard(script.name)
            raise StoreUnavailableError("the answer was lost")
        return reply

    async def run_everywhere(self, command: Command) -> list[Reply]:
        return await self.run("", (command,))

    async def server_of(self, key: str) -> Address:
        return Address("redis", 6379)

    async def close(self) -> None: ...


class NearBell:
    def __init__(self, redis: RedisModel, hear: Callable[[str, bytes], None]) -> None:
        self._redis = redis
        self._hear = hear

    def _heard(self, channel: bytes, data: bytes) -> None:
        self._hear(channel.decode(), data)

    async def subscribe(self, channel: str) -> None:
        self._redis.listen(raw(channel), self._heard)

    def unsubscribe(self, channel: str) -> None:
        self._redis.unlisten(raw(channel), self._heard)

    async def close(self) -> None: ...


class NearStore(RedisPresenceStore):
    def __init__(self, redis: RedisModel, *, log_max: int = 4096, linger_s: float = 60.0) -> None:
        self.near = NearRedis(redis)
        NodeRows.__init__(
            self, self.near, PartyKeys("pp", shards=1), log_max=log_max, linger_s=linger_s
        )
        self._min_replicas = 0
        self._listener = None
        self._subscriber = cast(Subscriber, NearBell(redis, self._hear))


class SharedStage(BrokerHarness):
    """Within a running loop, and with a lease."""

    store: NearStore

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        node = PresenceNode(node_id="node.1", incarnation=1)
        self.broker.node.shared = True
        broker = self.broker
        self.membership = Membership(
            broker,
            broker.registry,
            self.store,
            broker.session_end,
            broker.party_sync,
            reports=broker.reports,
            node=broker.node,
            clock=self.clock,
            describe=lambda: node,
        )

    def make_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def make_store(self, clock: Clock) -> Any:
        self.redis = RedisModel(clock)
        return NearStore(
            self.redis, log_max=self.settings.party_log, linger_s=self.settings.party_linger_s
        )

    def close(self) -> None:
        """The loop is not ours."""
