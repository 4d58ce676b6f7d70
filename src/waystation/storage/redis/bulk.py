"""Bulk reader of a push store in Redis, for pipeline jobs.

Parts are prefixes of uaids. The index `waystation/due/` contains every user agent with rows. In a
cluster each part has its own indexes; on one server each part scans the one index with a pattern.
ZSCAN returns every member that is present throughout. Rows written by Autopush are in the index
after `waystation store init`.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

from waystation.base.clock import SystemClock
from waystation.base.ids import parse_uuid
from waystation.push.model import (
    ChannelId,
    MessageId,
    Notification,
    SortKey,
    Uaid,
    Update,
)
from waystation.storage.bulk import PAGE_ROWS, BulkStore, StoreConfig
from waystation.storage.bulk_rows import (
    Bounds,
    StoredNotification,
    Subscriptions,
    UserAgentSnapshot,
    inside,
)
from waystation.storage.redis import layout, scripts
from waystation.storage.redis.cluster_routing import RedisCluster
from waystation.storage.redis.connection import Command, Reply
from waystation.storage.redis.layout import PARTITIONS, Keys
from waystation.storage.redis.session import OneServer, Session
from waystation.storage.redis.url import RedisUrl

_AGENTS_AT_ONCE = 500
_ROWS_AT_ONCE = 1000
_VERSION_DIGITS = 15  # hex digits of SHA-1, which server scripts can compute: 60 bits
_DIGITS = "0123456789abcdef"
_MS_FROM = 100_000_000_000

_arrow: Any = import_module("pyarrow")


class RedisBulk(BulkStore):
    def __init__(self, url: RedisUrl, config: StoreConfig, runner: asyncio.Runner) -> None:
        super().__init__(_arrow, runner)
        self._url = url
        self._keys = Keys(cluster=url.cluster)
        self._clock = SystemClock()
        self._session = self.run(self._connected(config))

    async def _connected(self, config: StoreConfig) -> Session:
        settings = config.bulk_settings
        return (
            RedisCluster(self._url, settings)
            if self._url.cluster
            else OneServer(self._url, settings)
        )

    def ranges(self, table: str, count: int) -> list[bytes]:
        """`first-end` ranges of 4,096 prefixes in a cluster, of 16 on one server."""
        whole = PARTITIONS if self._url.cluster else len(_DIGITS)
        count = max(1, min(count, whole))
        cuts = [number * whole // count for number in range(count + 1)]
        return [f"{first}-{end}".encode() for first, end in pairwise(cuts)]

    async def user_agents(
        self, part: bytes, bounds: Bounds, *, whole: bool
    ) -> AsyncIterator[Sequence[UserAgentSnapshot]]:
        async for uaids in self._agents(part):
            read = await asyncio.gather(*(self._user_agent(uaid, whole=whole) for uaid in uaids))
            yield [
                one
                for one in read
                if one is not None and inside(bounds, "connected_at_ms", one.record.connected_at_ms)
            ]

    async def subscriptions(self, part: bytes) -> AsyncIterator[Sequence[Subscriptions]]:
        async for uaids in self._agents(part):
            yield await asyncio.gather(*map(self._channels, uaids))

    async def notifications(
        self, part: bytes, bounds: Bounds, *, whole: bool
    ) -> AsyncIterator[Sequence[StoredNotification]]:
        async for uaids in self._agents(part):
            read = await asyncio.gather(*(self._waiting(uaid, whole=whole) for uaid in uaids))
            rows = [row for rows in read for row in rows]
            for at in range(0, len(rows), PAGE_ROWS):
                yield [
                    row
                    for row in rows[at : at + PAGE_ROWS]
                    if inside(bounds, "expires_at_ms", row[1].expires_at_ms)
                ]

    async def remove_if_same(self, agents: Sequence[tuple[Uaid, int]]) -> int:
        now_ms = self._clock.now_ms()
        removed = await asyncio.gather(
            *(
                self._script(uaid, now_ms, f"{version:0{_VERSION_DIGITS}x}")
                for uaid, version in agents
            )
        )
        return sum(removed)

    async def remove_if_orphaned(self, uaids: Sequence[Uaid]) -> int:
        now_ms = self._clock.now_ms()
        return sum(await asyncio.gather(*(self._script(uaid, now_ms, "") for uaid in uaids)))

    async def read_user_agents(self, uaids: Sequence[Uaid]) -> list[UserAgentSnapshot]:
        read = await asyncio.gather(*(self._user_agent(uaid, whole=True) for uaid in uaids))
        now_ms = self._clock.now_ms()
        return [one for one in read if one is not None and not one.over(now_ms)]

    async def close_connections(self) -> None:
        await self._session.close()

    # Inside

    async def _agents(self, part: bytes) -> AsyncIterator[list[Uaid]]:
        first, _, end = part.decode().partition("-")
        numbers = range(int(first), int(end))
        tags = [self._keys.tags[number] for number in numbers] if self._url.cluster else [""]
        pattern = "*" if self._url.cluster else f"[{''.join(_DIGITS[n] for n in numbers)}]*"
        for tag in tags:
            seen: set[Uaid] = set()  # a scan may return a member twice
            cursor: Reply = b"0"
            page: list[Uaid] = []
            while True:
                key = self._keys.due(tag)
                scan = ("ZSCAN", key, cursor, "MATCH", pattern, "COUNT", _AGENTS_AT_ONCE)
                ((cursor, flat),) = await self._session.run(key, (scan,))
                raws = (parse_uuid(text.decode("ascii", "replace")) for text in flat[::2])
                new = [Uaid(raw) for raw in raws if raw is not None and Uaid(raw) not in seen]
                seen.update(new)
                page += new
                if len(page) >= _AGENTS_AT_ONCE or cursor == b"0":
                    yield page
                    page = []
                if cursor == b"0":
                    break

    async def _user_agent(self, uaid: Uaid, *, whole: bool) -> UserAgentSnapshot | None:
        agent = self._keys.agent(uaid)
        key = self._keys.user(agent)
        commands: list[Command] = [("GET", key), ("PEXPIRETIME", key)]
        if whole:
            commands.append(("LRANGE", self._keys.channels(agent), 0, -1))
            commands.append(("HGETALL", self._keys.updates(agent)))
        text, ends, *more = await self._session.run(key, commands)
        if text is None or (decoded := layout.decode_record(text)) is None:
            return None
        record, expires_at_ms = decoded
        channels: frozenset[ChannelId] = frozenset()
        updates: Sequence[Update] = ()
        if whole:
            channels = layout.decode_channels(more[0])
            versions = dict(zip(more[1][::2], more[1][1::2], strict=True))
            updates = layout.decode_updates(versions, channels)
        digest = hashlib.sha1(text, usedforsecurity=False).hexdigest()
        return UserAgentSnapshot(
            record=record,
            channels=channels,
            updates=tuple(updates),
            expires_at_ms=expires_at_ms or (ends if ends > 0 else None),
            version=int(digest[:_VERSION_DIGITS], 16),
        )

    async def _channels(self, uaid: Uaid) -> Subscriptions:
        key = self._keys.channels(self._keys.agent(uaid))
        (texts,) = await self._session.run(key, (("LRANGE", key, 0, -1),))
        return uaid, layout.decode_channels(texts)

    async def _waiting(self, uaid: Uaid, *, whole: bool) -> list[StoredNotification]:
        agent = self._keys.agent(uaid)
        key = self._keys.ends(agent)
        rows: list[StoredNotification] = []
        at = 0
        while True:
            command = ("ZRANGE", key, at, at + _ROWS_AT_ONCE - 1, "WITHSCORES")
            (flat,) = await self._session.run(key, (command,))
            names = [name.decode("utf-8", "replace") for name in flat[::2]]
            bodies: Sequence[Reply] = [b""] * len(names)
            if whole and names:
                wanted = [self._keys.body(agent, name) for name in names]
                (bodies,) = await self._session.run(key, (("MGET", *wanted),))
            for name, ends, body in zip(names, flat[1::2], bodies, strict=True):
                if body is None:
                    continue  # Redis has expired it
                row = layout.decode_message(name, body, ends) if whole else _slim(name, ends)
                if row is not None:
                    rows.append((uaid, row))
            at += len(names)
            if len(names) < _ROWS_AT_ONCE:
                return rows

    async def _script(self, uaid: Uaid, now_ms: int, version: str) -> int:
        agent = self._keys.agent(uaid)
        return await self._session.run_script(
            scripts.PURGE, (self._keys.user(agent),), agent, now_ms, version
        )


def _slim(sort_key: str, ends: bytes) -> Notification | None:
    """From its key and its expiry, without reading the body."""
    match sort_key.split(":"):
        case ["01", channel, *_]:
            ms = "0"
        case ["02", ms, channel, *_] if ms.isdecimal():
            pass
        case [channel, *_]:
            ms = "0"
        case _:
            return None
    raw = parse_uuid(channel)
    if raw is None:
        return None
    score = int(float(ends))
    ends_s = score // 1000 if score > _MS_FROM else score
    accepted_at_ms = int(ms)
    ttl_s = ends_s - accepted_at_ms // 1000
    return Notification(ChannelId(raw), MessageId(""), SortKey(sort_key), accepted_at_ms, ttl_s)
