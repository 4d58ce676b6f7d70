"""Copies a whole store into another, part by part, while servers may run on both (`dual:`).

It moves pages of user agents in the same way as `moves.py` moves one:

Rule 1: a user agent without a record in the target is written whole, with `MOVING` as its node.
        Then it is read in the source again, and removals since the first read are repeated. Only
        then it gets its node; one that has a tombstone by then is removed. The next run or a server
        completes an incomplete one; each step may be done twice.
Rule 2: notifications are copied after all records, so servers that save one during the copy save it
        in the target. A notification is written only if its key is free in the target: an ack
        leaves a tombstone under the key (`push.py`, rule 8).
Rule 3: rows are written within FRESH_S of being read; a tombstone lasts longer.
Rule 4: the copy removes nothing in the source and replaces nothing newer in the target.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import msgspec

from waystation.base.clock import Clock, SystemClock
from waystation.base.errors import StoreUnavailableError
from waystation.push.model import Notification, Uaid, UserAgent
from waystation.push.store import PushStore
from waystation.storage.bulk import UNLIMITED, BulkStore, StoreConfig, read_store_config
from waystation.storage.bulk_rows import (
    TOMBSTONE_MARK,
    StoredNotification,
    UserAgentSnapshot,
    worth_copying,
)
from waystation.storage.dual.moves import MOVING, TOMBSTONE_KEPT_MS, begun, tombstone
from waystation.storage.open import find_backend, open_bulk, open_push_store

FRESH_S = 600.0
AT_ONCE = 256  # rows of a page that are written concurrently
_TOPICS_MAX = 1000


class Copied(msgspec.Struct):
    """Results of one page."""

    read: int = 0
    written: int = 0
    present: int = 0  # already in the target
    gone: int = 0  # removed or acked during the copy
    refused: int = 0  # their key belongs to another message


def open_copier(source: str, target: str) -> "Copier":
    """`source` and `target` are paths of files that `write_store_config` has written."""
    return Copier(source, target, SystemClock())


class Copier:
    """Copies between two stores in a separate process."""

    def __init__(self, source: str, target: str, clock: Clock) -> None:
        self._runner = asyncio.Runner()
        self._source: BulkStore = open_bulk(source, self._runner)
        config = read_store_config(target)
        self._store: PushStore = self._runner.run(self._opened(config, clock))
        # A process can open a local store only once, so one environment serves reads and writes.
        is_local = find_backend(config.url).directory is not None
        self._target = None if is_local else open_bulk(target, self._runner)
        self._copy = Copy(self._source, self._store, self._target, clock)

    async def _opened(self, config: StoreConfig, clock: Clock) -> PushStore:
        return await open_push_store(
            config.url, data_dir=Path(config.data_dir), settings=config.bulk_settings, clock=clock
        )

    def copy(self, table: str, part: bytes, since_ms: int) -> Iterator[Copied]:
        """Copies `records` or `notifications` of a part, page by page; only those that connected
        or were accepted since `since_ms`."""
        pages = self._copy.records if table == "records" else self._copy.notifications
        work = pages(part, since_ms)

        async def step() -> Copied | None:
            return await anext(work, None)

        while (copied := self._runner.run(step())) is not None:
            yield copied

    def close(self) -> None:
        self._runner.run(self._store.close())
        if self._target is not None:
            self._runner.run(self._target.close_connections())
        self._source.close()


class Copy:
    """Copies from a bulk reader into a store; `target` is the store's bulk writer, if it has one
    that is faster than its server interface."""

    def __init__(
        self, source: BulkStore, store: PushStore, target: BulkStore | None, clock: Clock
    ) -> None:
        self._source = source
        self._store = store
        self._target = target
        self._clock = clock

    # Records

    async def records(self, part: bytes, since_ms: int) -> AsyncIterator[Copied]:
        bounds = {"connected_at_ms": (since_ms, None)} if since_ms else {}
        async for page in self._source.user_agents(part, bounds, whole=True):
            read_mono = time.monotonic()
            now_ms = self._clock.now_ms()
            alive = [one for one in page if not one.over(now_ms)]
            copied = Copied(read=len(alive))
            for at in range(0, len(alive), AT_ONCE):
                _check_fresh(read_mono)
                await self._move(alive[at : at + AT_ONCE], copied)
            yield copied

    async def _move(self, snapshots: Sequence[UserAgentSnapshot], copied: Copied) -> None:
        begins = [begun(one.record) for one in snapshots]
        new = await self._add_user_agents(
            [
                UserAgentSnapshot(record=record, channels=one.channels, updates=one.updates)
                for record, one in zip(begins, snapshots, strict=True)
            ]
        )
        ours: list[tuple[UserAgent, UserAgentSnapshot]] = []
        for record, one, is_new in zip(begins, snapshots, new, strict=True):
            if is_new or await self._left_behind(one, copied):
                ours.append((record, one))
        if not ours:
            return
        looked = await self._source.read_user_agents([one.record.uaid for _, one in ours])
        now = {one.record.uaid: one for one in looked}
        settled: list[tuple[UserAgent, UserAgentSnapshot]] = []
        for record, one in ours:
            again = now.get(one.record.uaid)
            if again is None:
                await self._remove(one, copied)
            else:
                await self._catch_up(one, again)
                settled.append((record, one))
        await self._set_routes(
            [record for record, _ in settled], [one.record for _, one in settled]
        )
        # Checked after settling, or a user agent removed during it would stay.
        for one, is_removed in await self._with_tombstones([one for _, one in settled]):
            if is_removed:
                await self._remove(one, copied)
            else:
                copied.written += 1

    async def _remove(self, one: UserAgentSnapshot, copied: Copied) -> None:
        await self._store.remove_user_agent(one.record.uaid)
        copied.gone += 1

    async def _add_user_agents(self, snapshots: Sequence[UserAgentSnapshot]) -> Sequence[bool]:
        if self._target is not None:
            return await self._target.add_user_agents(self._store, snapshots)
        return await BulkStore.add_user_agents(self._source, self._store, snapshots)

    async def _set_routes(self, begins: Sequence[UserAgent], records: Sequence[UserAgent]) -> None:
        anew = [msgspec.structs.replace(one, row_version=None, behind=False) for one in records]
        if self._target is not None:
            await self._target.set_routes(self._store, begins, anew)
        else:
            await BulkStore.set_routes(self._source, self._store, begins, anew)

    async def _left_behind(self, one: UserAgentSnapshot, copied: Copied) -> bool:
        """Whether an earlier run left the record incomplete. A complete one may be outdated if
        servers have used the source alone since."""
        held = await self._store.get_user_agent(one.record.uaid)
        if held is not None and held.node_id == MOVING:
            await self._catch_up(UserAgentSnapshot(record=one.record), one)
            return True
        copied.present += 1
        if held is not None and held.connected_at_ms < one.record.connected_at_ms:
            record = msgspec.structs.replace(one.record, row_version=None, behind=False)
            if await self._store.claim_route(record):
                await self._catch_up(UserAgentSnapshot(record=one.record), one)
        return False

    async def _catch_up(self, seen: UserAgentSnapshot, now: UserAgentSnapshot) -> None:
        """Repeats in the target what has changed in the source since `seen`."""
        uaid = seen.record.uaid
        for channel_id in seen.channels - now.channels:
            await self._store.remove_channel(uaid, channel_id)
        for channel_id in now.channels - seen.channels:
            await self._store.add_channel(uaid, channel_id, channels_max=UNLIMITED)
        for update in set(seen.updates) - set(now.updates):
            await self._store.forget_update(uaid, update.channel_id, update.version)
        for update in set(now.updates) - set(seen.updates):
            await self._store.save_update(uaid, update)

    async def _with_tombstones(
        self, snapshots: Sequence[UserAgentSnapshot]
    ) -> Sequence[tuple[UserAgentSnapshot, bool]]:
        """Each user agent, and whether it was removed after it connected."""
        stones = [tombstone(one.record.uaid) for one in snapshots]
        now_ms = self._clock.now_ms()
        if self._target is not None:
            kept = await self._target.statuses_kept_until(self._store, stones, now_ms)
        else:
            kept = await BulkStore.statuses_kept_until(self._source, self._store, stones, now_ms)
        return [
            (one, one.record.connected_at_ms <= kept.get(stone, 0) - TOMBSTONE_KEPT_MS)
            for one, stone in zip(snapshots, stones, strict=True)
        ]

    # Notifications

    async def notifications(self, part: bytes, since_ms: int) -> AsyncIterator[Copied]:
        async for page in self._source.notifications(part, {}, whole=True):
            read_mono = time.monotonic()
            now_ms = self._clock.now_ms()
            due = [
                row
                for row in page
                if worth_copying(row[1], now_ms) and row[1].accepted_at_ms >= since_ms
            ]
            copied = Copied(read=len(due))
            for at in range(0, len(due), AT_ONCE):
                _check_fresh(read_mono)
                await self._save(due[at : at + AT_ONCE], copied)
            yield copied

    async def _save(self, rows: Sequence[StoredNotification], copied: Copied) -> None:
        saved = await asyncio.gather(*(self._store.save_new(*row) for row in rows))
        copied.written += sum(saved)
        for (uaid, row), is_saved in zip(rows, saved, strict=True):
            if not is_saved:
                await self._meet(uaid, row, copied)

    async def _meet(self, uaid: Uaid, row: Notification, copied: Copied) -> None:
        """Its key exists in the target. Of two messages of a topic the newer one stays."""
        held = await self._held(uaid, row)
        if held is None or held.message_id.startswith(TOMBSTONE_MARK):
            copied.gone += 1
        elif row.topic is None:
            copied.refused += 1
        elif (held.accepted_at_ms, held.message_id) < (row.accepted_at_ms, row.message_id):
            copied.written += (await self._store.save_if_newer(uaid, [row])).written
        else:
            copied.present += 1

    async def _held(self, uaid: Uaid, row: Notification) -> Notification | None:
        """The target's row as fetched: None if it has expired or its channel was removed."""
        now_ms = self._clock.now_ms()
        rows = await self._store.fetch(uaid, now_ms=now_ms, after=None, limit=_TOPICS_MAX)
        while rows:
            for held in rows:
                if held.sort_key == row.sort_key:
                    return held
            if rows[-1].sort_key > row.sort_key:
                return None
            after = rows[-1].sort_key
            rows = await self._store.fetch(uaid, now_ms=now_ms, after=after, limit=_TOPICS_MAX)
        return None


def _check_fresh(read_mono: float) -> None:
    if time.monotonic() - read_mono > FRESH_S:
        raise StoreUnavailableError(f"a page took longer than {FRESH_S:g} s: ask for more parts")
