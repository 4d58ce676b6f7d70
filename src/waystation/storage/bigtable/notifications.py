"""Message rows: one for each notification, that ends when the notification does.

Rule 1: a row is written whole, after whatever was there has been dropped: a topic's newer message
        may end sooner than the one it replaces, and of two cells the later end would win.
Rule 2: a row is dropped, or replaced when handed back, only if it holds the very message that is
        meant.
Rule 3: whoever saves a topic says which message it replaced, and no call of Bigtable changes a row
        and returns what it held: so the row is read first, and written only if it is still the
        same. A message without a topic replaces nothing and is written at once.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain

from waystation.base.clock import Clock
from waystation.base.errors import BusyError
from waystation.push.model import (
    ChannelId,
    HandedBack,
    MessageId,
    Notification,
    Replaced,
    SortKey,
    Uaid,
)
from waystation.storage.bigtable import filters, layout
from waystation.storage.bigtable.cells import Cells, Mutation, Row, drop_row, set_cell
from waystation.storage.bigtable.layout import MESSAGE, MESSAGE_TOPIC, ROUTER
from waystation.storage.bigtable.session import Session
from waystation.storage.bigtable.user_agents import TRIES_MAX, UserAgents

TOPIC_TRIES_MAX = 4  # then it is written over whatever is there, which may go untold


class Notifications:
    def __init__(self, session: Session, user_agents: UserAgents, clock: Clock) -> None:
        self._session = session
        self._user_agents = user_agents
        self._clock = clock

    async def save(self, uaid: Uaid, notification: Notification) -> Replaced | None:
        if notification.topic is not None:
            return await self._save_topic(uaid, notification)
        await self._write(uaid, notification)
        return None

    async def _save_topic(self, uaid: Uaid, notification: Notification) -> Replaced | None:
        replaced: Replaced | None = None
        for _ in range(TOPIC_TRIES_MAX):
            held = await self._read(uaid, notification.sort_key)
            if held is not None and held.message_id == notification.message_id:
                return replaced  # saved by an attempt whose answer was lost
            replaced = notification.replaces(held)
            if await self._replace(uaid, notification, held, repeatable=True):
                return replaced
        await self._write(uaid, notification)
        return replaced

    async def _write(self, uaid: Uaid, notification: Notification) -> None:
        key = layout.message_key(uaid, notification.sort_key)
        await self._session.write(key, _row(notification))

    async def save_new(self, uaid: Uaid, notification: Notification) -> bool:
        # The second question only if there is one: it may be this very message, saved before.
        return await self._replace(uaid, notification, None) or await self._replace(
            uaid, notification, notification
        )

    async def save_if_newer(self, uaid: Uaid, notifications: Sequence[Notification]) -> HandedBack:
        by_key: defaultdict[SortKey, list[Notification]] = defaultdict(list)
        for notification in notifications:
            by_key[notification.sort_key].append(notification)
        if not by_key:
            return HandedBack()
        # The record and what is there already, in one round trip.
        keys = {layout.message_key(uaid, sort_key): sort_key for sort_key in by_key}
        now_ms = self._clock.now_ms()
        wanted = filters.alive(now_ms, ROUTER, MESSAGE, MESSAGE_TOPIC)
        rows = await self._session.read_rows(wanted, keys=[layout.agent_key(uaid), *keys])
        channels = await self._channels(uaid, rows)
        held = {keys[row.key]: self._decode(row) for row in rows if row.key in keys}
        each = await asyncio.gather(
            *(
                self._hand_back(uaid, [n for n in same if n.channel_id in channels], held.get(key))
                for key, same in by_key.items()
            )
        )
        replaced = chain.from_iterable(one.replaced for one in each)
        return HandedBack(sum(one.written for one in each), tuple(replaced))

    async def _hand_back(
        self, uaid: Uaid, notifications: Iterable[Notification], held: Notification | None
    ) -> HandedBack:
        """Those of one sort key, in their order."""
        written = 0
        replaced: list[Replaced | None] = []
        for notification in notifications:
            for _ in range(TRIES_MAX):
                if held is not None and _age(held) >= _age(notification):
                    replaced.append(notification.replaced_by(held.message_id))
                    break
                if await self._replace(uaid, notification, held):
                    replaced.append(notification.replaces(held))
                    held = notification
                    written += 1
                    break
                held = await self._read(uaid, notification.sort_key)
            else:
                raise BusyError("others keep writing this topic's row", retry_after_s=1)
        return HandedBack(written, tuple(filter(None, replaced)))

    async def _replace(
        self,
        uaid: Uaid,
        notification: Notification,
        held: Notification | None,
        *,
        repeatable: bool = False,
    ) -> bool:
        key = layout.message_key(uaid, notification.sort_key)
        family = layout.family_of(notification.sort_key)
        now_ms = self._clock.now_ms()
        row = _row(notification)
        if held is not None:
            same = filters.holds(family, layout.VERSION, held.message_id.encode(), now_ms=now_ms)
            return await self._session.check(key, same, then=row, repeatable=repeatable)
        there = filters.has(family, layout.VERSION, now_ms=now_ms)
        return not await self._session.check(key, there, otherwise=row, repeatable=repeatable)

    async def fetch(
        self, uaid: Uaid, *, now_ms: int, after: SortKey | None, limit: int
    ) -> Sequence[Notification]:
        start, end = layout.messages_after(uaid, after)
        # The record sorts before its messages, so the first portion brings the channels along.
        rows = await self._session.read_rows(
            filters.alive(now_ms, ROUTER, MESSAGE, MESSAGE_TOPIC),
            keys=[layout.agent_key(uaid)],
            after=(start, end),
            limit=limit + 1,
        )
        channels = await self._channels(uaid, rows)
        if not channels:
            return []
        rows = rows[1:]
        while rows:
            alive = [
                notification
                for row in rows
                if (notification := self._decode(row)) is not None
                and notification.channel_id in channels
                and not notification.expired(now_ms)
            ]
            if alive or len(rows) < limit:
                return alive
            rows = await self._session.read_rows(
                filters.alive(now_ms, MESSAGE, MESSAGE_TOPIC),
                after=(rows[-1].key, end),
                limit=limit,
            )
        return []

    async def forget(self, uaid: Uaid, rows: Sequence[tuple[SortKey, MessageId]]) -> int:
        there = await asyncio.gather(
            *(self._forget(uaid, sort_key, message_id) for sort_key, message_id in rows)
        )
        return sum(there)

    async def _forget(self, uaid: Uaid, sort_key: SortKey, message_id: MessageId) -> bool:
        family = layout.family_of(sort_key)
        same = filters.holds(family, layout.VERSION, message_id.encode())
        key = layout.message_key(uaid, sort_key)
        return await self._session.check(key, same, then=[drop_row()])

    # Inside

    async def _channels(self, uaid: Uaid, rows: Sequence[Row]) -> frozenset[ChannelId]:
        """Those of the record, which comes first if there is one."""
        if not rows or rows[0].key != layout.agent_key(uaid):
            return frozenset()
        seen = await self._user_agents.decode(uaid, rows[0].cells)
        return frozenset() if seen is None else seen.channels

    async def _read(self, uaid: Uaid, sort_key: SortKey) -> Notification | None:
        """Which message is there, and its age and end, without what it says."""
        key = layout.message_key(uaid, sort_key)
        family = layout.family_of(sort_key)
        wanted = filters.columns(self._clock.now_ms(), family, layout.AGE_PATTERN)
        cells = await self._session.read_row(key, wanted)
        return None if cells is None else self._decode(Row(key, cells))

    def _decode(self, row: Row) -> Notification | None:
        try:
            return layout.decode_notification(row.key, _values(row.cells))
        except layout.UndecodableError:
            self._session.stats.undecodable += 1
            return None


def _row(notification: Notification) -> list[Mutation]:
    family = layout.family_of(notification.sort_key)
    columns = layout.encode_notification(notification)
    ends_at_ms = notification.expires_at_ms
    return [
        drop_row(),
        *(set_cell(family, name, value, ends_at_ms) for name, value in columns.items()),
    ]


def _values(cells: Cells) -> dict[bytes, bytes]:
    return {name: cell.value for (_, name), cell in cells.items()}


def _age(notification: Notification) -> tuple[int, MessageId]:
    return notification.accepted_at_ms, notification.message_id
