"""What push asks of storage.

Conditions, not mechanisms. What may lose a race returns whether it was
*applied* and never raises for losing; what may return many takes a *limit* and
keeps it. A backend's own exceptions become `StoreUnavailableError` (or
`StoreFullError` when there is no room) in one place. When a call has returned, what it wrote is
as durable as the backend can make it.
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

# Ids among the broadcasts that are no broadcasts: machines that use the store.
MACHINE_PREFIX: Final = "waystation-machine/"


class BroadcastReader(Protocol):
    """The part of `PushStore` that knows broadcasts."""

    async def get_broadcasts(self) -> Mapping[str, str]: ...


async def published_broadcasts(store: BroadcastReader) -> Mapping[str, str]:
    """What was published for user agents."""
    found = await store.get_broadcasts()
    return {name: at for name, at in found.items() if not name.startswith(MACHINE_PREFIX)}


class PushStore(Protocol):
    """User agents, their subscriptions and what waits for them."""

    # User agents and routes

    async def get_user_agent(self, uaid: Uaid) -> UserAgent | None:
        """The record, or none; a record older than its lifetime is none."""
        ...

    async def look_up(self, uaid: Uaid, channel_id: ChannelId) -> Recipient | None:
        """Record and subscription in one round trip: the read of every POST."""
        ...

    async def add_user_agent(self, user_agent: UserAgent) -> bool:
        """Applied only if there is no record of that uaid. Nothing that a forerunner left
        behind is inherited."""
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
        """Record, subscriptions and notifications, all at once; whether there was one."""
        ...

    # Subscriptions

    async def add_channel(self, uaid: Uaid, channel_id: ChannelId, *, channels_max: int) -> bool:
        """Idempotent. Not applied if it would be one more than `channels_max`, or if
        there is no such user agent."""
        ...

    async def get_channels(self, uaid: Uaid) -> frozenset[ChannelId]: ...

    async def remove_channel(self, uaid: Uaid, channel_id: ChannelId) -> bool:
        """Whether it was there. Its notifications are not fetched any more and, where
        that is cheap, removed with it; so is its update."""
        ...

    # Notifications

    async def save(self, uaid: Uaid, notification: Notification) -> Replaced | None:
        """Upsert by sort key: a topic replaces its predecessor. Whether user agent and
        channel exist is not asked; what nobody can fetch goes when its time is over.
        Which other message of the topic was replaced, if somebody still waited for it:
        one that had expired, or whose channel was gone, may be told or not."""
        ...

    async def save_new(self, uaid: Uaid, notification: Notification) -> bool:
        """Insert. Not applied if another message has that sort key."""
        ...

    async def save_if_newer(self, uaid: Uaid, notifications: Sequence[Notification]) -> HandedBack:
        """Hand back what was not acked, one after the other. A row is written only if none
        exists under its sort key or the existing one is older (`accepted_at_ms`, then
        message id); nothing is written for a user agent or channel that is gone. How many
        were written; and of two messages of one topic, which one has lost its place, be it
        the stored one or the one that was handed in. A message never replaces itself, so a
        call that is repeated tells the same again or less. One that had expired may be told
        or not."""
        ...

    async def fetch(
        self, uaid: Uaid, *, now_ms: int, after: SortKey | None, limit: int
    ) -> Sequence[Notification]:
        """In sort-key order (topics first), none expired at `now_ms`, none of a
        channel that is gone, at most `limit`. Rows are looked at `limit` at a time,
        expired ones included, and the first portion with something alive is the
        answer; empty means that there is nothing more. `after` is a position within
        one pass; each pass starts anew."""
        ...

    async def forget(self, uaid: Uaid, rows: Sequence[tuple[SortKey, MessageId]]) -> int:
        """Delete acked or withdrawn rows; each only if it still holds that very
        message, so that a newer one of its topic survives. How many were there."""
        ...

    # SimplePush: one row per channel, the newest version

    async def save_update(self, uaid: Uaid, update: Update) -> SavedUpdate:
        """Applied only if the channel exists, and no row or one of a lower version. Its
        time is kept, its data is not."""
        ...

    async def fetch_updates(self, uaid: Uaid, *, limit: int) -> Sequence[Update]:
        """In channel order; none of a channel that is gone."""
        ...

    async def forget_update(self, uaid: Uaid, channel_id: ChannelId, version: int) -> bool:
        """Applied only if the row still has exactly that version."""
        ...

    # Broadcasts that were published here

    async def publish_broadcast(self, broadcast_id: str, version: str) -> bool:
        """Whether the id is new."""
        ...

    async def get_broadcasts(self) -> Mapping[str, str]:
        """All ids, those of machines too: see `published_broadcasts`."""
        ...

    # What happened to a message: for its sender, and counted for tracked ones

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
        """Remove up to `limit` rows whose time is over. How many it removed; fewer
        than `limit` means that nothing is left to do."""
        ...

    async def check(self) -> None:
        """Raise `UnavailableError` unless reads work now."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class CursorStore(Protocol):
    """A push store whose layout has Autopush's cursor (`current_timestamp`), up to which its nodes
    take everything for acked. We keep it up for them; no row is hidden by it from us."""

    async def advance_cursor(self, uaid: Uaid, up_to_ms: int) -> bool:
        """Applied only if there is such a user agent, and its cursor is lower or absent."""
        ...


@runtime_checkable
class RotatingStore(Protocol):
    """A push store with a table of notifications and subscriptions for each month.

    `UserAgent.behind` says who is still on an earlier month's. All other methods go by the month
    of their user agent, whichever it is.
    """

    async def switch_month(self, uaid: Uaid, *, connected_at_ms: int) -> bool:
        """Move a user agent of which nothing is unacked to this month: its subscriptions, merged
        with what is there already; then its record, only if there is no later claim than
        `connected_at_ms`; then what was stored in the old table meanwhile. Whether it is there
        now. A switch that was cut off leaves the user agent `behind`, and the next call goes on
        with it."""
        ...
