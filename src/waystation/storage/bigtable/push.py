"""The push store on Bigtable, in Autopush's layout; `layout.py` says how rows look.

Round trips: one for a POST to a connected user agent (`look_up`), and for a hello one to read the
record, one to claim the route and one to fetch what waits.
"""

import os
from collections.abc import Mapping, Sequence

from waystation.base.clock import Clock
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
from waystation.storage.bigtable import filters
from waystation.storage.bigtable.backend import CAPABILITIES
from waystation.storage.bigtable.cells import set_cell
from waystation.storage.bigtable.client import emulator_of
from waystation.storage.bigtable.layout import BROADCASTS_KEY, KEPT
from waystation.storage.bigtable.notifications import Notifications
from waystation.storage.bigtable.session import Session, SessionStats
from waystation.storage.bigtable.tracking import Tracking
from waystation.storage.bigtable.url import BigtableUrl
from waystation.storage.bigtable.user_agents import UserAgents
from waystation.storage.settings import Store


class BigtablePushStore:
    """One table, shared by all nodes."""

    capabilities = CAPABILITIES

    def __init__(self, session: Session, url: BigtableUrl, clock: Clock) -> None:
        self.session = session
        self._emulator = emulator_of(url)
        self._user_agents = UserAgents(session, clock, url.max_router_ttl)
        self._notifications = Notifications(session, self._user_agents, clock)
        self._tracking = Tracking(session, clock)

    @classmethod
    async def open(cls, url: BigtableUrl, *, settings: Store, clock: Clock) -> "BigtablePushStore":
        """Connections are made when somebody asks: a Bigtable that is down keeps nobody from
        starting. The store belongs to the running loop."""
        return cls(Session(url, settings, clock), url, clock)

    def stats(self) -> SessionStats:
        """Round trips, retries and failures of this process."""
        return self.session.stats

    async def warnings(self) -> Sequence[str]:
        """What a person should know before trusting this store."""
        if not self._emulator:
            return ()
        return (f"Bigtable at {self._emulator} is an emulator: what it holds ends with it",)

    # User agents and routes

    async def get_user_agent(self, uaid: Uaid) -> UserAgent | None:
        return await self._user_agents.get(uaid)

    async def look_up(self, uaid: Uaid, channel_id: ChannelId) -> Recipient | None:
        return await self._user_agents.look_up(uaid, channel_id)

    async def add_user_agent(self, user_agent: UserAgent) -> bool:
        return await self._user_agents.add(user_agent)

    async def claim_route(self, user_agent: UserAgent) -> bool:
        return await self._user_agents.claim(user_agent)

    async def clear_route(self, uaid: Uaid, seen: Route) -> bool:
        return await self._user_agents.clear_route(uaid, seen)

    async def advance_cursor(self, uaid: Uaid, up_to_ms: int) -> bool:
        return await self._user_agents.advance_cursor(uaid, up_to_ms)

    async def remove_user_agent(self, uaid: Uaid) -> bool:
        return await self._user_agents.remove(uaid)

    # Subscriptions

    async def add_channel(self, uaid: Uaid, channel_id: ChannelId, *, channels_max: int) -> bool:
        return await self._user_agents.add_channel(uaid, channel_id, channels_max)

    async def get_channels(self, uaid: Uaid) -> frozenset[ChannelId]:
        seen = await self._user_agents.read(uaid)
        return frozenset() if seen is None else seen.channels

    async def remove_channel(self, uaid: Uaid, channel_id: ChannelId) -> bool:
        return await self._user_agents.remove_channel(uaid, channel_id)

    # Notifications

    async def save(self, uaid: Uaid, notification: Notification) -> Replaced | None:
        return await self._notifications.save(uaid, notification)

    async def save_new(self, uaid: Uaid, notification: Notification) -> bool:
        return await self._notifications.save_new(uaid, notification)

    async def save_if_newer(self, uaid: Uaid, notifications: Sequence[Notification]) -> HandedBack:
        return await self._notifications.save_if_newer(uaid, notifications)

    async def fetch(
        self, uaid: Uaid, *, now_ms: int, after: SortKey | None, limit: int
    ) -> Sequence[Notification]:
        return await self._notifications.fetch(uaid, now_ms=now_ms, after=after, limit=limit)

    async def forget(self, uaid: Uaid, rows: Sequence[tuple[SortKey, MessageId]]) -> int:
        return await self._notifications.forget(uaid, rows)

    # SimplePush

    async def save_update(self, uaid: Uaid, update: Update) -> SavedUpdate:
        return await self._user_agents.save_update(uaid, update)

    async def fetch_updates(self, uaid: Uaid, *, limit: int) -> Sequence[Update]:
        return await self._user_agents.fetch_updates(uaid, limit)

    async def forget_update(self, uaid: Uaid, channel_id: ChannelId, version: int) -> bool:
        return await self._user_agents.forget_update(uaid, channel_id, version)

    # Broadcasts

    async def publish_broadcast(self, broadcast_id: str, version: str) -> bool:
        column = broadcast_id.encode()
        cell = [set_cell(KEPT, column, version.encode(), 0)]
        there = filters.has(KEPT, column)
        return not await self.session.check(BROADCASTS_KEY, there, then=cell, otherwise=cell)

    async def get_broadcasts(self) -> Mapping[str, str]:
        cells = await self.session.read_row(BROADCASTS_KEY, filters.kept(KEPT, rb"\C*"))
        return {name.decode(): cell.value.decode() for (_, name), cell in (cells or {}).items()}

    # What happened to a message

    async def note_milestones(self, notes: Sequence[MilestoneNote]) -> None:
        await self._tracking.note(notes)

    async def get_status(self, message_id: MessageId, *, now_ms: int) -> MessageStatus | None:
        return await self._tracking.status(message_id, now_ms)

    async def track(
        self, reliability_id: str, milestone: Milestone, *, at_ms: int, expires_at_ms: int
    ) -> None:
        await self._tracking.track(
            reliability_id, milestone, at_ms=at_ms, expires_at_ms=expires_at_ms
        )

    async def count_milestones(self, *, now_ms: int) -> Mapping[str, int]:
        return await self._tracking.count(now_ms)

    # Upkeep

    async def sweep(self, *, now_ms: int, limit: int) -> int:
        """All but tracked messages is collected by Bigtable itself."""
        return await self._tracking.sweep(now_ms, limit)

    async def check(self) -> None:
        # A random key: one that every node asks for would make a hot spot. The breaker has no say,
        # so that health is told as it is now.
        key = os.urandom(16).hex().encode()
        await self.session.read_row(key, filters.NOTHING, guarded=False)

    async def close(self) -> None:
        await self.session.close()
