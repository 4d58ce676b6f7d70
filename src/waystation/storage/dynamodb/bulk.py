"""A push store in DynamoDB as a whole, for jobs.

Parts are segments of a parallel scan, of one table each: records are in `router`, channel sets and
notifications in the message tables. Who has not connected for long is found by `AccessIndex`, whose
keys can be listed: a part is every n-th of them, of the latest months that the bounds allow. The
version of a record is a hash of what a claim changes; a removal states it again in its condition.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from importlib import import_module
from typing import Any

from waystation.base.clock import SystemClock
from waystation.base.ids import dashed, parse_uuid
from waystation.push.model import SIMPLEPUSH, USER_AGENT_LIFETIME_S, Uaid, Update
from waystation.push.store import PushStore
from waystation.storage.bulk import PAGE_ROWS, UNLIMITED, BulkStore, StoreConfig
from waystation.storage.bulk_rows import (
    Bounds,
    StoredNotification,
    Subscriptions,
    UserAgentSnapshot,
    inside,
    version_of,
)
from waystation.storage.dynamodb.channels import ChannelRows
from waystation.storage.dynamodb.context import StoreContext
from waystation.storage.dynamodb.layout import (
    CHANNELS_KEY,
    Item,
    UnreadableRowError,
    decode_channels,
    decode_notification,
    decode_record,
    get_number,
    get_string,
    number,
    string,
    string_set,
)
from waystation.storage.dynamodb.months import access_keys, month_at
from waystation.storage.dynamodb.records import RecordRows
from waystation.storage.dynamodb.session import Dynamo, NotAppliedError, TransactionRefusedError
from waystation.storage.dynamodb.tables import ACCESS_INDEX, MessageTables
from waystation.storage.dynamodb.url import DynamoUrl
from waystation.storage.dynamodb.user_agents import DAY_S, FENCES, UserAgentRows

_arrow: Any = import_module("pyarrow")

_SLIM = "uaid, chidmessageid, #timestamp, #ttl, updateid, accepted_ms"
_NAMES = {"#timestamp": "timestamp", "#ttl": "ttl"}
_SEGMENTS_MAX = 1000
AWAY_MONTHS = 6  # records end after two; only those of Autopush's first releases have no end
_AT_ONCE = 32
_GREATEST = 1 << 62


class DynamoBulk(BulkStore):
    def __init__(self, url: DynamoUrl, config: StoreConfig, runner: asyncio.Runner) -> None:
        super().__init__(_arrow, runner)
        self._url = url
        self._context = self.run(self._connected(config))
        self._dynamo = self._context.dynamo
        self._agents = UserAgentRows(self._context)
        self._channels = ChannelRows(self._context, self._agents)
        self._records = RecordRows(self._context, self._agents, self._channels)

    async def _connected(self, config: StoreConfig) -> StoreContext:
        clock = SystemClock()
        dynamo = await Dynamo.open(self._url, config.bulk_settings)
        try:
            tables = MessageTables(dynamo, self._url, clock)
            await tables.open()
        except BaseException:
            await dynamo.close()
            raise
        return StoreContext(dynamo, self._url, tables, clock)

    def ranges(self, table: str, count: int) -> list[bytes]:
        count = max(1, min(count, _SEGMENTS_MAX))
        names = [self._url.router_table]
        if table not in ("router", "records"):
            names = sorted(self._context.tables.names)
        return [f"{name} {at} {count}".encode() for name in names for at in range(count)]

    def away_ranges(self, count: int) -> list[bytes]:
        name = self._url.router_table
        table = self.run(self._dynamo.read("DescribeTable", TableName=name))["Table"]
        names = {index["IndexName"] for index in table.get("GlobalSecondaryIndexes", ())}
        if ACCESS_INDEX not in names:
            return []
        return [f"{name} {at} {count} {ACCESS_INDEX}".encode() for at in range(count)]

    def month_of(self, part: bytes) -> str | None:
        return part.decode().split(" ")[0]

    async def user_agents(
        self, part: bytes, bounds: Bounds, *, whole: bool
    ) -> AsyncIterator[Sequence[UserAgentSnapshot]]:
        request: dict[str, Any] = {}
        if "connected_at_ms" in bounds:
            least, greatest = bounds["connected_at_ms"]
            request["FilterExpression"] = "connected_at BETWEEN :least AND :greatest"
            request["ExpressionAttributeValues"] = {
                ":least": number(least or 0),
                ":greatest": number(_GREATEST if greatest is None else greatest),
            }
        by_index = part.endswith(f" {ACCESS_INDEX}".encode())
        pages = self._away(part, bounds) if by_index else self._scan(part, **request)
        async for items in pages:
            found = [one for item in items if (one := _user_agent(item)) is not None]
            yield await self._whole(found, items) if whole else found

    async def _whole(
        self, found: list[UserAgentSnapshot], items: Sequence[Item]
    ) -> list[UserAgentSnapshot]:
        tables = {item["uaid"]["S"]: get_string(item, "current_month") for item in items}
        wanted: dict[str, list[Item]] = {}
        for one in found:
            key = self._context.keys.channels(one.record.uaid)
            table = tables[key["uaid"]["S"]]
            if table is not None and table in self._context.tables.names:
                wanted.setdefault(table, []).append(key)
        rows = await asyncio.gather(
            *(self._dynamo.get_many(table, keys) for table, keys in wanted.items())
        )
        now_s = self._context.now_s()
        channels = {
            item["uaid"]["S"]: decode_channels(item, now_s=now_s) for page in rows for item in page
        }
        return [
            UserAgentSnapshot(
                record=one.record,
                channels=channels.get(one.record.uaid.hex(), frozenset()),
                updates=await self._updates(one),
                expires_at_ms=one.expires_at_ms,
                version=one.version,
                month=one.month,
            )
            for one in found
            if tables[one.record.uaid.hex()] in self._context.tables.names  # §6.8 d: no record else
        ]

    async def _updates(self, one: UserAgentSnapshot) -> tuple[Update, ...]:
        if one.record.router_type != SIMPLEPUSH:
            return ()
        return tuple(await self._records.fetch_updates(one.record.uaid, limit=1 << 30))

    async def subscriptions(self, part: bytes) -> AsyncIterator[Sequence[Subscriptions]]:
        async for items in self._scan(
            part,
            FilterExpression="chidmessageid = :channels",
            ExpressionAttributeValues={":channels": string(CHANNELS_KEY)},
        ):
            now_s = self._context.now_s()
            yield [
                (uaid, decode_channels(item, now_s=now_s))
                for item in items
                if (uaid := _uaid(item)) is not None
            ]

    async def notifications(
        self, part: bytes, bounds: Bounds, *, whole: bool
    ) -> AsyncIterator[Sequence[StoredNotification]]:
        request: dict[str, Any] = {
            "FilterExpression": "chidmessageid <> :channels",
            "ExpressionAttributeValues": {":channels": string(CHANNELS_KEY)},
        }
        if "expires_at_ms" in bounds:
            least, greatest = bounds["expires_at_ms"]
            request["FilterExpression"] += " AND expiry BETWEEN :least AND :greatest"
            request["ExpressionAttributeValues"] |= {
                ":least": number((least or 0) // 1000),
                ":greatest": number(_GREATEST if greatest is None else greatest // 1000 + 1),
            }
        if not whole:
            request |= {"ProjectionExpression": _SLIM, "ExpressionAttributeNames": _NAMES}
        async for items in self._scan(part, **request):
            found: list[StoredNotification] = []
            for item in items:
                uaid = _uaid(item)
                try:
                    notification = decode_notification(item)
                except UnreadableRowError:
                    continue
                if uaid is not None and inside(bounds, "expires_at_ms", notification.expires_at_ms):
                    found.append((uaid, notification))
            yield found

    async def remove_if_same(self, agents: Sequence[tuple[Uaid, int]]) -> int:
        seen = {uaid.hex(): version for uaid, version in agents}
        keys = [self._context.keys.router(uaid) for uaid, _ in agents]
        items = await self._dynamo.get_many(self._url.router_table, keys)
        same = [item for item in items if _version(item) == seen.get(item["uaid"]["S"])]
        return await self._some_at_once([self._remove(item) for item in same])

    async def _remove(self, item: Item) -> bool:
        uaid = _uaid(item)
        assert uaid is not None, "it was asked for by its id"
        return await self._agents.remove_unchanged(uaid, item)

    async def remove_if_orphaned(self, uaids: Sequence[Uaid]) -> int:
        return await self._some_at_once([self._remove_left(uaid) for uaid in uaids])

    async def _remove_left(self, uaid: Uaid) -> bool:
        """Rows are listed before the record is looked for, so what is stored for a user agent that
        comes meanwhile is not among them; its channel set has always the same key, so that goes
        in one transaction with the look."""
        nobody = {
            "TableName": self._url.router_table,
            "Key": self._context.keys.router(uaid),
            "ConditionExpression": "attribute_not_exists(uaid)",
        }
        for table in self._context.tables.names:
            keys = await self._agents.query_keys(table, uaid, "chidmessageid")
            channels = {"TableName": table, "Key": self._context.keys.channels(uaid)}
            try:
                await self._dynamo.transact({"ConditionCheck": nobody}, {"Delete": channels})
            except TransactionRefusedError:
                return False
            rows = [key for key in keys if key["chidmessageid"]["S"] != CHANNELS_KEY]
            await self._dynamo.delete_all(table, rows)
        return True

    async def close_connections(self) -> None:
        await self._dynamo.close()

    async def read_user_agents(self, uaids: Sequence[Uaid]) -> list[UserAgentSnapshot]:
        keys = [self._context.keys.router(uaid) for uaid in uaids]
        items = await self._dynamo.get_many(self._url.router_table, keys)
        now_ms = self._context.clock.now_ms()
        found = [one for item in items if (one := _user_agent(item)) is not None]
        return await self._whole([one for one in found if not one.over(now_ms)], items)

    async def add_user_agents(
        self, store: PushStore, snapshots: Sequence[UserAgentSnapshot]
    ) -> Sequence[bool]:
        return await asyncio.gather(*(self._add_user_agent(store, one) for one in snapshots))

    async def _add_user_agent(self, store: PushStore, one: UserAgentSnapshot) -> bool:
        """The record, then the whole channel set in one write, unless there is one: whoever met
        the record meanwhile has begun it."""
        uaid = one.record.uaid
        if not await self._agents.add_alone(one.record):
            return False
        if one.channels:
            table = await self._context.tables.current()
            expiry = self._context.now_s() + USER_AGENT_LIFETIME_S + DAY_S
            row = self._context.keys.channels(uaid) | {
                "chids": string_set(sorted(dashed(channel) for channel in one.channels)),
                "expiry": number(expiry),
            }
            try:
                await self._dynamo.write(
                    "PutItem",
                    TableName=table,
                    Item=row,
                    ConditionExpression="attribute_not_exists(uaid)",
                )
            except NotAppliedError:
                for channel in one.channels:
                    await self._channels.add(uaid, channel, channels_max=UNLIMITED)
        for update in one.updates:
            await store.save_update(uaid, update)
        return True

    # Inside

    async def _scan(self, part: bytes, **request: Any) -> AsyncIterator[list[Item]]:
        name, at, count = part.decode().split(" ")
        request |= {"TableName": name, "ConsistentRead": True}
        request |= {"Segment": int(at), "TotalSegments": int(count)}
        async for items in self._pages_of("Scan", request):
            yield items

    async def _pages_of(self, operation: str, request: dict[str, Any]) -> AsyncIterator[list[Item]]:
        while True:
            answer = await self._dynamo.read(operation, **request)
            yield answer["Items"]
            if "LastEvaluatedKey" not in answer:
                return
            request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

    async def _away(self, part: bytes, bounds: Bounds) -> AsyncIterator[list[Item]]:
        """The index is behind its table, so what a record says of its last connection counts."""
        name, at, count, index = part.decode().split(" ")
        now_ms = self._context.clock.now_ms()
        _, greatest = bounds.get("connected_at_ms", (None, None))
        last = month_at(now_ms if greatest is None else min(greatest, now_ms))
        months = range(last - AWAY_MONTHS + 1, last + 1)
        keys = [key for month in months for key in access_keys(month)]
        for key in keys[int(at) :: int(count)]:
            request: dict[str, Any] = {
                "TableName": name,
                "IndexName": index,
                "KeyConditionExpression": "last_connect = :key",
                "ExpressionAttributeValues": {":key": number(key)},
                "ProjectionExpression": "uaid",
                "Limit": PAGE_ROWS,
            }
            async for rows in self._pages_of("Query", request):
                items = await self._dynamo.get_many(name, rows)
                yield [
                    item
                    for item in items
                    if inside(bounds, "connected_at_ms", get_number(item, "connected_at"))
                ]

    async def _some_at_once(self, calls: Sequence[Any]) -> int:
        done = 0
        for at in range(0, len(calls), _AT_ONCE):
            done += sum(await asyncio.gather(*calls[at : at + _AT_ONCE]))
        return done


def _uaid(item: Item) -> Uaid | None:
    raw = parse_uuid(get_string(item, "uaid") or "")
    return None if raw is None else Uaid(raw)


def _user_agent(item: Item) -> UserAgentSnapshot | None:
    uaid = _uaid(item)
    if uaid is None:
        return None
    try:
        record = decode_record(uaid, item, behind=False)
    except UnreadableRowError:
        return None
    expiry = get_number(item, "expiry")
    return UserAgentSnapshot(
        record=record,
        expires_at_ms=None if expiry is None else expiry * 1000,
        version=_version(item),
        month=get_string(item, "current_month"),
    )


def _version(item: Item) -> int:
    return version_of(*(repr(item.get(name)).encode() for name in FENCES))
