"""The push store on DynamoDB."""

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
from waystation.storage.dynamodb.backend import CAPABILITIES
from waystation.storage.dynamodb.channels import ChannelRows
from waystation.storage.dynamodb.context import StoreContext
from waystation.storage.dynamodb.init import PREFLIGHT_UAID, make_missing_tables, preflight
from waystation.storage.dynamodb.month_moves import MonthMoves
from waystation.storage.dynamodb.notifications import NotificationRows
from waystation.storage.dynamodb.records import RecordRows
from waystation.storage.dynamodb.session import Dynamo, DynamoStats
from waystation.storage.dynamodb.tables import MessageTables
from waystation.storage.dynamodb.tracking import TrackingRows
from waystation.storage.dynamodb.url import DynamoUrl
from waystation.storage.dynamodb.user_agents import UserAgentRows
from waystation.storage.settings import Store


class DynamoPushStore:
    """One region's tables, shared by all machines."""

    capabilities = CAPABILITIES

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._agents = UserAgentRows(context)
        self._channels = ChannelRows(context, self._agents)
        self._notifications = NotificationRows(context, self._agents, self._channels)
        self._records = RecordRows(context, self._agents, self._channels)
        self._tracking = TrackingRows(context)
        self._moves = MonthMoves(context, self._agents, self._notifications)

    @classmethod
    async def open(
        cls, url: DynamoUrl, *, settings: Store, clock: Clock, make_tables: bool = False
    ) -> "DynamoPushStore":
        dynamo = await Dynamo.open(url, settings)
        try:
            if make_tables and url.create_tables:
                await make_missing_tables(dynamo, url, clock, units=settings.table_units)
            tables = MessageTables(dynamo, url, clock)
            await tables.open()
            context = StoreContext(dynamo, url, tables, clock)
            await preflight(context)
        except BaseException:
            await dynamo.close()
            raise
        return cls(context)

    def stats(self) -> DynamoStats:
        return self._context.dynamo.stats

    # User agents and routes

    async def get_user_agent(self, uaid: Uaid) -> UserAgent | None:
        agent = await self._agents.read(uaid)
        return None if agent is None else agent.record

    async def look_up(self, uaid: Uaid, channel_id: ChannelId) -> Recipient | None:
        return await self._agents.look_up(uaid, channel_id)

    async def add_user_agent(self, user_agent: UserAgent) -> bool:
        return await self._agents.add(user_agent)

    async def claim_route(self, user_agent: UserAgent) -> bool:
        return await self._agents.claim(user_agent)

    async def clear_route(self, uaid: Uaid, seen: Route) -> bool:
        return await self._agents.clear_route(uaid, seen)

    async def advance_cursor(self, uaid: Uaid, up_to_ms: int) -> bool:
        return await self._agents.advance_cursor(uaid, up_to_ms)

    async def remove_user_agent(self, uaid: Uaid) -> bool:
        return await self._agents.remove(uaid)

    # Subscriptions

    async def add_channel(self, uaid: Uaid, channel_id: ChannelId, *, channels_max: int) -> bool:
        return await self._channels.add(uaid, channel_id, channels_max=channels_max)

    async def get_channels(self, uaid: Uaid) -> frozenset[ChannelId]:
        return await self._channels.get(uaid)

    async def remove_channel(self, uaid: Uaid, channel_id: ChannelId) -> bool:
        return await self._channels.remove(uaid, channel_id)

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

    async def switch_month(self, uaid: Uaid, *, connected_at_ms: int) -> bool:
        return await self._moves.switch(uaid, connected_at_ms=connected_at_ms)

    # SimplePush

    async def save_update(self, uaid: Uaid, update: Update) -> SavedUpdate:
        return await self._records.save_update(uaid, update)

    async def fetch_updates(self, uaid: Uaid, *, limit: int) -> Sequence[Update]:
        return await self._records.fetch_updates(uaid, limit=limit)

    async def forget_update(self, uaid: Uaid, channel_id: ChannelId, version: int) -> bool:
        return await self._records.forget_update(uaid, channel_id, version)

    # Broadcasts

    async def publish_broadcast(self, broadcast_id: str, version: str) -> bool:
        return await self._records.publish_broadcast(broadcast_id, version)

    async def get_broadcasts(self) -> Mapping[str, str]:
        return await self._records.get_broadcasts()

    # What happened to a message

    async def note_milestones(self, notes: Sequence[MilestoneNote]) -> None:
        await self._records.note_milestones(notes)

    async def get_status(self, message_id: MessageId, *, now_ms: int) -> MessageStatus | None:
        return await self._records.get_status(message_id, now_ms=now_ms)

    async def track(
        self, reliability_id: str, milestone: Milestone, *, at_ms: int, expires_at_ms: int
    ) -> None:
        await self._tracking.track(reliability_id, milestone, expires_at_ms=expires_at_ms)

    async def count_milestones(self, *, now_ms: int) -> Mapping[str, int]:
        return await self._tracking.count(now_ms=now_ms)

    # Upkeep

    async def sweep(self, *, now_ms: int, limit: int) -> int:
        """DynamoDB removes rows by itself; what is left is to count tracked messages as expired."""
        return await self._tracking.expire(now_ms=now_ms, limit=limit)

    async def check(self) -> None:
        context = self._context
        await context.dynamo.get(context.url.router_table, context.keys.router(PREFLIGHT_UAID))

    async def close(self) -> None:
        await self._context.dynamo.close()
