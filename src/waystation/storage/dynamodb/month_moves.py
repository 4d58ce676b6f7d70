"""Moves a user agent to the table of this month (§6.8, steps 3 and 4 and edge cases a to c).

Rule 1: the channel set is copied before the record points to the new table, so that an endpoint
        that reads either finds it. The old one stays until its table is dropped: an endpoint may
        have read the record before.
Rule 2: from the moment the record points to the new table until the old one has been read once
        more, `previous_month` names the old one. A move that is cut off in between leaves it
        there, and the next connect completes the move.
Rule 3: a writer to the old table reads the record afterwards (`NotificationRows`, rule 2), so every
        row is either seen by the last read or moved by its writer.
"""

import contextlib

from waystation.push.model import USER_AGENT_LIFETIME_S, Uaid
from waystation.storage.dynamodb.context import StoreContext
from waystation.storage.dynamodb.layout import number, string
from waystation.storage.dynamodb.months import last_connect
from waystation.storage.dynamodb.notifications import NotificationRows
from waystation.storage.dynamodb.session import NotAppliedError
from waystation.storage.dynamodb.user_agents import DAY_S, UserAgentRows

_PORTION = 100


class MonthMoves:
    def __init__(
        self, context: StoreContext, agents: UserAgentRows, notifications: NotificationRows
    ) -> None:
        self._dynamo = context.dynamo
        self._router = context.url.router_table
        self._keys = context.keys
        self._tables = context.tables
        self._clock = context.clock
        self._now_s = context.now_s
        self._agents = agents
        self._notifications = notifications

    async def switch(self, uaid: Uaid, *, connected_at_ms: int) -> bool:
        agent = await self._agents.read(uaid)
        if agent is None:
            return False
        if agent.previous is not None:  # cut off the last time
            await self._take_along(uaid, agent.previous, agent.table)
        current = await self._tables.current()
        if not self._tables.older(agent.table, current):
            return True
        await self._copy_channels(uaid, agent.table, current)
        if not await self._point(uaid, agent.table, current, connected_at_ms):
            return False
        self._agents.remember(uaid, current)
        await self._take_along(uaid, agent.table, current)
        return True

    async def _copy_channels(self, uaid: Uaid, source: str, target: str) -> None:
        row = await self._dynamo.get(source, self._keys.channels(uaid))
        if row is None or "chids" not in row:
            return
        await self._dynamo.write(
            "UpdateItem",
            TableName=target,
            Key=self._keys.channels(uaid),
            UpdateExpression="ADD chids :channels SET expiry = :expiry",
            ExpressionAttributeValues={
                ":channels": row["chids"],
                ":expiry": number(self._now_s() + USER_AGENT_LIFETIME_S + DAY_S),
            },
        )

    async def _point(self, uaid: Uaid, source: str, target: str, connected_at_ms: int) -> bool:
        seen = last_connect(self._clock.now_ms(), self._dynamo.chance())
        try:
            await self._dynamo.write(
                "UpdateItem",
                TableName=self._router,
                Key=self._keys.router(uaid),
                UpdateExpression="SET current_month = :target, previous_month = :source,"
                " last_connect = :seen",
                ConditionExpression="current_month = :source"
                " AND (attribute_not_exists(node_id) OR connected_at <= :connected)",
                ExpressionAttributeValues={
                    ":source": string(source),
                    ":target": string(target),
                    ":seen": number(seen),
                    ":connected": number(connected_at_ms),
                },
            )
        except NotAppliedError:
            return False
        return True

    async def _take_along(self, uaid: Uaid, source: str, target: str) -> None:
        """The last look into the old table (edge case a)."""
        after: str | None = None
        while rows := await self._notifications.left_in(source, uaid, after, _PORTION):
            for notification in self._notifications.decode(rows):
                await self._notifications.carry_all(source, target, uaid, notification)
            after = rows[-1]["chidmessageid"]["S"]
        with contextlib.suppress(NotAppliedError):
            await self._dynamo.write(
                "UpdateItem",
                TableName=self._router,
                Key=self._keys.router(uaid),
                UpdateExpression="REMOVE previous_month",
                ConditionExpression="previous_month = :source",
                ExpressionAttributeValues={":source": string(source)},
            )
