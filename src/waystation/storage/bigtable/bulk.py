"""A push store in Bigtable as a whole, for jobs.

Parts are ranges of keys, cut where Bigtable says that it has split the table, if it has; a page is
a read of its own behind the last key. The version of a record is a hash of its `version`, which
every claim changes; a removal states the value again.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

from waystation.base.clock import SystemClock
from waystation.base.ids import new_uuid4, parse_uuid
from waystation.push.model import MessageId, Notification, Uaid, UserAgent
from waystation.push.store import PushStore
from waystation.storage.bigtable import filters, layout
from waystation.storage.bigtable.cells import (
    Mutation,
    Row,
    drop_column,
    drop_row,
    replace_cell,
    set_cell,
)
from waystation.storage.bigtable.filters import RowFilter
from waystation.storage.bigtable.layout import MESSAGE, MESSAGE_TOPIC, OWN, ROUTER
from waystation.storage.bigtable.session import Session
from waystation.storage.bigtable.url import BigtableUrl
from waystation.storage.bigtable.user_agents import UserAgents
from waystation.storage.bulk import PAGE_ROWS, BulkStore, StoreConfig, hex_range, hex_ranges
from waystation.storage.bulk_rows import (
    Bounds,
    StoredNotification,
    Subscriptions,
    UserAgentSnapshot,
    inside,
    version_of,
)

_arrow: Any = import_module("pyarrow")

_SLIM = b"timestamp|ttl|accepted_at|version"
_CHANNELS = rb"chid:\C*"
_MESSAGES = f"{MESSAGE}|{MESSAGE_TOPIC}"
_GREATEST = (1 << 63) - 1


class BigtableBulk(BulkStore):
    def __init__(self, url: BigtableUrl, config: StoreConfig, runner: asyncio.Runner) -> None:
        super().__init__(_arrow, runner)
        self._clock = SystemClock()
        self._session = self.run(self._connected(url, config))
        self._lifetime_ms = url.max_router_ttl * 1000
        self._agents = UserAgents(self._session, self._clock, url.max_router_ttl)

    async def _connected(self, url: BigtableUrl, config: StoreConfig) -> Session:
        return Session(url, config.bulk_settings, self._clock)

    def ranges(self, table: str, count: int) -> list[bytes]:
        samples = self.run(self._session.sample_keys())
        # Half a uaid is the key of no row, so it does not matter on which side of a cut it lies.
        marks = [(key[:16].decode(), at) for key, at in samples if b"0" <= key < b"g"]
        if len(marks) < count:
            return hex_ranges(count)
        whole = marks[-1][1] or 1
        cuts = [
            next(key for key, at in marks if at * count >= whole * number)
            for number in range(1, count)
        ]
        return [f"{first}-{end}".encode() for first, end in pairwise(["", *sorted(set(cuts)), ""])]

    async def user_agents(
        self, part: bytes, bounds: Bounds, *, whole: bool
    ) -> AsyncIterator[Sequence[UserAgentSnapshot]]:
        wanted = (
            filters.of_families(ROUTER, OWN)
            if whole
            else filters.kept(ROUTER, layout.record_pattern())
        )
        if "connected_at_ms" in bounds:
            least, greatest = bounds["connected_at_ms"]
            ends = [layout.number(max(0, least or 0)), layout.number(_GREATEST)]
            if greatest is not None:
                ends[1] = layout.number(max(0, greatest))
            wanted = filters.where(filters.between(ROUTER, layout.CONNECTED_AT, *ends), wanted)
        async for rows in self._pages_of(part, wanted):
            found = [one for row in rows if (one := self._user_agent(row)) is not None]
            yield [
                one
                for one in found
                if inside(bounds, "connected_at_ms", one.record.connected_at_ms)
            ]

    async def subscriptions(self, part: bytes) -> AsyncIterator[Sequence[Subscriptions]]:
        async for rows in self._pages_of(part, filters.kept(ROUTER, _CHANNELS)):
            yield [
                (Uaid(uaid), layout.channels_among(_columns(row, ROUTER)))
                for row in rows
                if (uaid := _uaid(row.key)) is not None
            ]

    async def notifications(
        self, part: bytes, bounds: Bounds, *, whole: bool
    ) -> AsyncIterator[Sequence[StoredNotification]]:
        wanted = (
            filters.of_families(MESSAGE, MESSAGE_TOPIC) if whole else filters.kept(_MESSAGES, _SLIM)
        )
        async for rows in self._pages_of(part, wanted):
            found: list[StoredNotification] = []
            for row in rows:
                uaid, notification = _uaid(row.key), self._notification(row)
                if uaid is None or notification is None:
                    continue
                if inside(bounds, "expires_at_ms", notification.expires_at_ms):
                    found.append((uaid, notification))
            yield found

    async def remove_if_same(self, agents: Sequence[tuple[Uaid, int]]) -> int:
        keys = {layout.agent_key(uaid): (uaid, seen) for uaid, seen in agents}
        wanted = filters.kept(ROUTER, layout.VERSION)
        same: list[tuple[Uaid, bytes]] = []
        for row in await self._session.read_rows(wanted, keys=list(keys)):
            uaid, seen = keys[row.key]
            value = row.cells[ROUTER, layout.VERSION].value
            if version_of(value) == seen:
                same.append((uaid, value))
        return sum(await asyncio.gather(*(self._remove(*one) for one in same)))

    async def _remove(self, uaid: Uaid, version: bytes) -> bool:
        unchanged = filters.holds(ROUTER, layout.VERSION, version)
        left = await self._agents.message_keys(uaid)
        key = layout.agent_key(uaid)
        if not await self._session.check(key, unchanged, then=[drop_row()]):
            return False
        await self._agents.remove_rows(left)
        return True

    async def remove_if_orphaned(self, uaids: Sequence[Uaid]) -> int:
        """Rows are listed before the record is looked for, so what is stored for a user agent
        that comes meanwhile is not among them."""
        left = await asyncio.gather(*(self._agents.message_keys(uaid) for uaid in uaids))
        wanted = filters.kept(ROUTER, layout.CONNECTED_AT)
        keys = [layout.agent_key(uaid) for uaid in uaids]
        known = {row.key for row in await self._session.read_rows(wanted, keys=keys)}
        gone = [rows for key, rows in zip(keys, left, strict=True) if key not in known]
        await self._agents.remove_rows([key for rows in gone for key in rows])
        return len(gone)

    async def close_connections(self) -> None:
        await self._session.close()

    async def read_user_agents(self, uaids: Sequence[Uaid]) -> list[UserAgentSnapshot]:
        keys = [layout.agent_key(uaid) for uaid in uaids]
        wanted = filters.alive(self._clock.now_ms(), ROUTER, OWN)
        rows = await self._session.read_rows(wanted, keys=keys)
        return [found for row in rows if (found := self._user_agent(row)) is not None]

    async def add_user_agents(
        self, store: PushStore, snapshots: Sequence[UserAgentSnapshot]
    ) -> Sequence[bool]:
        """Record, subscriptions and updates are one row, so one conditional write does it."""
        return await asyncio.gather(*map(self._add_user_agent, snapshots))

    async def _add_user_agent(self, one: UserAgentSnapshot) -> bool:
        now_ms = self._clock.now_ms()
        ends_at_ms = now_ms + self._lifetime_ms
        router = layout.encode_record(one.record, new_uuid4())
        router |= dict.fromkeys(map(layout.channel_column, one.channels), layout.CHANNEL_MARK)
        own = {layout.FENCE: os.urandom(8)}
        for update in one.updates:
            own |= layout.encode_update(update)
        cells = [(ROUTER, *cell) for cell in router.items()] + [
            (OWN, *cell) for cell in own.items()
        ]
        there = filters.has(ROUTER, layout.CONNECTED_AT, now_ms=now_ms)
        return not await self._session.check(
            layout.agent_key(one.record.uaid),
            there,
            otherwise=[drop_row(), *(set_cell(*cell, ends_at_ms) for cell in cells)],
        )

    async def set_routes(
        self, store: PushStore, begun: Sequence[UserAgent], records: Sequence[UserAgent]
    ) -> None:
        await asyncio.gather(*(self._set_route(*pair) for pair in zip(begun, records, strict=True)))

    async def _set_route(self, begun: UserAgent, record: UserAgent) -> None:
        assert begun.node_id is not None, "what is not begun need not be settled"
        ends_at_ms = self._clock.now_ms() + self._lifetime_ms
        mutations: list[Mutation] = [drop_column(ROUTER, layout.NODE_ID)]
        if record.node_id is not None:
            columns = layout.encode_record(record, new_uuid4())
            for name in (layout.NODE_ID, layout.CONNECTED_AT, layout.VERSION):
                mutations += replace_cell(ROUTER, name, columns[name], ends_at_ms)
        same = filters.holds(ROUTER, layout.NODE_ID, begun.node_id.encode())
        await self._session.check(layout.agent_key(begun.uaid), same, then=mutations)

    async def statuses_kept_until(
        self, store: PushStore, ids: Sequence[MessageId], now_ms: int
    ) -> Mapping[MessageId, int]:
        """One read for all."""
        keys = {layout.status_key(one): one for one in ids}
        rows = await self._session.read_rows(filters.alive(now_ms, OWN), keys=list(keys))
        return {keys[row.key]: max(cell.ends_at_ms for cell in row.cells.values()) for row in rows}

    # Inside

    async def _pages_of(self, part: bytes, wanted: RowFilter) -> AsyncIterator[list[Row]]:
        first, end = (text.encode() for text in hex_range(part))
        while rows := await self._session.read_rows(wanted, after=(first, end), limit=PAGE_ROWS):
            yield rows
            first = rows[-1].key

    def _user_agent(self, row: Row) -> UserAgentSnapshot | None:
        uaid = _uaid(row.key)
        if uaid is None:
            return None
        columns, own = _columns(row, ROUTER), _columns(row, OWN)
        try:
            record = layout.decode_record(uaid, columns)
        except layout.UndecodableError:
            record = None
        if record is None:
            return None
        channels = layout.channels_among(columns)
        updates = layout.updates_among(own)
        return UserAgentSnapshot(
            record=record,
            channels=channels,
            updates=tuple(updates[one] for one in channels & updates.keys()),
            expires_at_ms=row.cells[ROUTER, layout.CONNECTED_AT].ends_at_ms,
            version=version_of(record.row_version or b""),
        )

    def _notification(self, row: Row) -> Notification | None:
        columns = {name: cell.value for (_, name), cell in row.cells.items()}
        try:
            return layout.decode_notification(row.key, columns)
        except layout.UndecodableError:
            return None


def _uaid(key: bytes) -> Uaid | None:
    raw = parse_uuid(key[:32].decode("ascii", "replace"))
    return None if raw is None else Uaid(raw)


def _columns(row: Row, family: str) -> dict[bytes, bytes]:
    return {name: cell.value for (of, name), cell in row.cells.items() if of == family}
