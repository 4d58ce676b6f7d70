"""Moves a user agent from the secondary to the primary store while servers use it.

Rule 1: the primary is the home of a user agent with a whole record there, whatever the medians of
        this process say: another process may have moved it. Otherwise the secondary is its home,
        and it is moved at its next use if the medians allot it to the primary.
Rule 2: a record is begun in the primary with `MOVING` as its node, and is whole when its real node
        replaces that. Incomplete records are never returned to callers; the next process that
        reads one completes it. Each step may be done twice.
Rule 3: subscriptions are read in the secondary after the record was begun, and again after they
        were copied; removals between the reads are repeated. Removals go to the secondary first,
        so the second read cannot miss them.
Rule 4: a removal first writes a tombstone into the primary. A record of the secondary that is not
        younger is not copied, and one whose copy was in progress is removed at its end.
Rule 5: the record in the secondary is kept: notifications stored there are found through it.
"""

import asyncio

import msgspec

from waystation.base.clock import Clock
from waystation.base.errors import StoreUnavailableError
from waystation.base.limits import BoundedLru
from waystation.push.model import (
    USER_AGENT_LIFETIME_S,
    ChannelId,
    MessageId,
    Milestone,
    MilestoneNote,
    Uaid,
    UserAgent,
)
from waystation.push.store import PushStore
from waystation.storage.dual.url import DualUrl

MOVING = "dual:moving"
TRIES_MAX = 8
KNOWN_MAX = 65_536  # user agents known to this process to be in the primary
UNLIMITED = 1_000_000  # of channels: the limit was checked when they were added
TOMBSTONE_KEPT_MS = USER_AGENT_LIFETIME_S * 1000  # as long as the removed record could have lived


class DualStats(msgspec.Struct):
    """`database.migrate`, `database.already_migrated` and `database.dual.error{func}`."""

    migrated: int = 0
    already_migrated: int = 0
    errors: dict[str, int] = msgspec.field(default_factory=dict[str, int])

    def failed(self, func: str) -> None:
        self.errors[func] = self.errors.get(func, 0) + 1


class UserAgentMoves:
    def __init__(
        self, primary: PushStore, secondary: PushStore, url: DualUrl, clock: Clock, stats: DualStats
    ) -> None:
        self._primary = primary
        self._secondary = secondary
        self._allots = url.allots
        self._clock = clock
        self._stats = stats
        self._known: BoundedLru[Uaid, bool] = BoundedLru(KNOWN_MAX)
        self._locks: dict[Uaid, asyncio.Lock] = {}  # one per move in progress in this process

    # The home of a user agent (rule 1)

    async def home(self, uaid: Uaid) -> PushStore:
        if self._known.get(uaid) or self._allots(uaid):
            if not self._known.get(uaid):
                await self.in_primary(uaid)
            return self._primary
        return self._secondary if await self.in_primary(uaid) is None else self._primary

    async def read(self, uaid: Uaid) -> UserAgent | None:
        record = await self.in_primary(uaid)
        if record is None and not self._allots(uaid):
            return await self._secondary.get_user_agent(uaid)
        return record

    async def in_primary(self, uaid: Uaid) -> UserAgent | None:
        """Its whole record in the primary, after a move if it is allotted to the primary."""
        held = await self._primary.get_user_agent(uaid)
        if self.whole(held):
            return held
        if held is None and not self._allots(uaid):
            return None
        return await self.move(uaid)

    def whole(self, record: UserAgent | None) -> bool:
        if record is None or record.node_id == MOVING:
            return False
        self._known.put(record.uaid, True)
        return True

    # Moving

    async def move(self, uaid: Uaid) -> UserAgent | None:
        """The whole record in the primary; None if there is nothing to move."""
        lock = self._locks.setdefault(uaid, asyncio.Lock())
        try:
            async with lock:
                return await self._move(uaid)
        finally:
            if not lock.locked():
                self._locks.pop(uaid, None)

    async def _move(self, uaid: Uaid) -> UserAgent | None:
        moved = False
        for _ in range(TRIES_MAX):
            held = await self._primary.get_user_agent(uaid)
            if self.whole(held):
                self._stats.migrated += moved
                self._stats.already_migrated += not moved
                return held
            source = await self._secondary.get_user_agent(uaid)
            if held is None and source is None:
                return None
            if await self._is_removed(uaid, source):
                await self._remove(uaid)
                return None
            if held is None:
                assert source is not None
                if not await self._primary.add_user_agent(begun(source)):
                    continue  # another process changed it: read again
            await self._copy(uaid)
            moved = await self._finish(uaid, source) or moved
            if await self._is_removed(uaid, source):
                await self._remove(uaid)
                return None
        self._stats.failed("move")
        raise StoreUnavailableError(f"a moving user agent's record changed {TRIES_MAX} times")

    async def _copy(self, uaid: Uaid) -> None:
        source, target = self._secondary, self._primary
        channels = await source.get_channels(uaid)
        updates = await source.fetch_updates(uaid, limit=max(1, len(channels)))
        for channel_id in channels:
            await target.add_channel(uaid, channel_id, channels_max=UNLIMITED)
        for update in updates:
            await target.save_update(uaid, update)
        await self._undo_removed(uaid, channels)
        if not updates:
            return
        left = await source.fetch_updates(uaid, limit=len(channels))
        versions = {(update.channel_id, update.version) for update in left}  # without times
        for update in updates:
            if (update.channel_id, update.version) not in versions:
                await target.forget_update(uaid, update.channel_id, update.version)

    async def _undo_removed(self, uaid: Uaid, copied: frozenset[ChannelId]) -> None:
        gone = copied - await self._secondary.get_channels(uaid)
        if not gone or await self._secondary.get_user_agent(uaid) is None:
            return  # the whole user agent was removed; its tombstone applies
        for channel_id in gone:
            await self._primary.remove_channel(uaid, channel_id)

    async def _finish(self, uaid: Uaid, source: UserAgent | None) -> bool:
        held = await self._primary.get_user_agent(uaid)
        if held is None or held.route is None or held.node_id != MOVING:
            return False
        if source is None or source.node_id is None or not source.connected_at_ms:
            return await self._primary.clear_route(uaid, held.route)
        record = msgspec.structs.replace(source, row_version=held.row_version, behind=False)
        return await self._primary.claim_route(record)

    # Removals (rule 4)

    async def leave_tombstone(self, uaid: Uaid) -> None:
        """Writes the tombstone as a status, which every store keeps until its expiry."""
        self._known.put(uaid, False)
        now_ms = self._clock.now_ms()
        note = MilestoneNote(
            tombstone(uaid), bytes(32), Milestone.ERRORED, now_ms, now_ms + TOMBSTONE_KEPT_MS
        )
        await self._primary.note_milestones([note])

    async def _is_removed(self, uaid: Uaid, source: UserAgent | None) -> bool:
        now_ms = self._clock.now_ms()
        found = await self._primary.get_status(tombstone(uaid), now_ms=now_ms)
        if found is None:
            return False
        # The last of several removals counts; it has the latest expiry.
        removed_at_ms = found.keep_until_ms - TOMBSTONE_KEPT_MS
        return source is None or source.connected_at_ms <= removed_at_ms

    async def _remove(self, uaid: Uaid) -> None:
        """Removes the rows that an interrupted removal or a concurrent move has left."""
        await self._secondary.remove_user_agent(uaid)
        await self._primary.remove_user_agent(uaid)


def begun(source: UserAgent) -> UserAgent:
    """The record with `MOVING` as node, one ms older than the final record if that has a node, so
    that the final one replaces it."""
    earlier = 1 if source.node_id is not None and source.connected_at_ms else 0
    return msgspec.structs.replace(
        source,
        node_id=MOVING,
        connected_at_ms=source.connected_at_ms - earlier,
        row_version=None,
        behind=False,
    )


def tombstone(uaid: Uaid) -> MessageId:
    return MessageId(f"dual:removed:{uaid.hex()}")
