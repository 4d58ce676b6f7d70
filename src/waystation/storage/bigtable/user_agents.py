"""Records, routes, subscriptions and SimplePush's updates: what one row of Bigtable holds.

Rule 1: `version` changes when the record is written and when a channel is removed, as Autopush has
        it; a claim writes all columns anew, channels too, so that they end together.
Rule 2: `fence` changes when a channel is added, which leaves `version` alone: it is what keeps
        `channels_max`.
Rule 3: a record without its `connected_at` is the remains of one. It is removed on sight.
Rule 4: no step here trusts what was read before: it is in the predicate of the write.
"""

import asyncio
import os
import random
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec

from waystation.base.clock import Clock
from waystation.base.errors import BusyError
from waystation.base.ids import new_uuid4
from waystation.push.model import (
    ChannelId,
    Recipient,
    Route,
    SavedUpdate,
    Uaid,
    Update,
    UserAgent,
)
from waystation.storage.bigtable import filters, layout
from waystation.storage.bigtable.cells import (
    Cells,
    Mutation,
    drop_column,
    drop_row,
    replace_cell,
    set_cell,
)
from waystation.storage.bigtable.filters import RowFilter
from waystation.storage.bigtable.layout import OWN, ROUTER
from waystation.storage.bigtable.session import Session

TRIES_MAX = 64  # of a write that somebody else's writes make void again and again
RECENT_MAX = 4096  # rows as they were read, for the claim that usually follows
_PAUSE_S = 0.02
_LISTED_AT_ONCE = 1000


class SeenUpdate(NamedTuple):
    update: Update
    ends_at_ms: int  # of the version's cell


class Seen(msgspec.Struct, frozen=True):
    """A row as it was read."""

    record: UserAgent
    channels: frozenset[ChannelId]
    fence: bytes | None
    updates: dict[ChannelId, SeenUpdate]
    node_id_ends_at_ms: int


class UserAgents:
    def __init__(self, session: Session, clock: Clock, lifetime_s: int) -> None:
        self._session = session
        self._clock = clock
        self._lifetime_ms = lifetime_s * 1000
        self._recent: OrderedDict[Uaid, Seen] = OrderedDict()
        self._look_up = session.look_ups(self._records_and)
        self._read_whole = session.look_ups(self._whole_rows)

    # Reads

    async def get(self, uaid: Uaid) -> UserAgent | None:
        seen = await self.read(uaid)
        if seen is None:
            return None
        self._recent[uaid] = seen
        self._recent.move_to_end(uaid)
        if len(self._recent) > RECENT_MAX:
            self._recent.popitem(last=False)
        return seen.record

    async def look_up(self, uaid: Uaid, channel_id: ChannelId) -> Recipient | None:
        seen = await self.decode(uaid, await self._look_up(layout.agent_key(uaid), channel_id))
        return None if seen is None else Recipient(seen.record, channel_id in seen.channels)

    def _records_and(self, channel_ids: Collection[ChannelId]) -> RowFilter:
        """The records of several look-ups, with the subscriptions that any of them asks about."""
        pattern = layout.record_pattern(*set(channel_ids))
        return filters.columns(self._clock.now_ms(), ROUTER, pattern)

    async def read(self, uaid: Uaid) -> Seen | None:
        """The whole row; remains of one are removed."""
        return await self.decode(uaid, await self._read_whole(layout.agent_key(uaid), None))

    def _whole_rows(self, _: Collection[None]) -> RowFilter:
        return filters.alive(self._clock.now_ms(), ROUTER, OWN)

    async def decode(self, uaid: Uaid, cells: Cells | None) -> Seen | None:
        if cells is None:
            return None
        router = {name: cell.value for (family, name), cell in cells.items() if family == ROUTER}
        own = {name: cell.value for (family, name), cell in cells.items() if family == OWN}
        try:
            record = layout.decode_record(uaid, router)
        except layout.UndecodableError:
            self._session.stats.undecodable += 1
            return None
        if record is None:
            await self._drop_incomplete(uaid)
            return None
        node_id = cells.get((ROUTER, layout.NODE_ID))
        return Seen(
            record,
            layout.channels_among(router),
            own.get(layout.FENCE),
            {
                one: SeenUpdate(update, cells[OWN, layout.update_column(one)].ends_at_ms)
                for one, update in layout.updates_among(own).items()
            },
            0 if node_id is None else node_id.ends_at_ms,
        )

    async def _drop_incomplete(self, uaid: Uaid) -> None:
        whole = filters.has(ROUTER, layout.CONNECTED_AT, now_ms=self._clock.now_ms())
        if not await self._session.check(layout.agent_key(uaid), whole, otherwise=[drop_row()]):
            self._session.stats.incomplete += 1

    # Records and routes

    async def add(self, record: UserAgent) -> bool:
        # What waits under this id is a forerunner's, and is listed before there is a new one:
        # what is saved from then on is not touched.
        left_behind = await self.message_keys(record.uaid)
        ends_at_ms = self._lifetime_end()
        columns = layout.encode_record(record, new_uuid4())
        mutations = [
            drop_row(),
            *(set_cell(ROUTER, name, value, ends_at_ms) for name, value in columns.items()),
            set_cell(OWN, layout.FENCE, os.urandom(8), ends_at_ms),
        ]
        there = filters.has(ROUTER, layout.CONNECTED_AT, now_ms=self._clock.now_ms())
        if await self._session.check(layout.agent_key(record.uaid), there, otherwise=mutations):
            return False
        await self.remove_rows(left_behind)
        return True

    async def claim(self, claim: UserAgent) -> bool:
        seen = self._recent.pop(claim.uaid, None)
        if seen is not None and seen.record.row_version != claim.row_version:
            seen = None
        remembered = seen is not None
        for tried in range(TRIES_MAX):
            if seen is None:
                await _pause(tried)
                seen = await self.read(claim.uaid)
            if seen is None:
                if await self.add(claim):
                    return True
                continue
            held = seen.record
            if claim.row_version is not None and held.row_version != claim.row_version:
                return False
            if held.node_id is not None and held.connected_at_ms >= claim.connected_at_ms:
                if not remembered:
                    return False
                # Its route may have been cleared since: that leaves `version` as it was.
                seen, remembered = None, False
                continue
            if await self._overwrite(claim, seen):
                return True
            if claim.row_version is not None:
                return False  # the row is not the one that was read
            seen, remembered = None, False
        raise _contended()

    async def _overwrite(self, claim: UserAgent, seen: Seen) -> bool:
        ends_at_ms = self._lifetime_end()
        columns = layout.encode_record(claim, new_uuid4())
        mutations: list[Mutation] = [drop_column(ROUTER, name) for name in layout.RECORD_COLUMNS]
        mutations += [set_cell(ROUTER, name, value, ends_at_ms) for name, value in columns.items()]
        mutations += [
            set_cell(ROUTER, layout.channel_column(channel_id), layout.CHANNEL_MARK, ends_at_ms)
            for channel_id in seen.channels
        ]
        mutations += replace_cell(OWN, layout.FENCE, os.urandom(8), ends_at_ms)
        version = seen.record.row_version
        if not await self._write_if(claim.uaid, ROUTER, layout.VERSION, version, mutations):
            return False
        key = layout.agent_key(claim.uaid)
        for held in seen.updates.values():
            # One by one, and only while it is the newest: a later one may have come meanwhile.
            renewed = _set_update(held.update, ends_at_ms)
            await self._session.check(key, _still(held), then=renewed)
        return True

    async def clear_route(self, uaid: Uaid, route: Route) -> bool:
        wanted = filters.columns(self._clock.now_ms(), ROUTER, layout.record_pattern())
        cells = await self._session.read_row(layout.agent_key(uaid), wanted)
        seen = await self.decode(uaid, cells)
        held = None if seen is None else seen.record.route
        if seen is None or held is None:
            return False
        if route.row_version is None:
            held = Route(held.node_id, held.connected_at_ms)
        if held != route:
            return False
        # `version` stays as it is, for a hello that has read it; so the cell itself, which no
        # other claim writes with the same end, says whether this is still the route that was seen.
        same = filters.holds_until(
            ROUTER, layout.NODE_ID, route.node_id.encode(), seen.node_id_ends_at_ms
        )
        cleared: list[Mutation] = [drop_column(ROUTER, layout.NODE_ID)]
        return await self._session.check(layout.agent_key(uaid), same, then=cleared)

    async def advance_cursor(self, uaid: Uaid, up_to_ms: int) -> bool:
        seen = await self.read(uaid)
        if seen is None or (seen.record.current_timestamp_ms or 0) >= up_to_ms:
            return False
        # `version` stays as it is: a hello that has read it would be refused for nothing.
        there = filters.has(ROUTER, layout.CONNECTED_AT, now_ms=self._clock.now_ms())
        cursor = layout.number(up_to_ms)
        moved = replace_cell(ROUTER, layout.CURSOR, cursor, self._lifetime_end())
        return await self._session.check(layout.agent_key(uaid), there, then=moved)

    async def remove(self, uaid: Uaid) -> bool:
        self._recent.pop(uaid, None)
        there = filters.has(ROUTER, layout.CONNECTED_AT, now_ms=self._clock.now_ms())
        key = layout.agent_key(uaid)
        known = await self._session.check(key, there, then=[drop_row()], otherwise=[drop_row()])
        # Without a record nobody fetches them; after a crash here they go when their time is over.
        await self.remove_rows(await self.message_keys(uaid))
        return known

    # Subscriptions

    async def add_channel(self, uaid: Uaid, channel_id: ChannelId, channels_max: int) -> bool:
        for tried in range(TRIES_MAX):
            await _pause(tried)
            seen = await self.read(uaid)
            if seen is None:
                return False
            if channel_id in seen.channels:
                return True
            if len(seen.channels) >= channels_max:
                return False
            ends_at_ms = self._lifetime_end()
            column = layout.channel_column(channel_id)
            mutations: list[Mutation] = [
                set_cell(ROUTER, column, layout.CHANNEL_MARK, ends_at_ms),
                *_drop_update(channel_id),
                *replace_cell(OWN, layout.FENCE, os.urandom(8), ends_at_ms),
            ]
            if await self._write_if(uaid, OWN, layout.FENCE, seen.fence, mutations):
                return True
        raise _contended()

    async def remove_channel(self, uaid: Uaid, channel_id: ChannelId) -> bool:
        self._recent.pop(uaid, None)
        column = layout.channel_column(channel_id)
        there = filters.has(ROUTER, column, now_ms=self._clock.now_ms())
        mutations = [
            drop_column(ROUTER, column),
            *_drop_update(channel_id),
            *replace_cell(ROUTER, layout.VERSION, new_uuid4(), self._lifetime_end()),
        ]
        if not await self._session.check(layout.agent_key(uaid), there, then=mutations):
            return False
        await self.remove_rows(await self.message_keys(uaid, channel_id))
        return True

    # SimplePush

    async def save_update(self, uaid: Uaid, update: Update) -> SavedUpdate:
        key = layout.agent_key(uaid)
        for tried in range(TRIES_MAX):
            await _pause(tried)
            seen = await self.read(uaid)
            if seen is None or update.channel_id not in seen.channels:
                return SavedUpdate(False)
            held = seen.updates.get(update.channel_id)
            saved = update.saved(None if held is None else held.update)
            if not saved.applied:
                return saved
            # Should the channel be removed just now, nobody sees this; whoever adds it again
            # drops it.
            mutations = _drop_update(update.channel_id) + _set_update(update, self._lifetime_end())
            if held is None:
                column = layout.update_column(update.channel_id)
                there = filters.has(OWN, column, now_ms=self._clock.now_ms())
                written = not await self._session.check(key, there, otherwise=mutations)
            else:
                written = await self._session.check(key, _still(held), then=mutations)
            if written:
                return saved
        raise _contended()

    async def fetch_updates(self, uaid: Uaid, limit: int) -> Sequence[Update]:
        seen = await self.read(uaid)
        if seen is None:
            return []
        known = sorted(seen.updates.keys() & seen.channels)
        return [seen.updates[channel_id].update for channel_id in known[:limit]]

    async def forget_update(self, uaid: Uaid, channel_id: ChannelId, version: int) -> bool:
        column = layout.update_column(channel_id)
        value = layout.encode_update_version(version)
        same = filters.holds(OWN, column, value, now_ms=self._clock.now_ms())
        return await self._session.check(
            layout.agent_key(uaid), same, then=_drop_update(channel_id)
        )

    # Message rows by their keys

    async def message_keys(self, uaid: Uaid, channel_id: ChannelId | None = None) -> list[bytes]:
        families = (layout.MESSAGE, layout.MESSAGE_TOPIC)
        if channel_id is None:
            wanted = filters.keys_only(*families)
        else:
            wanted = filters.keys_matching(layout.messages_of_channel(channel_id), *families)
        start, end = layout.messages_after(uaid, None)
        found: list[bytes] = []
        while True:
            rows = await self._session.read_rows(wanted, after=(start, end), limit=_LISTED_AT_ONCE)
            found += [row.key for row in rows]
            if len(rows) < _LISTED_AT_ONCE:
                return found
            start = rows[-1].key

    async def remove_rows(self, keys: Sequence[bytes]) -> None:
        if keys:
            await self._session.write_many([(key, [drop_row()]) for key in keys])

    # Inside

    async def _write_if(
        self, uaid: Uaid, family: str, column: bytes, seen: bytes | None, mutations: list[Mutation]
    ) -> bool:
        """Applied only if the column still has the value that was seen, or still none."""
        key = layout.agent_key(uaid)
        now_ms = self._clock.now_ms()
        if seen is not None:
            same = filters.holds(family, column, seen, now_ms=now_ms)
            return await self._session.check(key, same, then=mutations)
        there = filters.has(family, column, now_ms=now_ms)
        return not await self._session.check(key, there, otherwise=mutations)

    def _lifetime_end(self) -> int:
        return self._clock.now_ms() + self._lifetime_ms


def _set_update(update: Update, ends_at_ms: int) -> list[Mutation]:
    columns = layout.encode_update(update)
    return [set_cell(OWN, name, value, ends_at_ms) for name, value in columns.items()]


def _drop_update(channel_id: ChannelId) -> list[Mutation]:
    columns = (layout.update_column(channel_id), layout.update_time_column(channel_id))
    return [drop_column(OWN, column) for column in columns]


def _still(held: SeenUpdate) -> RowFilter:
    """The very cell: the same version may be acked and saved again, at another time."""
    column = layout.update_column(held.update.channel_id)
    value = layout.encode_update_version(held.update.version)
    return filters.holds_until(OWN, column, value, held.ends_at_ms)


async def _pause(tried: int) -> None:
    """Whoever lost a race tries again a little later than the others."""
    if tried:
        await asyncio.sleep(random.uniform(0, _PAUSE_S * min(tried, 10)))


def _contended() -> BusyError:
    return BusyError("others keep writing this user agent's row", retry_after_s=1)
