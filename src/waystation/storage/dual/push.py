"""Two push stores used as one: a user agent moves to the primary at its next use.

Where rows are, and why none is lost or comes back (the move itself: `moves.py`):

Rule 1: records, routes, subscriptions and updates are read and written in the user agent's home
        store. After a write to the secondary the home is checked again: if the user agent has
        moved since, the write is repeated in the primary.
Rule 2: a notification is saved in the home store. One with a topic is first saved in the secondary
        too if the subscription is older than the move, because the row that it replaces may be
        there. The secondary does not know newer subscriptions and would keep their rows after the
        subscription ends. With `write_to_secondary` all notifications are saved there.
Rule 3: a fetch reads both stores and merges; of two rows of one topic the older is forgotten. If
        the secondary fails, the rows of the primary are returned, but never an empty result.
Rule 4: removals and acks go to both stores, to the secondary first: a row removed in the primary
        alone would be found, or copied, again. If either fails, the call fails.
Rule 5: broadcasts are published in both and read from both; the primary's version wins.
Rule 6: statuses are written to the primary and read from both. Tracked messages are counted in the
        primary only, without earlier counts: no message is counted twice.
Rule 7: with `write_to_secondary` new records, claims, subscriptions and updates are repeated in the
        secondary, so that a way back exists. Failures there are counted; the primary's result
        stands.
Rule 8: with `tombstones`, while a job copies the notifications of the secondary (`copy.py`), an ack
        of such a notification leaves a tombstone under its key in the primary for as long as a
        copy may run. A fetch returns neither tombstones nor the notifications they mark.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from waystation.base.clock import Clock
from waystation.base.errors import BusyError, StoreUnavailableError, UnavailableError
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
from waystation.push.store import CursorStore, PushStore, RotatingStore
from waystation.storage.bulk_rows import TOMBSTONE_MARK
from waystation.storage.capabilities import Capabilities
from waystation.storage.dual.merge import merge_portions, merge_statuses
from waystation.storage.dual.moves import DualStats, UserAgentMoves
from waystation.storage.dual.tombstones import Tombstones, without_tombstones
from waystation.storage.dual.url import DualUrl

T = TypeVar("T")


class DualPushStore:
    """Combines any two push stores."""

    def __init__(
        self, primary: PushStore, secondary: PushStore, url: DualUrl, clock: Clock
    ) -> None:
        self.primary = primary
        self.secondary = secondary
        self.capabilities = both_can(_capabilities(primary), _capabilities(secondary))
        self._writes_to_both = url.write_to_secondary
        self._tombstones = Tombstones(primary, clock) if url.tombstones else None
        self._allots = url.allots
        self._stats = DualStats()
        self._moves = UserAgentMoves(primary, secondary, url, clock, self._stats)

    def stats(self) -> DualStats:
        return self._stats

    async def warnings(self) -> Sequence[str]:
        found: list[str] = []
        for name, store in (("primary", self.primary), ("secondary", self.secondary)):
            warn: Callable[[], Awaitable[Sequence[str]]] | None = getattr(store, "warnings", None)
            if warn is not None:
                found += [f"{name}: {warning}" for warning in await warn()]
        return found

    # User agents and routes

    async def get_user_agent(self, uaid: Uaid) -> UserAgent | None:
        return await self._counted("get_user_agent", self._moves.read(uaid))

    async def look_up(self, uaid: Uaid, channel_id: ChannelId) -> Recipient | None:
        found = await self.primary.look_up(uaid, channel_id)
        if found is not None and self._moves.whole(found.user_agent):
            return found
        if found is None and not self._allots(uaid):
            return await self._counted("look_up", self.secondary.look_up(uaid, channel_id))
        if await self._counted("look_up", self._moves.move(uaid)) is None:
            return None
        return await self.primary.look_up(uaid, channel_id)

    async def add_user_agent(self, user_agent: UserAgent) -> bool:
        if await self.get_user_agent(user_agent.uaid) is not None:
            return False
        if not self._allots(user_agent.uaid):
            return await self._counted("add_user_agent", self.secondary.add_user_agent(user_agent))
        if not await self.primary.add_user_agent(user_agent):
            return False
        await self._repeat("add_user_agent", lambda store: store.add_user_agent(user_agent))
        return True

    async def claim_route(self, user_agent: UserAgent) -> bool:
        uaid = user_agent.uaid
        anew = msgspec.structs.replace(user_agent, row_version=None)
        home = await self._home("claim_route", uaid)
        applied = await self._at(home, "claim_route", home.claim_route(user_agent))
        if await self._has_moved(home, uaid):
            applied = await self.primary.claim_route(anew)
        elif home is self.primary and applied:
            await self._repeat("claim_route", lambda store: store.claim_route(anew))
        return applied

    async def clear_route(self, uaid: Uaid, seen: Route) -> bool:
        home = await self._home("clear_route", uaid)
        return await self._at(home, "clear_route", home.clear_route(uaid, seen))

    async def remove_user_agent(self, uaid: Uaid) -> bool:
        await self._moves.leave_tombstone(uaid)
        there = await self._counted("remove_user_agent", self.secondary.remove_user_agent(uaid))
        return await self.primary.remove_user_agent(uaid) or there

    async def advance_cursor(self, uaid: Uaid, up_to_ms: int) -> bool:
        """In the user agent's home store, if that has a cursor."""
        home = await self._home("advance_cursor", uaid)
        if not isinstance(home, CursorStore):
            return False
        return await self._at(home, "advance_cursor", home.advance_cursor(uaid, up_to_ms))

    async def switch_month(self, uaid: Uaid, *, connected_at_ms: int) -> bool:
        """In the user agent's home store; a store without monthly tables has nothing to switch."""
        home = await self._home("switch_month", uaid)
        if not isinstance(home, RotatingStore):
            return True
        return await home.switch_month(uaid, connected_at_ms=connected_at_ms)

    # Subscriptions

    async def add_channel(self, uaid: Uaid, channel_id: ChannelId, *, channels_max: int) -> bool:
        async def add(store: PushStore) -> bool:
            return await store.add_channel(uaid, channel_id, channels_max=channels_max)

        home = await self._home("add_channel", uaid)
        added = await self._at(home, "add_channel", add(home))
        if await self._has_moved(home, uaid):
            return await add(self.primary)
        if home is self.primary and added:
            await self._repeat("add_channel", add)
        return added

    async def get_channels(self, uaid: Uaid) -> frozenset[ChannelId]:
        home = await self._home("get_channels", uaid)
        return await self._at(home, "get_channels", home.get_channels(uaid))

    async def remove_channel(self, uaid: Uaid, channel_id: ChannelId) -> bool:
        there = await self._counted(
            "remove_channel", self.secondary.remove_channel(uaid, channel_id)
        )
        return await self.primary.remove_channel(uaid, channel_id) or there

    # Notifications

    async def save(self, uaid: Uaid, notification: Notification) -> Replaced | None:
        home = await self._home("save", uaid)
        if home is self.secondary:
            return await self._counted("save", home.save(uaid, notification))
        there: Replaced | None = None
        if notification.topic is not None:
            there = await self._counted("save", self._save_topic_there(uaid, notification))
        here = await self.primary.save(uaid, notification)
        if notification.topic is None:
            await self._repeat("save", lambda store: store.save(uaid, notification))
        return there if here is None or here.message_id.startswith(TOMBSTONE_MARK) else here

    async def _save_topic_there(self, uaid: Uaid, notification: Notification) -> Replaced | None:
        if not self._writes_to_both:
            found = await self.secondary.look_up(uaid, notification.channel_id)
            if found is None or not found.subscribed:
                return None
        return await self.secondary.save(uaid, notification)

    async def save_new(self, uaid: Uaid, notification: Notification) -> bool:
        home = await self._home("save_new", uaid)
        if home is self.primary and self._writes_to_both:
            return await self._save_new_in_both(uaid, notification)
        return await self._at(home, "save_new", home.save_new(uaid, notification))

    async def _save_new_in_both(self, uaid: Uaid, notification: Notification) -> bool:
        """Saves only if the key is free in both stores; otherwise a way back would lose a row."""
        try:
            if not await self.secondary.save_new(uaid, notification):
                return False
        except (UnavailableError, BusyError):
            self._stats.failed("save_new")
        if await self.primary.save_new(uaid, notification):
            return True
        row = (notification.sort_key, notification.message_id)
        await self._repeat("save_new", lambda store: store.forget(uaid, [row]))
        return False

    async def save_if_newer(self, uaid: Uaid, notifications: Sequence[Notification]) -> HandedBack:
        home = await self._home("save_if_newer", uaid)
        if home is self.secondary:
            return await self._counted("save_if_newer", home.save_if_newer(uaid, notifications))
        topics = [row for row in notifications if row.topic is not None]
        others = [row for row in notifications if row.topic is None]
        there = HandedBack()
        if topics:
            there = await self._counted("save_if_newer", self.secondary.save_if_newer(uaid, topics))
        here = await self.primary.save_if_newer(uaid, notifications)
        if others:
            await self._repeat("save_if_newer", lambda store: store.save_if_newer(uaid, others))
        replaced = {one.message_id: one for one in (*there.replaced, *here.replaced)}
        told = (one for one in replaced.values() if not one.message_id.startswith(TOMBSTONE_MARK))
        return HandedBack(here.written, tuple(told))

    async def fetch(
        self, uaid: Uaid, *, now_ms: int, after: SortKey | None, limit: int
    ) -> Sequence[Notification]:
        while True:
            rows = await self._fetch(uaid, now_ms=now_ms, after=after, limit=limit)
            shown = without_tombstones(rows)
            if shown or not rows:
                return shown
            after = rows[-1].sort_key  # only tombstones: read the next portion

    async def _fetch(
        self, uaid: Uaid, *, now_ms: int, after: SortKey | None, limit: int
    ) -> Sequence[Notification]:
        primary, secondary = await asyncio.gather(
            self.primary.fetch(uaid, now_ms=now_ms, after=after, limit=limit),
            self._counted(
                "fetch", self.secondary.fetch(uaid, now_ms=now_ms, after=after, limit=limit)
            ),
            return_exceptions=True,
        )
        if isinstance(primary, BaseException):
            raise primary
        if isinstance(secondary, BaseException):
            if not primary or not isinstance(secondary, (UnavailableError, BusyError)):
                raise secondary
            return primary  # the secondary's failure is raised at the end of the pass
        merged = merge_portions(primary, secondary, limit)
        if merged.replaced_in_primary:
            await self.primary.forget(uaid, merged.replaced_in_primary)
        if merged.replaced_in_secondary:
            await self._counted("fetch", self.secondary.forget(uaid, merged.replaced_in_secondary))
        return merged.rows

    async def forget(self, uaid: Uaid, rows: Sequence[tuple[SortKey, MessageId]]) -> int:
        # One by one in the secondary: a row that is in both stores counts once.
        gone = await self._counted("forget", self._forget_each(uaid, rows))
        there = [row for row, known in zip(rows, gone, strict=True) if known]
        others = [row for row, known in zip(rows, gone, strict=True) if not known]
        if there and self._tombstones is not None:
            await self._tombstones.write(uaid, there)
        elif there:
            await self.primary.forget(uaid, there)
        return len(there) + (await self.primary.forget(uaid, others) if others else 0)

    async def _forget_each(
        self, uaid: Uaid, rows: Sequence[tuple[SortKey, MessageId]]
    ) -> Sequence[int]:
        return await asyncio.gather(*(self.secondary.forget(uaid, [row]) for row in rows))

    # SimplePush

    async def save_update(self, uaid: Uaid, update: Update) -> SavedUpdate:
        home = await self._home("save_update", uaid)
        saved = await self._at(home, "save_update", home.save_update(uaid, update))
        if await self._has_moved(home, uaid):
            # A move may have copied it; an existing row counts as applied.
            again = await self.primary.save_update(uaid, update)
            return again if again.applied else saved
        if home is self.primary and saved.applied:
            await self._repeat("save_update", lambda store: store.save_update(uaid, update))
        return saved

    async def fetch_updates(self, uaid: Uaid, *, limit: int) -> Sequence[Update]:
        home = await self._home("fetch_updates", uaid)
        return await self._at(home, "fetch_updates", home.fetch_updates(uaid, limit=limit))

    async def forget_update(self, uaid: Uaid, channel_id: ChannelId, version: int) -> bool:
        there = await self._counted(
            "forget_update", self.secondary.forget_update(uaid, channel_id, version)
        )
        return await self.primary.forget_update(uaid, channel_id, version) or there

    # Broadcasts

    async def publish_broadcast(self, broadcast_id: str, version: str) -> bool:
        new = await self._counted(
            "publish_broadcast", self.secondary.publish_broadcast(broadcast_id, version)
        )
        return await self.primary.publish_broadcast(broadcast_id, version) and new

    async def get_broadcasts(self) -> Mapping[str, str]:
        older = await self._counted("get_broadcasts", self.secondary.get_broadcasts())
        return {**older, **await self.primary.get_broadcasts()}

    # Statuses and tracking

    async def note_milestones(self, notes: Sequence[MilestoneNote]) -> None:
        await self.primary.note_milestones(notes)

    async def get_status(self, message_id: MessageId, *, now_ms: int) -> MessageStatus | None:
        return merge_statuses(
            await self.primary.get_status(message_id, now_ms=now_ms),
            await self._counted("get_status", self.secondary.get_status(message_id, now_ms=now_ms)),
        )

    async def track(
        self, reliability_id: str, milestone: Milestone, *, at_ms: int, expires_at_ms: int
    ) -> None:
        await self.primary.track(
            reliability_id, milestone, at_ms=at_ms, expires_at_ms=expires_at_ms
        )

    async def count_milestones(self, *, now_ms: int) -> Mapping[str, int]:
        return await self.primary.count_milestones(now_ms=now_ms)

    # Upkeep

    async def sweep(self, *, now_ms: int, limit: int) -> int:
        """Removes up to `limit` rows in each. Rows in both count once: returns the greater
        number."""
        swept = await self._counted("sweep", self.secondary.sweep(now_ms=now_ms, limit=limit))
        return max(swept, await self.primary.sweep(now_ms=now_ms, limit=limit))

    async def check(self) -> None:
        for name, store in (("primary", self.primary), ("secondary", self.secondary)):
            try:
                await self._at(store, "check", store.check())
            except (UnavailableError, BusyError) as exc:
                raise StoreUnavailableError(f"{name}: {exc}") from exc

    async def close(self) -> None:
        try:
            await self.primary.close()
        finally:
            await self.secondary.close()

    # Inside

    async def _home(self, func: str, uaid: Uaid) -> PushStore:
        return await self._counted(func, self._moves.home(uaid))

    async def _has_moved(self, home: PushStore, uaid: Uaid) -> bool:
        """Whether a write to the secondary may have missed the move."""
        return home is self.secondary and await self._moves.in_primary(uaid) is not None

    async def _at(self, store: PushStore, func: str, call: Awaitable[T]) -> T:
        return await (self._counted(func, call) if store is self.secondary else call)

    async def _counted(self, func: str, call: Awaitable[T]) -> T:
        try:
            return await call
        except (UnavailableError, BusyError):
            self._stats.failed(func)
            raise

    async def _repeat(self, func: str, call: Callable[[PushStore], Awaitable[Any]]) -> None:
        """Repeats the call in the secondary if `write_to_secondary` is set (rule 7)."""
        if not self._writes_to_both:
            return
        try:
            await call(self.secondary)
        except (UnavailableError, BusyError):
            self._stats.failed(func)


def both_can(first: Capabilities, second: Capabilities) -> Capabilities:
    return Capabilities(
        name="dual",
        durable=first.durable and second.durable,
        power_safe=first.power_safe and second.power_safe,
        shared_by_processes=first.shared_by_processes and second.shared_by_processes,
        shared_by_machines=first.shared_by_machines and second.shared_by_machines,
        # True if either store expires rows by its own clock.
        native_expiry=first.native_expiry or second.native_expiry,
        row_versions=first.row_versions and second.row_versions,
        cursor=first.cursor and second.cursor,
        clears_with_channel=first.clears_with_channel and second.clears_with_channel,
    )


def _capabilities(store: PushStore) -> Capabilities:
    found: object = getattr(store, "capabilities", None)
    assert isinstance(found, Capabilities), f"{type(store).__name__} has no capabilities"
    return found
