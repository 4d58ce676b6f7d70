"""Notifications: rows of the message table that their user agent is on.

Rule 1: a row is deleted only if it still holds the message that was meant (`updateid`).
Rule 2: a user agent may be moved to another table while we write to its old one. Whoever wrote to
        a table that is not settled reads the record again: either the move is still to come
        and will find the row, or the writer takes the row along.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from waystation.push.model import (
    ChannelId,
    HandedBack,
    MessageId,
    Notification,
    Replaced,
    SortKey,
    Uaid,
)
from waystation.storage.dynamodb.channels import ChannelRows
from waystation.storage.dynamodb.context import StoreContext
from waystation.storage.dynamodb.layout import (
    CHANNELS_KEY,
    Item,
    UnreadableRowError,
    decode_channels,
    decode_notification,
    encode_notification,
    get_string,
    is_legacy,
    number,
    string,
)
from waystation.storage.dynamodb.session import (
    NotAppliedError,
    TransactionRefusedError,
    together,
)
from waystation.storage.dynamodb.user_agents import UserAgentRows

# A row of Autopush has no time in milliseconds: its second decides.
_OLDER = (
    "attribute_not_exists(uaid)"
    " OR accepted_ms < :ms"
    " OR (accepted_ms = :ms AND updateid < :id)"
    " OR (attribute_not_exists(accepted_ms) AND #timestamp < :s)"
)


class NotificationRows:
    def __init__(self, context: StoreContext, agents: UserAgentRows, channels: ChannelRows) -> None:
        self._dynamo = context.dynamo
        self._keys = context.keys
        self._tables = context.tables
        self._now_s = context.now_s
        self._agents = agents
        self._channels = channels

    # Saving

    async def save(self, uaid: Uaid, notification: Notification) -> Replaced | None:
        table = await self._agents.place(uaid) or await self._tables.current()
        replaced = await self._put(table, uaid, notification)
        if (moved_to := await self._moved(uaid, table)) is not None:
            await self.carry(table, moved_to, uaid, notification)
        return replaced

    async def save_new(self, uaid: Uaid, notification: Notification) -> bool:
        table = await self._agents.place(uaid) or await self._tables.current()
        try:
            await self._dynamo.write(
                "PutItem", **self._item(table, uaid, notification), **_free(notification)
            )
        except NotAppliedError:
            return False
        moved_to = await self._moved(uaid, table)
        if moved_to is None or await self.carry(table, moved_to, uaid, notification):
            return True
        await self._delete(table, uaid, notification.sort_key, notification.message_id)
        return False  # its key is taken where it has to go

    async def save_if_newer(self, uaid: Uaid, notifications: Sequence[Notification]) -> HandedBack:
        table = await self._agents.read_place(uaid) if notifications else None
        if table is None:
            return HandedBack()
        channels = await self._channels.get_in(table, uaid)
        written = 0
        replaced: list[Replaced | None] = []
        for notification in notifications:  # two of one key must come in order
            if notification.channel_id not in channels:
                continue
            try:
                older = await self._put(
                    table,
                    uaid,
                    notification,
                    **_older(notification),
                    ReturnValuesOnConditionCheckFailure="ALL_OLD",
                )
            except NotAppliedError as refusal:
                held_id = get_string(refusal.item or {}, "updateid") or notification.message_id
                replaced.append(notification.replaced_by(MessageId(held_id)))
            else:
                replaced.append(older)
                written += 1
        if (moved_to := await self._moved(uaid, table)) is not None:
            for notification in notifications:
                await self.carry(table, moved_to, uaid, notification)
        return HandedBack(written, tuple(filter(None, replaced)))

    async def _put(
        self, table: str, uaid: Uaid, notification: Notification, **condition: Any
    ) -> Replaced | None:
        """Of a topic, which one it replaced: that is no round trip and no unit more."""
        request = self._item(table, uaid, notification) | condition
        if notification.topic is None and not condition:
            key = self._keys.message(uaid, notification.sort_key)
            await self._dynamo.put(table, key, request["Item"])
            return None
        if notification.topic is None:
            await self._dynamo.write("PutItem", **request)
            return None
        answer = await self._dynamo.write("PutItem", **request, ReturnValues="ALL_OLD")
        old = self.decode([answer["Attributes"]] if answer.get("Attributes") else [])
        return notification.replaces(old[0]) if old else None

    def _item(self, table: str, uaid: Uaid, notification: Notification) -> Item:
        key = self._keys.message(uaid, notification.sort_key)
        return {"TableName": table, "Item": encode_notification(key, notification)}

    async def carry(self, source: str, target: str, uaid: Uaid, notification: Notification) -> bool:
        """From one table to another, all or nothing: whoever wrote it and the switch may both
        want to. If it is gone from the old one, the other was first; it may even be acked.
        Not applied: another message has its key there, and it is still in the old table."""
        sort_key, message_id = notification.sort_key, notification.message_id
        old = {"TableName": source, "Key": self._keys.message(uaid, sort_key)}
        fits = _free(notification) if notification.topic is None else _older(notification)
        new = self._item(target, uaid, notification) | fits
        try:
            await self._dynamo.transact({"Delete": old | _same(sort_key, message_id)}, {"Put": new})
        except TransactionRefusedError as refusal:
            if refusal.refused[0]:
                return True
            if notification.topic is None:
                return False
            await self._delete(source, uaid, sort_key, message_id)  # a newer one is there already
        return True

    async def carry_all(
        self, source: str, target: str, uaid: Uaid, notification: Notification
    ) -> None:
        """What the switch found. A key of three parts that is taken is moved on by a millisecond,
        as whoever saves one does."""
        if await self.carry(source, target, uaid, notification):
            return
        moved_on = notification
        while True:
            moved_on = _a_millisecond_later(moved_on)
            try:
                await self._dynamo.write(
                    "PutItem", **self._item(target, uaid, moved_on), **_free(moved_on)
                )
            except NotAppliedError:
                continue
            await self._delete(source, uaid, notification.sort_key, notification.message_id)
            return

    async def _moved(self, uaid: Uaid, table: str) -> str | None:
        """Where the user agent is now, if that is not where we wrote (rule 2)."""
        if self._tables.settled(table):
            return None
        now = await self._agents.read_place(uaid)
        return now if now != table else None

    # Fetching

    async def fetch(
        self, uaid: Uaid, *, now_ms: int, after: SortKey | None, limit: int
    ) -> Sequence[Notification]:
        table = await self._agents.place(uaid)
        if table is None:
            return []
        position: Item | None = None
        if after is None:
            # The channel set comes first of all, in the same round trip (§6.7).
            rows, position = await self._page(table, uaid, None, None, limit + 1)
            there = bool(rows) and get_string(rows[0], "chidmessageid") == CHANNELS_KEY
            channels = decode_channels(rows.pop(0) if there else None, now_s=self._now_s())
            if len(rows) > limit:  # no channel set, and so nothing to fetch either
                return []
        else:
            paged = asyncio.ensure_future(self._page(table, uaid, after, None, limit))
            try:
                channels = await self._channels.get_in(table, uaid)
            finally:
                rows, position = await paged
        while True:
            alive = self._alive(rows, channels, now_ms)
            if alive or position is None or not channels:
                return alive
            rows, position = await self._page(table, uaid, None, position, limit)

    def _alive(
        self, rows: Sequence[Item], channels: frozenset[ChannelId], now_ms: int
    ) -> list[Notification]:
        return [
            row
            for row in self.decode(rows)
            if row.channel_id in channels and not row.expired(now_ms)
        ]

    def decode(self, rows: Sequence[Item]) -> list[Notification]:
        decoded: list[Notification] = []
        for row in rows:
            try:
                decoded.append(decode_notification(row))
            except UnreadableRowError:
                self._dynamo.stats.undecodable += 1
        return decoded

    async def _page(
        self,
        table: str,
        uaid: Uaid,
        after: str | None,
        position: Item | None,
        limit: int,
    ) -> tuple[list[Item], Item | None]:
        """Rows behind a sort key or a position, and the position behind them."""
        request: dict[str, Any] = {
            "TableName": table,
            "KeyConditionExpression": "uaid = :uaid",
            "ExpressionAttributeValues": {":uaid": self._keys.uaid(uaid)},
            "ConsistentRead": True,
            "Limit": limit,
        }
        if after is not None:
            request["KeyConditionExpression"] += " AND chidmessageid > :after"
            request["ExpressionAttributeValues"][":after"] = string(after)
        if position is not None:
            request["ExclusiveStartKey"] = position
        answer = await self._dynamo.read("Query", **request)
        return answer["Items"], answer.get("LastEvaluatedKey")

    async def left_in(self, table: str, uaid: Uaid, after: str | None, limit: int) -> list[Item]:
        """Rows of notifications in any table."""
        rows, _ = await self._page(table, uaid, after or CHANNELS_KEY, None, limit)
        return rows

    # Forgetting

    async def forget(self, uaid: Uaid, rows: Sequence[tuple[SortKey, MessageId]]) -> int:
        table = await self._agents.place(uaid) if rows else None
        if table is None:
            return 0
        gone = await self._delete_each(table, uaid, rows)
        missing = [row for row, was_there in zip(rows, gone, strict=True) if not was_there]
        if missing and (moved_to := await self._moved(uaid, table)) is not None:
            gone += await self._delete_each(moved_to, uaid, missing)
        return sum(gone)

    async def _delete_each(
        self, table: str, uaid: Uaid, rows: Sequence[tuple[SortKey, MessageId]]
    ) -> list[bool]:
        return await together(self._delete(table, uaid, *row) for row in rows)

    async def _delete(
        self, table: str, uaid: Uaid, sort_key: SortKey, message_id: MessageId
    ) -> bool:
        key = self._keys.message(uaid, sort_key)
        try:
            await self._dynamo.write(
                "DeleteItem", TableName=table, Key=key, **_same(sort_key, message_id)
            )
        except NotAppliedError:
            return False
        return True


def _same(sort_key: SortKey, message_id: MessageId) -> dict[str, Any]:
    """The condition that a row still holds that message."""
    if is_legacy(sort_key):  # its key names the message
        return {"ConditionExpression": "attribute_exists(uaid)"}
    return {
        "ConditionExpression": "updateid = :id",
        "ExpressionAttributeValues": {":id": string(message_id)},
    }


def _free(notification: Notification) -> dict[str, Any]:
    """The condition that no other message has the key."""
    return {
        "ConditionExpression": "attribute_not_exists(uaid) OR updateid = :id",
        "ExpressionAttributeValues": {":id": string(notification.message_id)},
    }


def _a_millisecond_later(notification: Notification) -> Notification:
    kind, ms, *rest = notification.sort_key.split(":")
    key = SortKey(":".join((kind, str(int(ms) + 1), *rest)))
    return msgspec.structs.replace(notification, sort_key=key)


def _older(notification: Notification) -> dict[str, Any]:
    """The condition that there is no row, or one of an older message."""
    return {
        "ConditionExpression": _OLDER,
        "ExpressionAttributeNames": {"#timestamp": "timestamp"},
        "ExpressionAttributeValues": {
            ":ms": number(notification.accepted_at_ms),
            ":id": string(notification.message_id),
            ":s": number(notification.timestamp_s),
        },
    }
