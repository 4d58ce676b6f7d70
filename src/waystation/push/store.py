"""Storage interface of push.

Methods state conditions, not mechanisms. A method that may lose a race returns whether it was
*applied* and does not raise; one that may return many rows takes a *limit*. A backend converts its
own exceptions to `StoreUnavailableError` (`StoreFullError` when it is full) in one place. When a
call has returned, its writes are as durable as the backend can make them.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol, runtime_checkable

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

# Ids with this prefix are not broadcasts: they list the machines that use the store.
MACHINE_PREFIX: Final = "waystation-machine/"


class BroadcastReader(Protocol):
    """The part of `PushStore` that reads broadcasts."""

    async def get_broadcasts(self) -> Mapping[str, str]: ...


async def published_broadcasts(store: BroadcastReader) -> Mapping[str, str]:
    """Broadcasts for user agents, without entries of machines."""
    found = await store.get_broadcasts()
    return {name: at for name, at in found.items() if not name.startswith(MACHINE_PREFIX)}


class PushStore(Protocol):
    """Stores user agents, their subscriptions and their notifications."""

    # User agents and routes

    async def get_user_agent(self, uaid: Uaid) -> UserAgent | None:
        """The record; None if there is none or its lifetime is over."""
        ...

    async def look_up(self, uaid: Uaid, channel_id: ChannelId) -> Recipient | None:
        """Record and subscription in one round trip: the read of every POST."""
        ...

    async def add_user_agent(self, user_agent: UserAgent) -> bool:
        """Applied only if there is no record of that uaid. Rows left by an earlier record of the
        uaid do not become visible again."""
        ...

    async def claim_route(self, user_agent: UserAgent) -> bool:
        """Write the whole record. Applied only if there is none, or it has no
        `node_id`, or its `connected_at_ms` is lower than the new one; on stores
        with row versions, only if the row is still the one that was read. Renews
        the lifetime of record and subscriptions."""
        ...

    async def clear_route(self, uaid: Uaid, seen: Route) -> bool:
        """Applied only if the recorded route is still exactly `seen`."""
        ...

    async def remove_user_agent(self, uaid: Uaid) -> bool:
        """Remove record, subscriptions and notifications at once. Whether there was a record."""
        ...

    # Subscriptions

    async def add_channel(self, uaid: Uaid, channel_id: ChannelId, *, channels_max: int) -> bool:
        """Idempotent. Not applied if it would be one more than `channels_max`, or if
        there is no such user agent."""
        ...

    async def get_channels(self, uaid: Uaid) -> frozenset[ChannelId]: ...

    async def remove_channel(self, uaid: Uaid, channel_id: ChannelId) -> bool:
        """Whether it existed. Its notifications and its update are not fetched any more and, where
        that is cheap, are removed with it."""
        ...

    # Notifications

    async def save(self, uaid: Uaid, notification: Notification) -> Replaced | None:
        """Upsert by sort key: a newer message of a topic replaces the older one. User agent and
        channel are not checked; a row that cannot be fetched is removed when it expires. Returns
        the message of the topic that was replaced; may omit one that had expired or whose
        channel was gone."""
        ...

    async def save_new(self, uaid: Uaid, notification: Notification) -> bool:
        """Insert. Not applied if another message has that sort key."""
        ...

    async def save_if_newer(self, uaid: Uaid, notifications: Sequence[Notification]) -> HandedBack:
        """Hand back unacked notifications in order. A row is written only if none exists under its
        sort key or the existing one is older (`accepted_at_ms`, then message id), and only if
        user agent and channel exist. Returns how many were written and, of two messages of one
        topic, the one that is not stored now, whether it was stored before or handed in. A
        message never replaces itself, so a repeated call returns the same or less. May omit a
        message that had expired."""
        ...

    async def fetch(
        self, uaid: Uaid, *, now_ms: int, after: SortKey | None, limit: int
    ) -> Sequence[Notification]:
        """At most `limit` notifications in sort-key order (topics first), none expired at `now_ms`
        and none of a removed channel. Rows are read `limit` at a time, expired ones included, until
        a batch has a live one; an empty result means that there are no more. `after` is a position
        within one pass; each pass starts anew."""
        ...

    async def forget(self, uaid: Uaid, rows: Sequence[tuple[SortKey, MessageId]]) -> int:
        """Delete acked or withdrawn rows, each only if it still holds that message, so that a newer
        one of its topic survives. How many were deleted."""
        ...

    # SimplePush: one row per channel, the newest version

    async def save_update(self, uaid: Uaid, update: Update) -> SavedUpdate:
        """Applied only if the channel exists and has no row or one with a lower version. The time
        is stored, the data is not."""
        ...

    async def fetch_updates(self, uaid: Uaid, *, limit: int) -> Sequence[Update]:
        """In channel order; none of a removed channel."""
        ...

    async def forget_update(self, uaid: Uaid, channel_id: ChannelId, version: int) -> bool:
        """Applied only if the row still has exactly that version."""
        ...

    # Broadcasts that were published here

    async def publish_broadcast(self, broadcast_id: str, version: str) -> bool:
        """Whether the id is new."""
        ...

    async def get_broadcasts(self) -> Mapping[str, str]:
        """All ids, including those of machines: see `published_broadcasts`."""
        ...

    # Statuses for senders, and counters of tracked messages

    async def note_milestones(self, notes: Sequence[MilestoneNote]) -> None:
        """Merge into the messages' statuses; the first time of a milestone counts."""
        ...

    async def get_status(self, message_id: MessageId, *, now_ms: int) -> MessageStatus | None: ...

    async def track(
        self, reliability_id: str, milestone: Milestone, *, at_ms: int, expires_at_ms: int
    ) -> None:
        """Move a tracked message to `milestone`: it is counted in one state only.
        A terminal state is never left, and stays counted when its row is swept."""
        ...

    async def count_milestones(self, *, now_ms: int) -> Mapping[str, int]:
        """Tracked messages by state; those past their time are moved to `expired` first."""
        ...

    # Upkeep

    async def sweep(self, *, now_ms: int, limit: int) -> int:
        """Remove up to `limit` expired rows. How many were removed; fewer than `limit` means that
        none are left."""
        ...

    async def check(self) -> None:
        """Raise `UnavailableError` unless reads work now."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class CursorStore(Protocol):
    """A push store whose layout has Autopush's read cursor (`current_timestamp`). Autopush's nodes
    treat all rows up to it as acked. We maintain it for them but do not read by it."""

    async def advance_cursor(self, uaid: Uaid, up_to_ms: int) -> bool:
        """Applied only if there is such a user agent, and its cursor is lower or absent."""
        ...


@runtime_checkable
class RotatingStore(Protocol):
    """A push store with a table of notifications and subscriptions for each month.

    `UserAgent.behind` is true for a user agent on an earlier month's table. All other methods use
    the table of their user agent.
    """

    async def switch_month(self, uaid: Uaid, *, connected_at_ms: int) -> bool:
        """Move a user agent without unacked notifications to this month's table: its subscriptions,
        merged with those already there; then its record, if there is no later claim than
        `connected_at_ms`; then rows that were stored in the old table meanwhile. Whether it was
        moved. An interrupted switch leaves the user agent `behind`, and the next call continues."""
        ...
