"""The push store on LMDB: reads in the loop, writes through the group-commit writer.

A write is on disk when its call returns. `look_up`, `fetch` and the other reads complete without
suspending.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

import msgspec

from waystation.base.clock import Clock
from waystation.base.errors import StoreFullError, StoreUnavailableError
from waystation.push.model import (
    ChannelId,
    HandedBack,
    MessageId,
    MessageStatus,
    Milestone,
    MilestoneNote,
    Notification,
    Recipient,
    Replaced,
    Route,
    SavedUpdate,
    SortKey,
    Uaid,
    Update,
    UserAgent,
)
from waystation.storage.embedded import layout
from waystation.storage.embedded.backend import CAPABILITIES
from waystation.storage.embedded.environment import STORE_ERRORS, Environment, store_error
from waystation.storage.embedded.free_space import FreeSpace
from waystation.storage.embedded.push_changes import PushChanges
from waystation.storage.embedded.push_reads import PushReads
from waystation.storage.embedded.tracking import TrackingChanges
from waystation.storage.embedded.writer import Operation, Writer, WriterStats
from waystation.storage.settings import Store

P = ParamSpec("P")
T = TypeVar("T")

# Rows that one operation may touch, so that other writes run between portions of a long removal.
_PORTION = 1000
_BROADCAST_ID_BYTES_MAX = layout.KEY_BYTES_MAX


class EmbeddedPushStore:
    """One directory on a local disk, shared by all worker processes of a machine."""

    capabilities = CAPABILITIES

    def __init__(self, env: Environment, writer: Writer, clock: Clock) -> None:
        self.env = env
        self._writer = writer
        self._reads = PushReads(env, clock)
        self._changes = PushChanges(env, clock, writer.stats)
        self._tracking = TrackingChanges(env)
        self._clock = clock
        self._closed = False

    @classmethod
    async def open(cls, path: Path, *, settings: Store, clock: Clock) -> "EmbeddedPushStore":
        """Open or create the store in the directory `path`; once per process."""
        env = Environment.open(path, form=layout.FORMAT, tables=layout.TABLES, settings=settings)
        writer = Writer(
            env,
            FreeSpace(env, disk_reserve_bytes=settings.disk_reserve_bytes),
            commit_batch_max=settings.commit_batch_max,
            queue_max=settings.queue_max,
            loop=asyncio.get_running_loop(),
        )
        return cls(env, writer, clock)

    def stats(self) -> WriterStats:
        """Counters of the writer: operations, commits, time in commits, refusals."""
        return self._writer.stats

    # User agents and routes

    async def get_user_agent(self, uaid: Uaid) -> UserAgent | None:
        return self._read(self._reads.user_agent, uaid)

    async def look_up(self, uaid: Uaid, channel_id: ChannelId) -> Recipient | None:
        return self._read(self._reads.recipient, uaid, channel_id, self._clock.now_ms())

    async def add_user_agent(self, user_agent: UserAgent) -> bool:
        record = _without_row_version(user_agent)
        return await self._grow(partial(self._changes.add_user_agent, record))

    async def claim_route(self, user_agent: UserAgent) -> bool:
        # Not counted as growth: a known user agent may reconnect while the store is full.
        record = _without_row_version(user_agent)
        return await self._change(partial(self._changes.claim_route, record))

    async def clear_route(self, uaid: Uaid, seen: Route) -> bool:
        return await self._change(partial(self._changes.clear_route, uaid, seen))

    async def remove_user_agent(self, uaid: Uaid) -> bool:
        # Without its record no row is visible; the remaining rows are removed in portions.
        known, more = await self._change(partial(self._changes.remove_user_agent, uaid, _PORTION))
        while more:
            _, more = await self._change(partial(self._changes.clear_rows, uaid, _PORTION))
        return known

    # Subscriptions

    async def add_channel(self, uaid: Uaid, channel_id: ChannelId, *, channels_max: int) -> bool:
        return await self._grow(partial(self._changes.add_channel, uaid, channel_id, channels_max))

    async def get_channels(self, uaid: Uaid) -> frozenset[ChannelId]:
        return self._read(self._reads.channels, uaid)

    async def remove_channel(self, uaid: Uaid, channel_id: ChannelId) -> bool:
        if not await self._change(partial(self._changes.remove_channel, uaid, channel_id)):
            return False
        clear = self._changes.clear_channel
        after = await self._change(partial(clear, uaid, channel_id, None, _PORTION))
        while after is not None:
            after = await self._change(partial(clear, uaid, channel_id, after, _PORTION))
        return True

    # Notifications

    async def save(self, uaid: Uaid, notification: Notification) -> Replaced | None:
        key = layout.notification_key(uaid, notification.sort_key)
        payload = layout.encode_payload(key, notification)
        second = notification.expires_at_ms // 1000
        change = partial(self._changes.save, key, notification.channel_id, second, payload)
        replaced = await self._grow(change)
        if replaced is None or notification.topic is None:
            return None
        return None if replaced.message_id == notification.message_id else replaced  # sent twice

    async def save_new(self, uaid: Uaid, notification: Notification) -> bool:
        return await self._grow(partial(self._changes.save_new, uaid, notification))

    async def save_if_newer(self, uaid: Uaid, notifications: Sequence[Notification]) -> HandedBack:
        if not notifications:
            return HandedBack()
        return await self._grow(partial(self._changes.save_if_newer, uaid, tuple(notifications)))

    async def fetch(
        self, uaid: Uaid, *, now_ms: int, after: SortKey | None, limit: int
    ) -> Sequence[Notification]:
        return self._read(self._reads.notifications, uaid, now_ms, after, limit)

    async def forget(self, uaid: Uaid, rows: Sequence[tuple[SortKey, MessageId]]) -> int:
        if not rows:
            return 0
        return await self._change(partial(self._changes.forget, uaid, tuple(rows)))

    # SimplePush

    async def save_update(self, uaid: Uaid, update: Update) -> SavedUpdate:
        return await self._grow(partial(self._changes.save_update, uaid, update))

    async def fetch_updates(self, uaid: Uaid, *, limit: int) -> Sequence[Update]:
        return self._read(self._reads.updates, uaid, limit)

    async def forget_update(self, uaid: Uaid, channel_id: ChannelId, version: int) -> bool:
        return await self._change(partial(self._changes.forget_update, uaid, channel_id, version))

    # Broadcasts

    async def publish_broadcast(self, broadcast_id: str, version: str) -> bool:
        key = broadcast_id.encode()
        assert 0 < len(key) <= _BROADCAST_ID_BYTES_MAX, "the API limits the length of ids"
        return await self._grow(partial(self._changes.publish_broadcast, key, version.encode()))

    async def get_broadcasts(self) -> Mapping[str, str]:
        return self._read(self._reads.broadcasts)

    # Statuses and tracking

    async def note_milestones(self, notes: Sequence[MilestoneNote]) -> None:
        if notes:
            note = partial(self._changes.note_milestones, tuple(notes))
            await self._writer.submit(note, grows=True)

    async def get_status(self, message_id: MessageId, *, now_ms: int) -> MessageStatus | None:
        return self._read(self._reads.status, message_id, now_ms)

    async def track(
        self, reliability_id: str, milestone: Milestone, *, at_ms: int, expires_at_ms: int
    ) -> None:
        key = layout.tracked_key(reliability_id)
        await self._grow(partial(self._tracking.track, key, milestone, expires_at_ms))

    async def count_milestones(self, *, now_ms: int) -> Mapping[str, int]:
        await self._expire_tracked(now_ms)
        return self._read(self._reads.counts)

    # Upkeep

    async def sweep(self, *, now_ms: int, limit: int) -> int:
        await self._expire_tracked(now_ms)
        removed = 0
        portion = _PORTION
        more = True
        while more and removed < limit:
            take = min(portion, limit - removed)
            try:
                gone, more = await self._change(partial(self._changes.sweep, now_ms, take))
            except StoreFullError:
                if take == 1:
                    raise
                portion = take // 4 or 1  # fewer rows touch fewer pages
                continue
            removed += gone
        while removed < limit:
            take = min(_PORTION, limit - removed)
            gone = await self._change(partial(self._tracking.sweep, now_ms, take))
            removed += gone
            if gone < take:
                break
        return removed

    async def check(self) -> None:
        if self._closed:
            raise StoreUnavailableError("the store is closed")
        self._read(self._reads.probe)

    async def close(self) -> None:
        """Waits for submitted writes; safe to call twice."""
        if not self._closed:
            self._closed = True
            await self._writer.close()
            self.env.close()

    # Inside

    def _read(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return read(*args, **kwargs)
        except STORE_ERRORS as exc:
            raise store_error(exc) from exc

    def _change(self, operation: Operation[T]) -> asyncio.Future[T]:
        return self._writer.submit(operation, grows=False)

    def _grow(self, operation: Operation[T]) -> asyncio.Future[T]:
        return self._writer.submit(operation, grows=True)

    async def _expire_tracked(self, now_ms: int) -> None:
        while await self._change(partial(self._tracking.expire, now_ms, _PORTION)):
            pass


def _without_row_version(user_agent: UserAgent) -> UserAgent:
    """This store has no row versions; a foreign one would make equal routes differ."""
    if user_agent.row_version is None:
        return user_agent
    return msgspec.structs.replace(user_agent, row_version=None)
