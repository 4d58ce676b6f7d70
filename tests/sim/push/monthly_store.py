"""A store with a table for each short month, as the nodes of a world see it.

The steps of a move and of a save are those of the DynamoDB backend; each is a call of its own,
which may be slow, fail, or fail after its effect, and others come in between.
"""

from collections.abc import Iterator, MutableMapping
from typing import Any

import msgspec

from tests.sim.push.world import PushWorld
from waystation.base.clock import Clock
from waystation.push.model import (
    ChannelId,
    Notification,
    Recipient,
    SortKey,
    Uaid,
    UserAgent,
)
from waystation.storage.memory.push import MemoryPushStore
from waystation.testing.faults import FaultyStore

MONTH_MS = 6_000
SKEW_MS = 4_000  # clocks of a world are at most that far apart

Rows = dict[SortKey, Notification]


class _Placed(MutableMapping[Uaid, Rows]):
    """The rows of each user agent in the table that it is on."""

    def __init__(self, store: "MonthlyStore") -> None:
        self._store = store

    def _table(self, uaid: Uaid) -> dict[Uaid, Rows]:
        return self._store.table(self._store.months.get(uaid, -1))

    def __getitem__(self, uaid: Uaid) -> Rows:
        return self._table(uaid)[uaid]

    def __setitem__(self, uaid: Uaid, rows: Rows) -> None:
        self._table(uaid)[uaid] = rows

    def __delitem__(self, uaid: Uaid) -> None:
        del self._table(uaid)[uaid]

    def __iter__(self) -> Iterator[Uaid]:
        return iter([uaid for uaid in self._store.months if uaid in self._table(uaid)])

    def __len__(self) -> int:
        return sum(1 for _ in self)


class MonthlyStore(MemoryPushStore):
    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.months: dict[Uaid, int] = {}
        self.previous: dict[Uaid, int] = {}
        self.moves = 0
        self._tables: dict[int, dict[Uaid, Rows]] = {}
        self._notifications: Any = _Placed(self)

    def table(self, month: int) -> dict[Uaid, Rows]:
        return self._tables.setdefault(month, {})

    def month(self) -> int:
        return self._clock.now_ms() // MONTH_MS

    def _begin(self, user_agent: UserAgent) -> None:
        self.months[user_agent.uaid] = self.month()
        super()._begin(user_agent)

    def _end(self, uaid: Uaid) -> None:
        super()._end(uaid)
        self.previous.pop(uaid, None)

    def astray(self) -> Iterator[tuple[Uaid, Notification]]:
        """Rows in tables that nobody looks at any more."""
        for month, table in self._tables.items():
            for uaid, rows in table.items():
                if uaid in self._agents and self.months[uaid] != month:
                    yield from ((uaid, row) for row in rows.values())

    # One call each

    async def get_user_agent(self, uaid: Uaid) -> UserAgent | None:
        record = await super().get_user_agent(uaid)
        if record is None:
            return None
        behind = uaid in self.previous or self.months[uaid] < self.month()
        return msgspec.structs.replace(record, behind=behind)

    async def place(self, uaid: Uaid) -> int | None:
        return None if self._alive(uaid) is None else self.months[uaid]

    async def put_in(self, month: int, uaid: Uaid, notification: Notification) -> None:
        self.table(month).setdefault(uaid, {})[notification.sort_key] = notification

    async def carry(self, source: int, target: int, uaid: Uaid, row: Notification) -> None:
        """All or nothing, so that of two who do it one does."""
        rows = self.table(source).get(uaid, {})
        held = rows.get(row.sort_key)
        if held is None or held.message_id != row.message_id:
            return
        del rows[row.sort_key]
        there = self.table(target).get(uaid, {}).get(row.sort_key)
        if there is None or there.accepted_at_ms < row.accepted_at_ms:
            await self.put_in(target, uaid, row)

    async def left_in(self, month: int, uaid: Uaid) -> list[Notification]:
        return list(self.table(month).get(uaid, {}).values())

    async def point(self, uaid: Uaid, source: int, target: int, connected_at_ms: int) -> bool:
        agent = self._alive(uaid)
        if agent is None or self.months[uaid] != source:
            return False
        if agent.record.node_id is not None and agent.record.connected_at_ms > connected_at_ms:
            return False
        self.months[uaid], self.previous[uaid] = target, source
        self.moves += 1
        return True

    async def finish(self, uaid: Uaid, source: int) -> None:
        if self.previous.get(uaid) == source:
            del self.previous[uaid]


class FaultyMonthlyStore(FaultyStore):
    """One node's view: it remembers where user agents were, as a process does."""

    def __init__(self, inner: MonthlyStore, world: PushWorld, source: str) -> None:
        super().__init__(inner, world._store_luck, world.history, source)
        self._monthly = inner
        self._clock = world.clock
        self._remembered: dict[Uaid, int] = {}

    async def look_up(self, uaid: Uaid, channel_id: ChannelId) -> Recipient | None:
        recipient = await super().look_up(uaid, channel_id)
        if recipient is not None:
            self._remembered[uaid] = self._monthly.months[uaid]
        return recipient

    async def _place(self, uaid: Uaid) -> int | None:
        place = await self._call("place", uaid, self._monthly.place(uaid))
        if place is not None:
            self._remembered[uaid] = place
        return place

    async def save(self, uaid: Uaid, notification: Notification) -> None:
        place = self._remembered.get(uaid)
        month = place if place is not None else await self._place(uaid)
        if month is None:
            month = self._monthly.month()
        await self._call(
            "save",
            uaid,
            self._monthly.put_in(month, uaid, notification),
            lambda _: self._witness.saved(self._source, uaid, [notification], ghost=self.ghost),
        )
        if month == (self._clock.now_ms() + SKEW_MS) // MONTH_MS:
            return
        now = await self._place(uaid)
        if now is None or now == month:
            return
        await self._call("carry", uaid, self._monthly.carry(month, now, uaid, notification))

    async def switch_month(self, uaid: Uaid, *, connected_at_ms: int) -> bool:
        month = await self._place(uaid)
        if month is None:
            return False
        if (previous := self._monthly.previous.get(uaid)) is not None:
            await self._take_along(uaid, previous, month)
        current = self._monthly.month()
        if month >= current:
            return True
        pointing = self._monthly.point(uaid, month, current, connected_at_ms)
        if not await self._call("point", uaid, pointing):
            return False
        self._remembered[uaid] = current
        await self._take_along(uaid, month, current)
        return True

    async def _take_along(self, uaid: Uaid, source: int, target: int) -> None:
        store = self._monthly
        for row in await self._call("left", uaid, store.left_in(source, uaid)):
            await self._call("carry", uaid, store.carry(source, target, uaid, row))
        await self._call("finish", uaid, store.finish(uaid, source))


class MonthlyWorld(PushWorld):
    """A push service on a store that rotates every few seconds."""

    _store: MonthlyStore

    def make_backend(self) -> MonthlyStore:
        return MonthlyStore(self.clock)

    def make_store(self, source: str) -> FaultyStore:
        return FaultyMonthlyStore(self._store, self, source)

    async def _look_for_leftovers(self) -> bool:
        await super()._look_for_leftovers()
        self.history.left += [
            ("a table that nobody looks at", uaid, row.message_id)
            for uaid, row in self._store.astray()
            if not row.expired(self.clock.now_ms())
        ]
        return bool(self.history.left)
