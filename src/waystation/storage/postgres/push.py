"""The push store on PostgreSQL: one statement and one round trip per operation.

Look-ups, saves and removals of a loop turn are sent together (`batching.py`), because a commit
costs the same for any number of rows. A write is committed when its call returns.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import partial
from itertools import starmap
from typing import Any

from waystation.base.clock import Clock
from waystation.base.errors import StoreUnavailableError, WaystationError
from waystation.base.ids import new_uuid4
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
from waystation.storage.batching import Batcher
from waystation.storage.postgres import layout
from waystation.storage.postgres.backend import CAPABILITIES
from waystation.storage.postgres.layout import MessageValues
from waystation.storage.postgres.schema import ForeignTablesError, make_ready
from waystation.storage.postgres.session import Session, SessionStats
from waystation.storage.postgres.statements import Statements
from waystation.storage.postgres.sweep import Sweep
from waystation.storage.postgres.tables import Tables
from waystation.storage.postgres.tracking import Tracking
from waystation.storage.postgres.url import PostgresUrl
from waystation.storage.settings import Store

_Lookup = tuple[Uaid, ChannelId]
_Saving = tuple[Uaid, Notification]
_Key = tuple[str | int | None, str | int | None]  # uaid and sort key, as in a row
_Forgetting = tuple[Uaid, Sequence[tuple[SortKey, MessageId]]]


class PostgresPushStore:
    """One database, shared by any number of nodes, including Autopush's."""

    capabilities = CAPABILITIES

    def __init__(self, url: PostgresUrl, *, settings: Store, clock: Clock) -> None:
        tables = Tables(url)
        self._clock = clock
        self._session = Session(url, settings, partial(make_ready, url=url))
        self._sql = Statements(tables)
        self._tracking = Tracking(self._session, tables)
        self._sweep = Sweep(self._session, tables, self._tracking)
        limits: dict[str, Any] = {
            "server": "PostgreSQL",
            "group_max": settings.commit_batch_max,
            "queue_max": settings.queue_max,
        }
        self._lookups = Batcher[_Lookup, Recipient | None](self._look_up_all, **limits)
        self._saves = Batcher[_Saving, Replaced | None](self._save_all, **limits)
        self._inserts = Batcher[MessageValues, bool](self._save_new_all, **limits)
        self._forgettings = Batcher[_Forgetting, int](self._forget_all, **limits)

    @classmethod
    async def open(cls, url: PostgresUrl, *, settings: Store, clock: Clock) -> "PostgresPushStore":
        """Succeeds even if the server cannot be reached yet; raises for foreign tables."""
        store = cls(url, settings=settings, clock=clock)
        try:
            await store.check()
        except ForeignTablesError:
            await store.close()
            raise
        except StoreUnavailableError:
            pass  # operations fail until the server can be reached
        return store

    def stats(self) -> SessionStats:
        """Counters: round trips, connections, failures, refusals."""
        return self._session.stats

    async def warnings(self) -> Sequence[str]:
        """Warnings for start-up and `doctor`."""
        return await self._sweep.warnings()

    # User agents and routes

    async def get_user_agent(self, uaid: Uaid) -> UserAgent | None:
        rows = await self._session.read(self._sql.get, uaid.hex(), self._now_s())
        return layout.read_user_agent(uaid, rows[0]) if rows else None

    async def look_up(self, uaid: Uaid, channel_id: ChannelId) -> Recipient | None:
        return await self._lookups.ask((uaid, channel_id))

    async def add_user_agent(self, user_agent: UserAgent) -> bool:
        return await self._write_record(self._sql.add_user_agent, user_agent)

    async def claim_route(self, user_agent: UserAgent) -> bool:
        return await self._write_record(self._sql.claim_route, user_agent)

    async def clear_route(self, uaid: Uaid, seen: Route) -> bool:
        version = None if seen.row_version is None else seen.row_version.hex()
        return bool(
            await self._session.change(
                self._sql.clear_route,
                uaid.hex(),
                seen.node_id,
                seen.connected_at_ms,
                version,
                self._now_s(),
            )
        )

    async def advance_cursor(self, uaid: Uaid, up_to_ms: int) -> bool:
        statement = self._sql.advance_cursor
        return bool(await self._session.change(statement, uaid.hex(), up_to_ms, self._now_s()))

    async def remove_user_agent(self, uaid: Uaid) -> bool:
        rows = await self._session.change(self._sql.remove_user_agent, uaid.hex(), self._now_s())
        return any(row["alive"] for row in rows)

    # Subscriptions

    async def add_channel(self, uaid: Uaid, channel_id: ChannelId, *, channels_max: int) -> bool:
        rows = await self._session.change(
            self._sql.add_channel, uaid.hex(), channel_id.hex(), channels_max, self._now_s()
        )
        return rows[0]["added"]

    async def get_channels(self, uaid: Uaid) -> frozenset[ChannelId]:
        rows = await self._session.read(self._sql.get_channels, uaid.hex(), self._now_s())
        return layout.read_channels([row["channel_id"] for row in rows])

    async def remove_channel(self, uaid: Uaid, channel_id: ChannelId) -> bool:
        return bool(
            await self._session.change(
                self._sql.remove_channel, uaid.hex(), channel_id.hex(), self._now_s()
            )
        )

    # Notifications

    async def save(self, uaid: Uaid, notification: Notification) -> Replaced | None:
        return await self._saves.ask((uaid, notification))

    async def save_new(self, uaid: Uaid, notification: Notification) -> bool:
        return await self._inserts.ask(layout.message_values(uaid, notification))

    async def save_if_newer(self, uaid: Uaid, notifications: Sequence[Notification]) -> HandedBack:
        written = 0
        replaced: list[Replaced | None] = []
        waiting = list(notifications)
        while waiting:
            # A statement may write a row only once: a second message of a topic waits for the next
            # one.
            now: dict[SortKey, Notification] = {}
            later = [row for row in waiting if now.setdefault(row.sort_key, row) is not row]
            columns = layout.columns_of([layout.message_values(uaid, row) for row in now.values()])
            statement = self._sql.save_if_newer
            for row in await self._session.change(statement, *columns, self._now_s()):
                notification = now[row["chid_message_id"]]
                if not row["is_written"]:
                    if notification.topic is not None:
                        replaced.append(Replaced.of(notification))
                elif (row["extras"] or "").startswith(layout.REPLACED):
                    replaced.append(layout.read_replaced(row["extras"]))
                    written += 1
                else:  # an existing row of a topic that replaced nothing is the same message
                    written += row["is_new"] or notification.topic is None
            waiting = later
        return HandedBack(written, tuple(filter(None, replaced)))

    async def fetch(
        self, uaid: Uaid, *, now_ms: int, after: SortKey | None, limit: int
    ) -> Sequence[Notification]:
        position: str = after or ""
        while True:
            rows = await self._session.read(
                self._sql.fetch, uaid.hex(), position, limit, self._now_s()
            )
            alive: list[Notification] = []
            for row in rows:
                if not row["subscribed"]:
                    continue
                notification = layout.read_notification(row)
                if notification is None:
                    self._session.stats.undecodable += 1
                elif not notification.expired(now_ms):
                    alive.append(notification)
            if alive or len(rows) < limit:
                return alive
            position = rows[-1]["chid_message_id"]

    async def forget(self, uaid: Uaid, rows: Sequence[tuple[SortKey, MessageId]]) -> int:
        return await self._forgettings.ask((uaid, tuple(rows))) if rows else 0

    # SimplePush

    async def save_update(self, uaid: Uaid, update: Update) -> SavedUpdate:
        (row,) = await self._session.change(
            self._sql.save_update,
            uaid.hex(),
            update.channel_id.hex(),
            Decimal(update.version),
            update.accepted_at_ms or None,
            self._now_s(),
        )
        if row["held_version"] is None:
            return SavedUpdate(row["applied"])
        return update.saved(
            layout.read_update(update.channel_id, row["held_version"], row["held_at_ms"])
        )

    async def fetch_updates(self, uaid: Uaid, *, limit: int) -> Sequence[Update]:
        rows = await self._session.read(self._sql.fetch_updates, uaid.hex(), self._now_s(), limit)
        return [
            layout.read_update(
                ChannelId(bytes.fromhex(row["channel_id"])), row["version"], row["accepted_at_ms"]
            )
            for row in rows
        ]

    async def forget_update(self, uaid: Uaid, channel_id: ChannelId, version: int) -> bool:
        return bool(
            await self._session.change(
                self._sql.forget_update,
                uaid.hex(),
                channel_id.hex(),
                Decimal(version),
                self._now_s(),
            )
        )

    # Broadcasts

    async def publish_broadcast(self, broadcast_id: str, version: str) -> bool:
        rows = await self._session.change(self._sql.publish, broadcast_id, version)
        return rows[0]["is_new"]

    async def get_broadcasts(self) -> Mapping[str, str]:
        rows = await self._session.read(self._sql.get_broadcasts)
        return {row["id"]: row["version"] for row in rows}

    # Statuses and tracking

    async def note_milestones(self, notes: Sequence[MilestoneNote]) -> None:
        if notes:
            await self._tracking.note(notes)

    async def get_status(self, message_id: MessageId, *, now_ms: int) -> MessageStatus | None:
        return await self._tracking.status(message_id, now_ms)

    async def track(
        self, reliability_id: str, milestone: Milestone, *, at_ms: int, expires_at_ms: int
    ) -> None:
        await self._tracking.track(reliability_id, milestone, at_ms, expires_at_ms)

    async def count_milestones(self, *, now_ms: int) -> Mapping[str, int]:
        return await self._tracking.count(now_ms)

    # Sweep

    async def sweep(self, *, now_ms: int, limit: int) -> int:
        return await self._sweep.sweep(now_ms, limit)

    async def check(self) -> None:
        await self._session.read(self._sql.check)

    async def close(self) -> None:
        """Waits for submitted calls; safe to call twice."""
        for group in (self._lookups, self._saves, self._inserts, self._forgettings):
            await group.close()
        await self._session.close()

    # Inside

    def _now_s(self) -> int:
        return self._clock.now_ms() // 1000

    async def _write_record(self, statement: str, user_agent: UserAgent) -> bool:
        values = layout.record_values(user_agent, new_uuid4())
        return bool(await self._session.change(statement, *values, self._now_s()))

    async def _look_up_all(self, asked: Sequence[_Lookup]) -> Sequence[Recipient | None]:
        rows = await self._session.read(
            self._sql.look_up,
            [uaid.hex() for uaid, _ in asked],
            [channel_id.hex() for _, channel_id in asked],
            self._now_s(),
        )
        found: list[Recipient | None] = [None] * len(asked)
        for row in rows:
            place: int = row["n"] - 1
            found[place] = layout.read_recipient(asked[place][0], row)
        return found

    async def _save_all(
        self, asked: Sequence[_Saving]
    ) -> Sequence[Replaced | WaystationError | None]:
        # A statement may write a row only once; of several messages the last one wins.
        rows = {(values[0], values[2]): values for values in starmap(layout.message_values, asked)}
        told = await self._upsert(list(rows.values()))
        refused: set[_Key] = set()
        if told is None:
            told = dict[_Key, Replaced | None]()
            for key, values in rows.items():
                alone = await self._upsert([values])
                if alone is None:
                    refused.add(key)
                else:
                    told |= alone
        answers: list[Replaced | WaystationError | None] = []
        before: dict[_Key, Notification] = {}
        for uaid, notification in asked:
            key = (uaid.hex(), notification.sort_key)
            if key in refused:
                answers.append(_taken())
            elif key in before:
                answers.append(notification.replaces(before[key]))
            else:
                answers.append(told.get(key))
            before[key] = notification
        return answers

    async def _upsert(self, rows: Sequence[MessageValues]) -> dict[_Key, Replaced | None] | None:
        """The replaced messages, by key; None if one of the rows cannot be written."""
        columns = layout.columns_of(rows)
        told = await self._session.change_or_collide(self._sql.save, *columns)
        if told is None:
            return None
        return {
            (row["uaid"], row["chid_message_id"]): layout.read_replaced(row["extras"])
            for row in told
        }

    async def _save_new_all(self, asked: Sequence[MessageValues]) -> Sequence[bool]:
        rows = await self._session.change(self._sql.save_new, *layout.columns_of(asked))
        applied = {(row["uaid"], row["chid_message_id"], row["version"]) for row in rows}
        return [(values[0], values[2], values[3]) in applied for values in asked]

    async def _forget_all(self, asked: Sequence[_Forgetting]) -> Sequence[int]:
        numbers: list[int] = []
        uaids: list[str] = []
        keys: list[str] = []
        versions: list[str] = []
        for number, (uaid, rows) in enumerate(asked):
            numbers += [number] * len(rows)
            uaids += [uaid.hex()] * len(rows)
            keys += [key for key, _ in rows]
            versions += [version for _, version in rows]
        gone = await self._session.change(self._sql.forget, numbers, uaids, keys, versions)
        counts = [0] * len(asked)
        for row in gone:
            counts[row["n"]] += 1
        return counts


def _taken() -> StoreUnavailableError:
    return StoreUnavailableError(
        "another user agent has a row of the same channel and topic, and Autopush's unique index"
        " allows only one"
    )
