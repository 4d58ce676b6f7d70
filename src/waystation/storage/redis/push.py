"""The push store on Redis or Valkey, in Autopush's layout (`layout.py`).

Each operation takes one round trip, `clear_route` two; scripts on the server check conditions.
Reads check the expiry of a row themselves, because Redis may remove it later.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from waystation.base.clock import Clock
from waystation.base.ids import dashed
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
from waystation.storage.redis import layout, scripts
from waystation.storage.redis.backend import CAPABILITIES
from waystation.storage.redis.cluster_routing import RedisCluster
from waystation.storage.redis.connection import Argument, RedisStats, Reply
from waystation.storage.redis.init import durability_warnings
from waystation.storage.redis.layout import Keys
from waystation.storage.redis.scripts import Script
from waystation.storage.redis.session import OneServer, Session
from waystation.storage.redis.sweep import sweep
from waystation.storage.redis.tracking import Tracking
from waystation.storage.redis.url import RedisUrl
from waystation.storage.settings import Store

# Rows that one script call may read: Redis serves no other client during it.
_FETCH_ROWS_MAX = 1000
_ROWS_PER_CALL = 200
_SWAPS_MAX = 8


class RedisPushStore:
    """One Redis server or one Redis Cluster, shared by all nodes."""

    capabilities = CAPABILITIES

    def __init__(self, session: Session, url: RedisUrl, clock: Clock) -> None:
        self.session = session
        self.keys = Keys(cluster=url.cluster)
        self._url = url
        self._clock = clock
        self._tracking = Tracking(session, self.keys)

    @classmethod
    async def open(cls, url: RedisUrl, *, settings: Store, clock: Clock) -> "RedisPushStore":
        """Connects at the first operation, so a process starts even while Redis is down."""
        session = RedisCluster(url, settings) if url.cluster else OneServer(url, settings)
        return cls(session, url, clock)

    def stats(self) -> RedisStats:
        """Commands, round trips, connections and failures of this process."""
        return self.session.stats

    async def warnings(self) -> list[str]:
        """Risks of the server's configuration, for the operator."""
        return await durability_warnings(self.session)

    # User agents and routes

    async def get_user_agent(self, uaid: Uaid) -> UserAgent | None:
        key = self.keys.user(self.keys.agent(uaid))
        (text,) = await self.session.run(key, (("GET", key),))
        return self._alive(text)

    async def look_up(self, uaid: Uaid, channel_id: ChannelId) -> Recipient | None:
        agent = self.keys.agent(uaid)
        key = self.keys.user(agent)
        text, place = await self.session.run(
            key, (("GET", key), ("LPOS", self.keys.channels(agent), dashed(channel_id)))
        )
        record = self._alive(text)
        return None if record is None else Recipient(record, place is not None)

    async def add_user_agent(self, user_agent: UserAgent) -> bool:
        return await self._write_record("add", user_agent)

    async def claim_route(self, user_agent: UserAgent) -> bool:
        return await self._write_record("claim", user_agent)

    async def clear_route(self, uaid: Uaid, seen: Route) -> bool:
        key = self.keys.user(self.keys.agent(uaid))
        for _ in range(_SWAPS_MAX):
            (text,) = await self.session.run(key, (("GET", key),))
            record = self._alive(text)
            if record is None or record.route != seen:
                return False
            decoded = layout.decode_record(text)
            assert decoded is not None, "the record was valid before"
            cleared = msgspec.structs.replace(record, node_id=None)
            new = layout.encode_record(cleared, decoded[1])
            if await self._agent_script(scripts.SWAP_RECORD, uaid, text, new):
                return True
        return False  # it changes at every try, so it is not the expected route

    async def remove_user_agent(self, uaid: Uaid) -> bool:
        return await self._agent_script(scripts.REMOVE_USER_AGENT, uaid) == 1

    # Subscriptions

    async def add_channel(self, uaid: Uaid, channel_id: ChannelId, *, channels_max: int) -> bool:
        added = await self._agent_script(
            scripts.ADD_CHANNEL, uaid, dashed(channel_id), channels_max
        )
        return added == 1

    async def get_channels(self, uaid: Uaid) -> frozenset[ChannelId]:
        agent = self.keys.agent(uaid)
        key = self.keys.user(agent)
        text, channels = await self.session.run(
            key, (("GET", key), ("LRANGE", self.keys.channels(agent), 0, -1))
        )
        return frozenset() if self._alive(text) is None else layout.decode_channels(channels)

    async def remove_channel(self, uaid: Uaid, channel_id: ChannelId) -> bool:
        return await self._agent_script(scripts.REMOVE_CHANNEL, uaid, dashed(channel_id)) == 1

    # Notifications

    async def save(self, uaid: Uaid, notification: Notification) -> Replaced | None:
        now_s = self._clock.now_ms() // 1000
        held: object = await self._agent_script(
            scripts.SAVE,
            uaid,
            notification.sort_key,
            layout.encode_message(notification),
            now_s,
            *self._ends(notification, now_s),
        )
        if not isinstance(held, bytes):
            return None
        return notification.replaces(layout.decode_message(notification.sort_key, held, b""))

    async def save_new(self, uaid: Uaid, notification: Notification) -> bool:
        now_s = self._clock.now_ms() // 1000
        saved = await self._agent_script(
            scripts.SAVE_NEW,
            uaid,
            notification.sort_key,
            layout.encode_message(notification),
            now_s,
            *self._ends(notification, now_s),
            notification.message_id,
        )
        return saved == 1

    async def save_if_newer(self, uaid: Uaid, notifications: Sequence[Notification]) -> HandedBack:
        written = 0
        replaced: list[Replaced | None] = []
        now_s = self._clock.now_ms() // 1000
        for start in range(0, len(notifications), _ROWS_PER_CALL):
            rows: list[Argument] = []
            handed = notifications[start : start + _ROWS_PER_CALL]
            for notification in handed:
                rows += (
                    notification.sort_key,
                    dashed(notification.channel_id),
                    notification.accepted_at_ms,
                    notification.message_id,
                    layout.encode_message(notification),
                    *self._ends(notification, now_s),
                )
            count, *met = await self._agent_script(scripts.SAVE_IF_NEWER, uaid, now_s, *rows)
            written += count
            replaced += (
                _replaced(handed[int(met[n])], met[n + 1] == 1, met[n + 2])
                for n in range(0, len(met), 3)
            )
        return HandedBack(written, tuple(filter(None, replaced)))

    async def fetch(
        self, uaid: Uaid, *, now_ms: int, after: SortKey | None, limit: int
    ) -> Sequence[Notification]:
        position: Argument = after or ""
        while True:
            agent = self.keys.agent(uaid)
            go_on, *rows = await self.session.run_script(
                scripts.FETCH,
                (self.keys.user(agent),),
                agent,
                now_ms,
                position,
                limit,
                max(_FETCH_ROWS_MAX, limit),
            )
            alive = [row for row in self._decoded(rows) if not row.expired(now_ms)]
            if alive or not (rows or go_on):
                return alive
            position = go_on or rows[-3]  # no row was readable: continue after them

    async def forget(self, uaid: Uaid, rows: Sequence[tuple[SortKey, MessageId]]) -> int:
        forgotten = 0
        for start in range(0, len(rows), _ROWS_PER_CALL):
            pairs = [text for row in rows[start : start + _ROWS_PER_CALL] for text in row]
            forgotten += await self._agent_script(scripts.FORGET, uaid, *pairs)
        return forgotten

    # SimplePush

    async def save_update(self, uaid: Uaid, update: Update) -> SavedUpdate:
        channel_id = update.channel_id
        applied, held, times = await self._agent_script(
            scripts.SAVE_UPDATE,
            uaid,
            dashed(channel_id),
            update.version,
            layout.update_time(update),
        )
        if held is None:
            return SavedUpdate(applied == 1)
        return update.saved(layout.decode_update(channel_id, held, times))

    async def fetch_updates(self, uaid: Uaid, *, limit: int) -> Sequence[Update]:
        agent = self.keys.agent(uaid)
        key = self.keys.user(agent)
        text, flat, subscribed = await self.session.run(
            key,
            (
                ("GET", key),
                ("HGETALL", self.keys.updates(agent)),
                ("LRANGE", self.keys.channels(agent), 0, -1),
            ),
        )
        if self._alive(text) is None:
            return []
        channels = layout.decode_channels(subscribed)
        versions = dict(zip(flat[::2], flat[1::2], strict=True))
        return layout.decode_updates(versions, channels)[:limit]

    async def forget_update(self, uaid: Uaid, channel_id: ChannelId, version: int) -> bool:
        forgotten = await self._agent_script(
            scripts.FORGET_UPDATE, uaid, dashed(channel_id), version
        )
        return forgotten == 1

    # Broadcasts

    async def publish_broadcast(self, broadcast_id: str, version: str) -> bool:
        key = self.keys.broadcasts
        (added,) = await self.session.run(key, (("HSET", key, broadcast_id, version),))
        return added == 1

    async def get_broadcasts(self) -> Mapping[str, str]:
        key = self.keys.broadcasts
        (flat,) = await self.session.run(key, (("HGETALL", key),))
        texts = [text.decode() for text in flat]
        return dict(zip(texts[::2], texts[1::2], strict=True))

    # Statuses and tracking

    async def note_milestones(self, notes: Sequence[MilestoneNote]) -> None:
        by_message: dict[MessageId, list[MilestoneNote]] = defaultdict(list)
        for note in notes:
            by_message[note.message_id].append(note)
        await asyncio.gather(*map(self._tracking.note, by_message.values()))

    async def get_status(self, message_id: MessageId, *, now_ms: int) -> MessageStatus | None:
        return await self._tracking.status(message_id, now_ms)

    async def track(
        self, reliability_id: str, milestone: Milestone, *, at_ms: int, expires_at_ms: int
    ) -> None:
        await self._tracking.track(reliability_id, milestone, expires_at_ms)

    async def count_milestones(self, *, now_ms: int) -> Mapping[str, int]:
        return await self._tracking.counts(now_ms)

    # Upkeep

    async def sweep(self, *, now_ms: int, limit: int) -> int:
        await self._tracking.expire(now_ms)
        return await sweep(self.session, self.keys, now_ms=now_ms, limit=limit)

    async def check(self) -> None:
        key = self.keys.broadcasts
        await asyncio.gather(
            self.session.run(key, (("EXISTS", key),)), self.session.run_everywhere(("DBSIZE",))
        )

    async def close(self) -> None:
        await self.session.close()

    # Inside

    def _alive(self, text: bytes | None) -> UserAgent | None:
        decoded = None if text is None else layout.decode_record(text)
        if decoded is None:
            return None
        record, expires_at_ms = decoded
        over = expires_at_ms is not None and expires_at_ms <= self._clock.now_ms()
        return None if over else record

    async def _agent_script(self, script: Script, uaid: Uaid, *args: Argument) -> Reply:
        agent = self.keys.agent(uaid)
        return await self.session.run_script(
            script, (self.keys.user(agent),), agent, self._clock.now_ms(), *args
        )

    async def _write_record(self, mode: str, user_agent: UserAgent) -> bool:
        expires_at_ms = self._clock.now_ms() + self._url.router_ttl_s * 1000
        written = await self._agent_script(
            scripts.WRITE_RECORD,
            user_agent.uaid,
            mode,
            layout.encode_record(user_agent, expires_at_ms),
            user_agent.connected_at_ms,
            expires_at_ms,
            self._url.router_ttl_s,
        )
        return written == 1

    def _ends(self, notification: Notification, now_s: int) -> tuple[int, int]:
        """Its expiry, and the expiry of its body, in seconds."""
        ends_s = min(notification.expires_at_ms // 1000, now_s + self._url.notification_ttl_s)
        return ends_s, ends_s + layout.BODY_GRACE_S

    def _decoded(self, rows: Sequence[Reply]) -> list[Notification]:
        found: list[Notification] = []
        for n in range(0, len(rows), 3):
            row = layout.decode_message(rows[n].decode(), rows[n + 1], rows[n + 2])
            if row is None:
                self.session.stats.undecodable += 1
            else:
                found.append(row)
        return found


def _replaced(notification: Notification, is_put: bool, text: bytes) -> Replaced | None:
    """The script's answer for a topic: the body that was replaced, or the id that refused it."""
    if not is_put:
        return notification.replaced_by(MessageId(text.decode()))
    return notification.replaces(layout.decode_message(notification.sort_key, text, b""))
