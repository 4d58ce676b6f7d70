"""The push store in plain dictionaries: the executable model of the contract.

The other backends are compared with this one, so it implements the contract in the shortest correct
way and never suspends. Time comes from the injected clock and nothing is random, so a seed replays
a run.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

import msgspec

from waystation.base.clock import Clock
from waystation.push.model import (
    USER_AGENT_LIFETIME_S,
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
from waystation.storage.memory.backend import CAPABILITIES

# How long an ended tracked message is kept after its expiry, so that a late milestone is not
# counted as a new message.
TRACKED_KEEP_MS = 86_400_000


class _Agent(msgspec.Struct):
    record: UserAgent
    expires_at_ms: int
    channels: set[ChannelId] = msgspec.field(default_factory=set[ChannelId])
    updates: dict[ChannelId, Update] = msgspec.field(default_factory=dict[ChannelId, Update])


class _Tracked(msgspec.Struct, frozen=True):
    milestone: Milestone
    expires_at_ms: int


class MemoryPushStore:
    """A push store that ends with its process."""

    capabilities = CAPABILITIES

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._agents: dict[Uaid, _Agent] = {}
        # Separate from the agents: a late writer may save for one that was removed.
        self._notifications: dict[Uaid, dict[SortKey, Notification]] = {}
        self._broadcasts: dict[str, str] = {}
        self._statuses: dict[MessageId, MessageStatus] = {}
        self._tracked: dict[str, _Tracked] = {}
        self._counts: dict[str, int] = {}

    # User agents and routes

    async def get_user_agent(self, uaid: Uaid) -> UserAgent | None:
        agent = self._alive(uaid)
        return None if agent is None else agent.record

    async def look_up(self, uaid: Uaid, channel_id: ChannelId) -> Recipient | None:
        agent = self._alive(uaid)
        if agent is None:
            return None
        return Recipient(agent.record, channel_id in agent.channels)

    async def add_user_agent(self, user_agent: UserAgent) -> bool:
        if self._alive(user_agent.uaid) is not None:
            return False
        self._begin(user_agent)
        return True

    async def claim_route(self, user_agent: UserAgent) -> bool:
        agent = self._alive(user_agent.uaid)
        if agent is None:
            self._begin(user_agent)
            return True
        held = agent.record
        if held.node_id is not None and held.connected_at_ms >= user_agent.connected_at_ms:
            return False
        agent.record = _without_row_version(user_agent)
        agent.expires_at_ms = self._lifetime_end()
        return True

    async def clear_route(self, uaid: Uaid, seen: Route) -> bool:
        agent = self._alive(uaid)
        if agent is None or agent.record.route != seen:
            return False
        agent.record = msgspec.structs.replace(agent.record, node_id=None)
        return True

    async def advance_cursor(self, uaid: Uaid, up_to_ms: int) -> bool:
        agent = self._alive(uaid)
        if agent is None or (agent.record.current_timestamp_ms or 0) >= up_to_ms:
            return False
        agent.record = msgspec.structs.replace(agent.record, current_timestamp_ms=up_to_ms)
        return True

    async def remove_user_agent(self, uaid: Uaid) -> bool:
        known = self._alive(uaid) is not None
        self._end(uaid)
        return known

    # Subscriptions

    async def add_channel(self, uaid: Uaid, channel_id: ChannelId, *, channels_max: int) -> bool:
        agent = self._alive(uaid)
        if agent is None:
            return False
        if channel_id in agent.channels:
            return True
        if len(agent.channels) >= channels_max:
            return False
        agent.channels.add(channel_id)
        return True

    async def get_channels(self, uaid: Uaid) -> frozenset[ChannelId]:
        return frozenset(self._channels(uaid))

    async def remove_channel(self, uaid: Uaid, channel_id: ChannelId) -> bool:
        agent = self._alive(uaid)
        if agent is None or channel_id not in agent.channels:
            return False
        agent.channels.remove(channel_id)
        agent.updates.pop(channel_id, None)
        rows = self._notifications.get(uaid, {})
        for sort_key in [key for key, row in rows.items() if row.channel_id == channel_id]:
            self._delete(uaid, sort_key)
        return True

    # Notifications

    async def save(self, uaid: Uaid, notification: Notification) -> Replaced | None:
        rows = self._notifications.setdefault(uaid, {})
        held = rows.get(notification.sort_key)
        rows[notification.sort_key] = notification
        return notification.replaces(held)

    async def save_new(self, uaid: Uaid, notification: Notification) -> bool:
        rows = self._notifications.setdefault(uaid, {})
        held = rows.setdefault(notification.sort_key, notification)
        return held.message_id == notification.message_id

    async def save_if_newer(self, uaid: Uaid, notifications: Sequence[Notification]) -> HandedBack:
        channels = self._channels(uaid)
        written = 0
        replaced: list[Replaced | None] = []
        for notification in notifications:
            if notification.channel_id not in channels:
                continue
            held = self._notifications.get(uaid, {}).get(notification.sort_key)
            if held is not None and _age(held) >= _age(notification):
                replaced.append(notification.replaced_by(held.message_id))
                continue
            replaced.append(await self.save(uaid, notification))
            written += 1
        return HandedBack(written, tuple(filter(None, replaced)))

    async def fetch(
        self, uaid: Uaid, *, now_ms: int, after: SortKey | None, limit: int
    ) -> Sequence[Notification]:
        channels = self._channels(uaid)
        rows = self._notifications.get(uaid, {})
        keys = sorted(key for key in rows if after is None or key > after)
        for start in range(0, len(keys), limit):
            portion = [rows[key] for key in keys[start : start + limit]]
            alive = [
                row for row in portion if row.channel_id in channels and not row.expired(now_ms)
            ]
            if alive:
                return alive
        return []

    async def forget(self, uaid: Uaid, rows: Sequence[tuple[SortKey, MessageId]]) -> int:
        forgotten = 0
        for sort_key, message_id in rows:
            held = self._notifications.get(uaid, {}).get(sort_key)
            if held is not None and held.message_id == message_id:
                self._delete(uaid, sort_key)
                forgotten += 1
        return forgotten

    # SimplePush

    async def save_update(self, uaid: Uaid, update: Update) -> SavedUpdate:
        agent = self._alive(uaid)
        if agent is None or update.channel_id not in agent.channels:
            return SavedUpdate(False)
        saved = update.saved(agent.updates.get(update.channel_id))
        if saved.applied:
            agent.updates[update.channel_id] = msgspec.structs.replace(update, data=None)
        return saved

    async def fetch_updates(self, uaid: Uaid, *, limit: int) -> Sequence[Update]:
        agent = self._alive(uaid)
        if agent is None:
            return []
        return [agent.updates[channel] for channel in sorted(agent.updates)][:limit]

    async def forget_update(self, uaid: Uaid, channel_id: ChannelId, version: int) -> bool:
        agent = self._alive(uaid)
        held = None if agent is None else agent.updates.get(channel_id)
        if agent is None or held is None or held.version != version:
            return False
        del agent.updates[channel_id]
        return True

    # Broadcasts

    async def publish_broadcast(self, broadcast_id: str, version: str) -> bool:
        new = broadcast_id not in self._broadcasts
        self._broadcasts[broadcast_id] = version
        return new

    async def get_broadcasts(self) -> Mapping[str, str]:
        return dict(self._broadcasts)

    # Statuses and tracking

    async def note_milestones(self, notes: Sequence[MilestoneNote]) -> None:
        for note in notes:
            held = self._statuses.get(note.message_id)
            milestones = {} if held is None else dict(held.milestones)
            first = milestones.get(note.milestone)
            milestones[note.milestone.value] = (
                note.at_ms if first is None else min(first, note.at_ms)
            )
            self._statuses[note.message_id] = MessageStatus(
                sender=note.sender if held is None else held.sender,
                milestones=milestones,
                keep_until_ms=max(note.keep_until_ms, 0 if held is None else held.keep_until_ms),
            )

    async def get_status(self, message_id: MessageId, *, now_ms: int) -> MessageStatus | None:
        status = self._statuses.get(message_id)
        return None if status is None or status.keep_until_ms <= now_ms else status

    async def track(
        self, reliability_id: str, milestone: Milestone, *, at_ms: int, expires_at_ms: int
    ) -> None:
        held = self._tracked.get(reliability_id)
        if held is not None:
            if held.milestone.terminal:
                return
            self._count(held.milestone, -1)
        self._tracked[reliability_id] = _Tracked(milestone, expires_at_ms)
        self._count(milestone, 1)

    async def count_milestones(self, *, now_ms: int) -> Mapping[str, int]:
        self._expire_tracked(now_ms)
        return {state: count for state, count in sorted(self._counts.items()) if count}

    # Upkeep

    async def sweep(self, *, now_ms: int, limit: int) -> int:
        self._expire_tracked(now_ms)
        over = list(islice(self._over(now_ms), limit))
        for remove in over:
            remove()
        return len(over)

    async def check(self) -> None:
        """Never fails."""

    async def close(self) -> None:
        """Nothing to close."""

    # Inside

    def _alive(self, uaid: Uaid) -> _Agent | None:
        agent = self._agents.get(uaid)
        return None if agent is None or agent.expires_at_ms <= self._clock.now_ms() else agent

    def _channels(self, uaid: Uaid) -> set[ChannelId]:
        agent = self._alive(uaid)
        return set() if agent is None else agent.channels

    def _lifetime_end(self) -> int:
        return self._clock.now_ms() + USER_AGENT_LIFETIME_S * 1000

    def _begin(self, user_agent: UserAgent) -> None:
        """Create a record; rows of a removed predecessor are not inherited."""
        self._end(user_agent.uaid)
        record = _without_row_version(user_agent)
        self._agents[user_agent.uaid] = _Agent(record, self._lifetime_end())

    def _end(self, uaid: Uaid) -> None:
        self._agents.pop(uaid, None)
        self._notifications.pop(uaid, None)

    def _delete(self, uaid: Uaid, sort_key: SortKey) -> None:
        rows = self._notifications[uaid]
        del rows[sort_key]
        if not rows:
            del self._notifications[uaid]

    def _count(self, milestone: Milestone, change: int) -> None:
        self._counts[milestone.value] = self._counts.get(milestone.value, 0) + change

    def _expire_tracked(self, now_ms: int) -> None:
        for reliability_id, held in self._tracked.items():
            if held.expires_at_ms <= now_ms and not held.milestone.terminal:
                self._count(held.milestone, -1)
                self._tracked[reliability_id] = _Tracked(Milestone.EXPIRED, held.expires_at_ms)
                self._count(Milestone.EXPIRED, 1)

    def _over(self, now_ms: int) -> Iterator[Callable[[], object]]:
        """Yields a removal for each expired row; a user agent comes after its notifications."""
        for uaid, rows in self._notifications.items():
            agent = self._agents.get(uaid)
            gone = agent is not None and agent.expires_at_ms <= now_ms
            for row in rows.values():
                if gone or row.expired(now_ms):
                    yield partial(self._delete, uaid, row.sort_key)
        for uaid, agent in self._agents.items():
            if agent.expires_at_ms <= now_ms:
                yield partial(self._agents.pop, uaid)
        for message_id, status in self._statuses.items():
            if status.keep_until_ms <= now_ms:
                yield partial(self._statuses.pop, message_id)
        for reliability_id, held in self._tracked.items():
            if held.expires_at_ms + TRACKED_KEEP_MS <= now_ms:
                yield partial(self._tracked.pop, reliability_id)


def _age(notification: Notification) -> tuple[int, MessageId]:
    return notification.accepted_at_ms, notification.message_id


def _without_row_version(user_agent: UserAgent) -> UserAgent:
    """This store has no row versions; a foreign one would make equal routes differ."""
    if user_agent.row_version is None:
        return user_agent
    return msgspec.structs.replace(user_agent, row_version=None)
