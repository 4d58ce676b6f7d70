"""Subscriptions: the channel set of a user agent, in the message table that it is on."""

import contextlib

from waystation.base.ids import dashed
from waystation.push.model import USER_AGENT_LIFETIME_S, ChannelId, Uaid
from waystation.storage.dynamodb.context import StoreContext
from waystation.storage.dynamodb.layout import (
    Item,
    decode_channels,
    get_string,
    number,
    string,
    string_set,
)
from waystation.storage.dynamodb.session import (
    NotAppliedError,
    TransactionRefusedError,
    together,
)
from waystation.storage.dynamodb.user_agents import DAY_S, UserAgentRows


class ChannelRows:
    def __init__(self, context: StoreContext, agents: UserAgentRows) -> None:
        self._dynamo = context.dynamo
        self._router = context.url.router_table
        self._storage = context.url.storage_table
        self._keys = context.keys
        self._tables = context.tables
        self._agents = agents
        self._now_s = context.now_s

    async def add(self, uaid: Uaid, channel_id: ChannelId, *, channels_max: int) -> bool:
        """One transaction: the record is there and on this table, and there is room."""
        if channels_max < 1:
            return False
        table = await self._agents.place(uaid)
        while table is not None:
            try:
                await self._add(table, uaid, channel_id, channels_max)
            except TransactionRefusedError as refusal:
                if not refusal.refused[0]:
                    return False
                table = self._elsewhere(table, refusal.items[0])
                continue
            self._agents.remember(uaid, table)
            return True
        return False

    async def _add(self, table: str, uaid: Uaid, channel_id: ChannelId, channels_max: int) -> None:
        now_s = self._now_s()
        await self._dynamo.transact(
            {"ConditionCheck": self.on_table(table, uaid)},
            {
                "Update": {
                    "TableName": table,
                    "Key": self._keys.channels(uaid),
                    "UpdateExpression": "ADD chids :channels SET expiry = :expiry",
                    "ConditionExpression": "attribute_not_exists(chids)"
                    " OR contains(chids, :channel) OR size(chids) < :most",
                    "ExpressionAttributeValues": {
                        ":channels": string_set([dashed(channel_id)]),
                        ":channel": string(dashed(channel_id)),
                        ":most": number(channels_max),
                        ":expiry": number(now_s + USER_AGENT_LIFETIME_S + DAY_S),
                    },
                }
            },
        )

    def on_table(self, table: str, uaid: Uaid) -> Item:
        """A condition for a transaction: there is such a user agent, and it is on this table."""
        return {
            "TableName": self._router,
            "Key": self._keys.router(uaid),
            "ConditionExpression": "current_month = :table"
            " AND (attribute_not_exists(expiry) OR expiry > :now)",
            "ExpressionAttributeValues": {":table": string(table), ":now": number(self._now_s())},
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }

    def _elsewhere(self, tried: str, record: Item | None) -> str | None:
        table = None if record is None else get_string(record, "current_month")
        return table if table != tried and table in self._tables.names else None

    async def get(self, uaid: Uaid) -> frozenset[ChannelId]:
        table = await self._agents.place(uaid)
        return frozenset() if table is None else await self.get_in(table, uaid)

    async def get_in(self, table: str, uaid: Uaid) -> frozenset[ChannelId]:
        row = await self._dynamo.get(table, self._keys.channels(uaid))
        return decode_channels(row, now_s=self._now_s())

    async def remove(self, uaid: Uaid, channel_id: ChannelId) -> bool:
        table = await self._agents.place(uaid)
        if table is None or not await self._remove_in(table, uaid, channel_id):
            return False
        current = await self._tables.current()
        if table != current:
            # A switch that was cut off may have copied it already; the next one merges (C-140).
            await self._remove_in(current, uaid, channel_id)
        await together(
            [
                self._remove_notifications(table, uaid, channel_id),
                self._remove_update(uaid, channel_id),
            ]
        )
        return True

    async def _remove_in(self, table: str, uaid: Uaid, channel_id: ChannelId) -> bool:
        try:
            await self._dynamo.write(
                "UpdateItem",
                TableName=table,
                Key=self._keys.channels(uaid),
                UpdateExpression="DELETE chids :channels",
                ConditionExpression="contains(chids, :channel)"
                " AND (attribute_not_exists(expiry) OR expiry > :now)",
                ExpressionAttributeValues={
                    ":channels": string_set([dashed(channel_id)]),
                    ":channel": string(dashed(channel_id)),
                    ":now": number(self._now_s()),
                },
            )
        except NotAppliedError:
            return False
        return True

    async def _remove_notifications(self, table: str, uaid: Uaid, channel_id: ChannelId) -> None:
        keys = await self._agents.query_keys(table, uaid, "chidmessageid")
        channel = dashed(channel_id)
        await self._dynamo.delete_all(
            table, [key for key in keys if channel in key["chidmessageid"]["S"].split(":")]
        )

    async def _remove_update(self, uaid: Uaid, channel_id: ChannelId) -> None:
        with contextlib.suppress(NotAppliedError):
            await self._dynamo.write(
                "DeleteItem", TableName=self._storage, Key=self._keys.update(uaid, channel_id)
            )
