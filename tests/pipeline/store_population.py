"""Many user agents with everything that a job may meet, and what is true of them: plain Python.

Every value follows from a number, so any part of a population can be made alone.
"""

import asyncio
import hashlib
from collections.abc import Iterator, Mapping

import msgspec

from waystation.base.ids import dashed
from waystation.push.model import (
    SIMPLEPUSH,
    USER_AGENT_LIFETIME_S,
    WEBPUSH,
    ChannelId,
    MessageId,
    Notification,
    SortKey,
    Uaid,
    Update,
    UserAgent,
)
from waystation.push.store import PushStore
from waystation.storage.bigtable import layout as bigtable
from waystation.storage.bigtable.cells import Mutation, set_cell
from waystation.storage.bigtable.push import BigtablePushStore
from waystation.storage.dynamodb.layout import encode_notification, record_fields
from waystation.storage.dynamodb.months import last_connect
from waystation.storage.dynamodb.push import DynamoPushStore
from waystation.storage.postgres import layout as postgres
from waystation.storage.postgres.push import PostgresPushStore
from waystation.storage.postgres.session import connect
from waystation.storage.settings import Store

DAY_MS = 86_400_000
AT_ONCE = 64
SIMPLEPUSH_BELOW = 500  # the numbers of user agents with updates: those are saved one by one


def _bytes(*words: object) -> bytes:
    return hashlib.sha256("/".join(map(str, words)).encode()).digest()


class UserAgentRows(msgspec.Struct, frozen=True):
    record: UserAgent
    channels: tuple[ChannelId, ...]
    messages: tuple[Notification, ...]
    updates: tuple[Update, ...]


class StorePopulation:
    """`size` user agents at a moment, and a few that have messages and no record."""

    def __init__(self, size: int, now_ms: int, *, seed: str = "crowd", orphans: int = 7) -> None:
        self.size = size
        self.now_ms = now_ms
        self.seed = seed
        self.orphans = orphans

    def uaid(self, number: int) -> Uaid:
        return Uaid(_bytes(self.seed, number)[:16])

    def channel(self, number: int, which: int) -> ChannelId:
        return ChannelId(_bytes(self.seed, number, which)[:16])

    def age_days(self, number: int) -> int:
        return {0: 70, 1: 40}.get(number % 10, number % 20)

    def stale(self) -> list[int]:
        return [number for number in range(self.size) if self.age_days(number) > 60]

    def member(self, number: int) -> UserAgentRows:
        bridged = number % 11 == 0
        simple = not bridged and number % 50 == 7 and number < SIMPLEPUSH_BELOW
        kind = "apns" if bridged else SIMPLEPUSH if simple else WEBPUSH
        data = {"token": f"t{number}", "rel_channel": "r", "aps": {"alert": {"args": [number]}}}
        record = UserAgent(
            uaid=self.uaid(number),
            connected_at_ms=self.now_ms - self.age_days(number) * DAY_MS - number,
            router_type="pigeon" if number % 50 == 3 else kind,
            router_data=data if bridged else None,
            node_id=f"http://10.0.0.{number % 9}:8081" if number % 4 == 0 and not bridged else None,
        )
        channels = tuple(self.channel(number, which) for which in range(1 + number % 3))
        updates = tuple(self.updates(number)) if simple else ()
        return UserAgentRows(record, channels, tuple(self.messages(number)), updates)

    def updates(self, number: int) -> Iterator[Update]:
        """One whose time is known, and one as a node of an earlier release has saved it."""
        at_ms = self.now_ms - 4000 - number
        yield Update(self.channel(number, 0), number, accepted_at_ms=at_ms)
        if number % 3:
            yield Update(self.channel(number, 1), number)

    def messages(self, number: int) -> Iterator[Notification]:
        own = self.channel(number, 0)
        if number % 2:
            yield self.message(number, own, self.now_ms - 5000 - number, "plain")
        if number % 7 == 0:
            yield self.message(number, own, self.now_ms - 9000, "topical", topic="news")
        if number % 40 == 5:
            gone = self.channel(number, 99)
            yield self.message(number, gone, self.now_ms - 7000, "unsubscribed")
        if number % 45 == 9:
            yield self.message(number, own, self.now_ms + 900_000, "future")

    def message(
        self, number: int, channel: ChannelId, at_ms: int, word: str, *, topic: str = ""
    ) -> Notification:
        key = f"01:{dashed(channel)}:{topic}" if topic else f"02:{at_ms}:{dashed(channel)}:0"
        return Notification(
            channel,
            MessageId(f"gAAA-{word}-{number}"),
            SortKey(key),
            at_ms,
            86_400,
            topic=topic or None,
            data=_bytes(word, number).hex() * 3,
            headers={"encoding": "aes128gcm"} if number % 3 else None,
        )

    def orphan(self, number: int) -> tuple[Uaid, Notification]:
        uaid = Uaid(_bytes(self.seed, "orphan", number)[:16])
        channel = self.channel(number, 98)
        return uaid, self.message(number, channel, self.now_ms - 3000, "orphan")

    # What is true

    def audit(self, *, orphans: bool) -> dict[str, int]:
        numbers = range(self.size)
        return {
            "msg_no_router": self.orphans if orphans else 0,
            "channel_no_router": 0,
            "msg_no_channel": sum(number % 40 == 5 for number in numbers),
            "msg_expired": 0,
            "msg_future": sum(number % 45 == 9 for number in numbers),
            "router_stale_30": sum(self.age_days(number) > 30 for number in numbers),
            "router_stale_60": len(self.stale()),
            "router_bad_type": sum(number % 50 == 3 for number in numbers),
            "stale_index": 0,
            "dup_topic": 0,
            "month_mismatch": 0,
        }

    # Into a store, by what a server does

    async def load(self, store: PushStore) -> None:
        if isinstance(store, DynamoPushStore):
            await self._load_rows(store)
        elif isinstance(store, PostgresPushStore):
            await self._load_tables(store)
        elif isinstance(store, BigtablePushStore):
            await self._load_cells(store)
        else:
            for at in range(0, self.size, AT_ONCE):
                numbers = range(at, min(at + AT_ONCE, self.size))
                await asyncio.gather(*(self._add(store, number) for number in numbers))
        await asyncio.gather(*(store.save(*self.orphan(number)) for number in range(self.orphans)))
        for member in map(self.member, range(self.size)):
            for update in member.updates:
                assert (await store.save_update(member.record.uaid, update)).applied

    async def _load_rows(self, store: DynamoPushStore) -> None:
        """Twenty-five rows to a call: DynamoDB Local takes its time for every one."""
        site = store._context
        table = await site.tables.current()
        end_s = site.now_s() + USER_AGENT_LIFETIME_S
        batches: list[list[tuple[str, dict[str, object]]]] = [[]]
        for number in range(self.size):
            member = self.member(number)
            uaid = member.record.uaid
            fields = {name: value for name, value in record_fields(member.record).items() if value}
            record = site.keys.router(uaid) | fields | {"current_month": {"S": table}}
            seen = last_connect(member.record.connected_at_ms, number % 10 / 10)
            record |= {"expiry": {"N": str(end_s)}, "last_connect": {"N": str(seen)}}
            channels = site.keys.channels(uaid) | {"expiry": {"N": str(end_s + 86_400)}}
            channels["chids"] = {"SS": [dashed(channel) for channel in member.channels]}
            rows = [(site.url.router_table, record), (table, channels)]
            for message in member.messages:
                key = site.keys.message(uaid, message.sort_key)
                rows.append((table, encode_notification(key, message)))
            if len(batches[-1]) + len(rows) > 25:
                batches.append([])
            batches[-1] += rows
        for at in range(0, len(batches), 8):
            await asyncio.gather(*(self._put(store, batch) for batch in batches[at : at + 8]))

    async def _put(
        self, store: DynamoPushStore, batch: list[tuple[str, dict[str, object]]]
    ) -> None:
        asked: dict[str, list[object]] = {}
        for table, item in batch:
            asked.setdefault(table, []).append({"PutRequest": {"Item": item}})
        while asked:
            answer = await store._context.dynamo.write("BatchWriteItem", RequestItems=asked)
            asked = answer.get("UnprocessedItems") or {}

    async def _load_tables(self, store: PostgresPushStore) -> None:
        records: list[tuple[object, ...]] = []
        channels: list[tuple[str, str]] = []
        messages: list[tuple[object, ...]] = []
        ends_s = self.now_ms // 1000 + USER_AGENT_LIFETIME_S
        for number in range(self.size):
            member = self.member(number)
            values = postgres.record_values(member.record, _bytes("version", number)[:16])
            records.append((*values, ends_s, []))
            uaid = member.record.uaid
            channels += [(uaid.hex(), channel.hex()) for channel in member.channels]
            messages += [postgres.message_values(uaid, message) for message in member.messages]
        url = store._session._url
        connection = await connect(url, Store())
        names = "uaid connected_at router_type router_data node_id record_version version"
        own = [*names.split(), "last_update", "expiry", "priv_channels"]
        message_names = [name for name, _ in postgres.MESSAGE_COLUMNS]
        copy = connection.copy_records_to_table
        await copy(url.router_table, records=records, columns=own)
        await copy(url.meta_table, records=channels, columns=["uaid", "channel_id"])
        await copy(url.message_table, records=messages, columns=message_names)
        await connection.close()

    async def _load_cells(self, store: BigtablePushStore) -> None:
        """A thousand rows to a call."""
        rows: list[tuple[bytes, list[Mutation]]] = []
        ends_at_ms = self.now_ms + USER_AGENT_LIFETIME_S * 1000
        for number in range(self.size):
            member = self.member(number)
            uaid = member.record.uaid
            cells = bigtable.encode_record(member.record, _bytes("version", number)[:16])
            for channel in member.channels:
                cells[bigtable.channel_column(channel)] = bigtable.CHANNEL_MARK
            rows.append((bigtable.agent_key(uaid), _cells(bigtable.ROUTER, cells, ends_at_ms)))
            for message in member.messages:
                family = bigtable.family_of(message.sort_key)
                cells = bigtable.encode_notification(message)
                key = bigtable.message_key(uaid, message.sort_key)
                rows.append((key, _cells(family, cells, message.expires_at_ms)))
            if len(rows) >= 1000:
                await store.session.write_many(rows)
                rows = []
        await store.session.write_many(rows)

    async def _add(self, store: PushStore, number: int) -> None:
        member = self.member(number)
        uaid = member.record.uaid
        assert await store.add_user_agent(member.record)
        for channel in member.channels:
            assert await store.add_channel(uaid, channel, channels_max=100)
        for message in member.messages:
            await store.save(uaid, message)

    async def come_back(self, store: PushStore, number: int, at_ms: int) -> None:
        held = await store.get_user_agent(self.uaid(number))
        assert held is not None
        back = msgspec.structs.replace(held, connected_at_ms=at_ms, node_id="http://10.0.0.1:8081")
        assert await store.claim_route(back)


def _cells(family: str, columns: Mapping[bytes, bytes], ends_at_ms: int) -> list[Mutation]:
    return [set_cell(family, name, value, ends_at_ms) for name, value in columns.items()]
