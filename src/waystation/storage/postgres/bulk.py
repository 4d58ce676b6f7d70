"""Bulk reader of a push store in PostgreSQL, for pipeline jobs.

Parts are ranges of uaids, read by key page by page, so no snapshot is held between pages. The
version of a record is the server's hash of its row. A removal states that version, and the server
compares it with the current row.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from waystation.base.clock import SystemClock
from waystation.base.ids import parse_uuid
from waystation.push.model import ChannelId, MessageId, Notification, SortKey, Uaid, Update
from waystation.storage.bulk import PAGE_ROWS, BulkStore, StoreConfig, hex_range, hex_ranges
from waystation.storage.bulk_rows import (
    Bounds,
    StoredNotification,
    Subscriptions,
    UserAgentSnapshot,
)
from waystation.storage.postgres import layout
from waystation.storage.postgres.layout import Row
from waystation.storage.postgres.schema import make_ready
from waystation.storage.postgres.session import Session
from waystation.storage.postgres.tables import Tables
from waystation.storage.postgres.url import PostgresUrl

_arrow: Any = import_module("pyarrow")

_RECORDS = """
SELECT r.uaid, r.connected_at, r.router_type, r.router_data, r.node_id, r.record_version, r.version,
    r.last_update, {router_end} AS ends_s, hashtextextended(r::text, 0) AS seen<more>
FROM {router} AS r
WHERE r.uaid > $1 AND r.uaid < $2 AND r.connected_at BETWEEN $3 AND $4
ORDER BY r.uaid LIMIT $5
"""
_BELONGINGS = """,
    ARRAY(SELECT m.channel_id FROM {meta} AS m WHERE m.uaid = r.uaid) AS channels,
    ARRAY(
        SELECT (u.channel_id, u.version, {update_time}) FROM {update} AS u WHERE u.uaid = r.uaid
    ) AS updates"""
_LOOK = (
    _RECORDS.partition("WHERE")[0].replace("<more>", _BELONGINGS)
    + "WHERE r.uaid = ANY($1) AND {router_end} > $2"
)
_SUBSCRIPTIONS = """
SELECT uaid, channel_id FROM {meta}
WHERE (uaid, channel_id) > ($1, $2) AND uaid < $3 ORDER BY uaid, channel_id LIMIT $4
"""
_MESSAGES = """
SELECT <columns> FROM {message}
WHERE (uaid, chid_message_id COLLATE "C") > ($1, $2) AND uaid < $3 AND expiry BETWEEN $4 AND $5
ORDER BY uaid, chid_message_id COLLATE "C" LIMIT $6
"""
_WHOLE = ", ".join(f'"{name}"' for name, _ in layout.MESSAGE_COLUMNS)
_SLIM = """
uaid, channel_id, chid_message_id, version, "timestamp", ttl, accepted_at_ms, sortkey_timestamp"""
# Rows that refer to a record are removed with it (ON DELETE CASCADE).
_REMOVE = """
DELETE FROM {router} AS r USING unnest($1::text[], $2::bigint[]) AS g (uaid, seen)
WHERE r.uaid = g.uaid AND hashtextextended(r::text, 0) = g.seen RETURNING 1
"""
# For Autopush's first tables, which have no foreign keys.
_REMOVE_ORPHANS = """
WITH nobodys AS (
    SELECT g.uaid FROM unnest($1::text[]) AS g (uaid)
    WHERE NOT EXISTS (SELECT FROM {router} AS r WHERE r.uaid = g.uaid)
), messages AS (
    DELETE FROM {message} AS m USING nobodys AS n WHERE m.uaid = n.uaid
), channels AS (
    DELETE FROM {meta} AS m USING nobodys AS n WHERE m.uaid = n.uaid
)
SELECT count(*) AS n FROM nobodys
"""
_LEAST, _GREATEST = -(1 << 62), 1 << 62


class PostgresBulk(BulkStore):
    def __init__(self, url: PostgresUrl, config: StoreConfig, runner: asyncio.Runner) -> None:
        super().__init__(_arrow, runner)
        self._url = url
        self._fill = Tables(url).fill
        self._session = self.run(self._connected(config))

    async def _connected(self, config: StoreConfig) -> Session:
        return Session(self._url, config.bulk_settings, partial(make_ready, url=self._url))

    def ranges(self, table: str, count: int) -> list[bytes]:
        return hex_ranges(count)

    async def user_agents(
        self, part: bytes, bounds: Bounds, *, whole: bool
    ) -> AsyncIterator[Sequence[UserAgentSnapshot]]:
        statement = self._fill(_RECORDS.replace("<more>", _BELONGINGS if whole else ""))
        first, end = hex_range(part)
        least, greatest = _bounds(bounds, "connected_at_ms")
        while rows := await self._session.read(statement, first, end, least, greatest, PAGE_ROWS):
            yield [found for row in rows if (found := _user_agent(row, whole=whole)) is not None]
            first = rows[-1]["uaid"]

    async def subscriptions(self, part: bytes) -> AsyncIterator[Sequence[Subscriptions]]:
        statement = self._fill(_SUBSCRIPTIONS)
        first, end = hex_range(part)
        after = ""
        while rows := await self._session.read(statement, first, after, end, PAGE_ROWS):
            yield [
                (Uaid(uaid), frozenset((ChannelId(channel),)))
                for row in rows
                if (uaid := parse_uuid(row["uaid"])) and (channel := parse_uuid(row["channel_id"]))
            ]
            first, after = rows[-1]["uaid"], rows[-1]["channel_id"]

    async def notifications(
        self, part: bytes, bounds: Bounds, *, whole: bool
    ) -> AsyncIterator[Sequence[StoredNotification]]:
        statement = self._fill(_MESSAGES.replace("<columns>", _WHOLE if whole else _SLIM))
        first, end = hex_range(part)
        least, greatest = _bounds(bounds, "expires_at_ms")
        after = ""
        seconds = (least // 1000, greatest // 1000 + 1)
        while rows := await self._session.read(statement, first, after, end, *seconds, PAGE_ROWS):
            found: list[StoredNotification] = []
            for row in rows:
                uaid = parse_uuid(row["uaid"])
                notification = layout.read_notification(row) if whole else _slim(row)
                if uaid is not None and notification is not None:
                    found.append((Uaid(uaid), notification))
            yield found
            first, after = rows[-1]["uaid"], rows[-1]["chid_message_id"]

    async def remove_if_same(self, agents: Sequence[tuple[Uaid, int]]) -> int:
        uaids, seen = [uaid.hex() for uaid, _ in agents], [version for _, version in agents]
        return len(await self._session.change(self._fill(_REMOVE), uaids, seen))

    async def remove_if_orphaned(self, uaids: Sequence[Uaid]) -> int:
        rows = await self._session.change(
            self._fill(_REMOVE_ORPHANS), [uaid.hex() for uaid in uaids]
        )
        return rows[0]["n"]

    async def read_user_agents(self, uaids: Sequence[Uaid]) -> list[UserAgentSnapshot]:
        rows = await self._session.read(
            self._fill(_LOOK), [uaid.hex() for uaid in uaids], SystemClock().now_ms() // 1000
        )
        return [found for row in rows if (found := _user_agent(row, whole=True)) is not None]

    async def close_connections(self) -> None:
        await self._session.close()


def _bounds(bounds: Bounds, column: str) -> tuple[int, int]:
    least, greatest = bounds.get(column, (None, None))
    return _LEAST if least is None else least, _GREATEST if greatest is None else greatest


def _user_agent(row: Row, *, whole: bool) -> UserAgentSnapshot | None:
    uaid = parse_uuid(row["uaid"])
    if uaid is None:
        return None
    channels: frozenset[ChannelId] = frozenset()
    updates: tuple[Update, ...] = ()
    if whole:
        channels = layout.read_channels(row["channels"])
        updates = tuple(
            layout.read_update(ChannelId(bytes.fromhex(channel)), version, at_ms)
            for channel, version, at_ms in row["updates"]
        )
    ends_s: int | None = row["ends_s"]
    return UserAgentSnapshot(
        record=layout.read_user_agent(Uaid(uaid), row),
        channels=channels,
        updates=updates,
        expires_at_ms=None if ends_s is None else ends_s * 1000,
        version=row["seen"],
    )


def _slim(row: Row) -> Notification | None:
    channel_id = parse_uuid(row["channel_id"] or "")
    if channel_id is None or row["timestamp"] is None or row["ttl"] is None:
        return None
    stamped_ms: int | None = row["accepted_at_ms"] or row["sortkey_timestamp"]
    second: int = row["timestamp"]
    in_that_second = stamped_ms is not None and stamped_ms // 1000 == second
    return Notification(
        ChannelId(channel_id),
        MessageId(row["version"] or ""),
        SortKey(row["chid_message_id"]),
        stamped_ms if in_that_second and stamped_ms is not None else second * 1000,
        row["ttl"],
    )
