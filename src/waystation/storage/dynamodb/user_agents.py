"""Records of user agents, their routes and their channel sets.

Rule 1: a record names the message table of its user agent in `current_month`; its channel set is
        the row with a blank as its key in that table. A record that names no table, or none
        that there is, is dropped (§6.8 d).
Rule 2: `expiry` of a record is renewed by every claim, that of its channel set by the first
        claim of a day; the latter ends a day later, so that it never ends first.
Rule 3: `last_connect` changes with the month only: it is the key of an index.
"""

import contextlib
from typing import Any

import msgspec

from waystation.push.model import (
    SIMPLEPUSH,
    USER_AGENT_LIFETIME_S,
    WEBPUSH,
    ChannelId,
    Recipient,
    Route,
    Uaid,
    UserAgent,
)
from waystation.storage.dynamodb.context import StoreContext
from waystation.storage.dynamodb.layout import (
    Item,
    UnreadableRowError,
    decode_channels,
    decode_record,
    get_number,
    get_string,
    number,
    over,
    record_fields,
    string,
)
from waystation.storage.dynamodb.months import Remembered, last_connect, same_month
from waystation.storage.dynamodb.session import NotAppliedError, together

DAY_S = 86_400
FENCES = ("connected_at", "expiry", "node_id")  # one of them changes with every claim
_CONNECTED = (WEBPUSH, SIMPLEPUSH)  # §9 rule 7: the one may come back as the other

_THERE = "attribute_exists(uaid) AND (attribute_not_exists(expiry) OR expiry > :now)"
_NOT_THERE = "attribute_not_exists(uaid) OR expiry <= :now"


class Agent(msgspec.Struct, frozen=True):
    """A record, and where the rest of its user agent is."""

    record: UserAgent
    table: str
    previous: str | None  # a table that may still hold rows of it


class UserAgentRows:
    def __init__(self, context: StoreContext) -> None:
        self._dynamo = context.dynamo
        self._router = context.url.router_table
        self._storage = context.url.storage_table
        self._keys = context.keys
        self._tables = context.tables
        self._clock = context.clock
        self._now_s = context.now_s
        self._remembered = Remembered()

    # Where a user agent is

    async def place(self, uaid: Uaid) -> str | None:
        """Its message table, as far as we know: whoever writes there looks again afterwards
        unless the table is settled. None: there is no such user agent."""
        table = self._tables.only or self._remembered.get(uaid)
        return table if table is not None else await self.read_place(uaid)

    async def read_place(self, uaid: Uaid) -> str | None:
        agent = await self.read(uaid)
        return None if agent is None else agent.table

    def remember(self, uaid: Uaid, table: str) -> None:
        if self._tables.only is None:
            self._remembered.put(uaid, table)

    # Records

    async def read(self, uaid: Uaid) -> Agent | None:
        item = await self._dynamo.get(self._router, self._keys.router(uaid))
        return await self._agent(uaid, item)

    async def look_up(self, uaid: Uaid, channel_id: ChannelId) -> Recipient | None:
        """One round trip when the user agent is on the current table, two when it is not."""
        guess = self._tables.only or self._remembered.get(uaid) or await self._tables.current()
        rows = await self._dynamo.get_each(
            {self._router: self._keys.router(uaid), guess: self._keys.channels(uaid)}
        )
        agent = await self._agent(uaid, rows.get(self._router))
        if agent is None:
            return None
        now_s = self._now_s()
        channels: frozenset[ChannelId] = frozenset()
        if agent.table == guess:
            channels = decode_channels(rows.get(guess), now_s=now_s)
        if channel_id not in channels and (agent.table != guess or self._tables.only is None):
            # The two rows of a batch are not of one moment: a user agent that was moved in between
            # must not lose its subscription by it.
            row = await self._dynamo.get(agent.table, self._keys.channels(uaid))
            channels = decode_channels(row, now_s=now_s)
        return Recipient(agent.record, channel_id in channels)

    async def _agent(self, uaid: Uaid, item: Item | None) -> Agent | None:
        if item is None or over(item, self._now_s()):
            self._remembered.drop(uaid)
            return None
        table = get_string(item, "current_month")
        if table is None or not await self._tables.known(table):
            await self._drop(uaid, table)
            return None
        previous = get_string(item, "previous_month")
        if previous is not None and previous not in self._tables.names:
            previous = None  # it was dropped, and what it held
        current = await self._tables.current()
        behind = previous is not None or self._tables.older(table, current)
        try:
            record = decode_record(uaid, item, behind=behind)
        except UnreadableRowError:
            self._dynamo.stats.undecodable += 1
            return None
        self.remember(uaid, table)
        return Agent(record, table, previous)

    async def _drop(self, uaid: Uaid, table: str | None) -> None:
        """Unless somebody has given it a table meanwhile."""
        self._remembered.drop(uaid)
        request: dict[str, Any] = {
            "TableName": self._router,
            "Key": self._keys.router(uaid),
            "ConditionExpression": "attribute_not_exists(current_month)",
        }
        if table is not None:
            request["ConditionExpression"] = "current_month = :table"
            request["ExpressionAttributeValues"] = {":table": string(table)}
        with contextlib.suppress(NotAppliedError):
            await self._dynamo.write("DeleteItem", **request)

    async def add(self, user_agent: UserAgent) -> bool:
        uaid = user_agent.uaid
        table = await self._tables.current()
        left, updates = await together([self._keys_of(table, uaid), self._update_keys(uaid)])
        if not await self.add_alone(user_agent):
            return False
        # What a forerunner left behind was read before the record was written, so nothing
        # of the new one is among it.
        await self._dynamo.delete_all(table, left)
        await self._dynamo.delete_all(self._storage, updates)
        return True

    async def add_alone(self, user_agent: UserAgent) -> bool:
        """The record, and nothing else is looked at."""
        uaid, now_s = user_agent.uaid, self._now_s()
        table = await self._tables.current()
        fields = {name: value for name, value in record_fields(user_agent).items() if value}
        item = self._keys.router(uaid) | fields
        item |= {
            "current_month": string(table),
            "last_connect": number(last_connect(now_s * 1000, self._dynamo.chance())),
            "expiry": number(now_s + USER_AGENT_LIFETIME_S),
        }
        try:
            await self._dynamo.write(
                "PutItem",
                TableName=self._router,
                Item=item,
                ConditionExpression=_NOT_THERE,
                ExpressionAttributeValues={":now": number(now_s)},
            )
        except NotAppliedError:
            return False
        self.remember(uaid, table)
        return True

    async def claim(self, user_agent: UserAgent) -> bool:
        uaid, now_s = user_agent.uaid, self._now_s()
        expiry = now_s + USER_AGENT_LIFETIME_S
        fields = record_fields(user_agent)
        written = [name for name, value in fields.items() if value is not None]
        removed = [name for name, value in fields.items() if value is None]
        expression = "SET expiry = :expiry, " + ", ".join(f"{name} = :{name}" for name in written)
        if removed:
            expression += " REMOVE " + ", ".join(removed)
        values = {f":{name}": fields[name] for name in written}
        values |= {":expiry": number(expiry), ":now": number(now_s)}
        same_kind = "router_type = :router_type"
        if user_agent.router_type in _CONNECTED:
            same_kind = "router_type IN (:webpush, :simplepush)"
            values |= {":webpush": string(WEBPUSH), ":simplepush": string(SIMPLEPUSH)}
        condition = (
            f"{_THERE} AND (attribute_not_exists(router_type) OR {same_kind})"
            " AND (attribute_not_exists(node_id) OR connected_at < :connected_at)"
        )
        try:
            answer = await self._dynamo.write(
                "UpdateItem",
                TableName=self._router,
                Key=self._keys.router(uaid),
                UpdateExpression=expression,
                ConditionExpression=condition,
                ExpressionAttributeValues=values,
                ReturnValues="ALL_OLD",
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        except NotAppliedError as refused:
            if refused.item is None or over(refused.item, now_s):
                return await self.add(user_agent)
            return False
        await self._renew(user_agent, answer.get("Attributes", {}), expiry)
        return True

    async def _renew(self, user_agent: UserAgent, before: Item, expiry: int) -> None:
        """Rules 2 and 3, once a day."""
        if (get_number(before, "expiry") or 0) // DAY_S == expiry // DAY_S:
            return
        uaid, now_ms = user_agent.uaid, self._clock.now_ms()
        calls = [self._renew_channels(user_agent, get_string(before, "current_month"), expiry)]
        if not same_month(get_number(before, "last_connect"), now_ms):
            seen = number(last_connect(now_ms, self._dynamo.chance()))
            calls.append(self._set_last_connect(uaid, seen))
        await together(calls)

    async def _renew_channels(self, user_agent: UserAgent, table: str | None, expiry: int) -> None:
        if table is None or table not in self._tables.names:
            return
        expression = "SET expiry = :expiry"
        values = {":expiry": number(expiry + DAY_S)}
        if user_agent.current_timestamp_ms is not None:
            expression += ", current_timestamp = :cursor"
            values[":cursor"] = number(user_agent.current_timestamp_ms)
        with contextlib.suppress(NotAppliedError):  # it has no subscription yet
            await self._dynamo.write(
                "UpdateItem",
                TableName=table,
                Key=self._keys.channels(user_agent.uaid),
                UpdateExpression=expression,
                ConditionExpression="attribute_exists(uaid)",
                ExpressionAttributeValues=values,
            )

    async def advance_cursor(self, uaid: Uaid, up_to_ms: int) -> bool:
        """In the record, and in the channel row, where Autopush reads it."""
        agent = await self.read(uaid)
        if agent is None:
            return False
        await self._move_cursor(agent.table, self._keys.channels(uaid), up_to_ms)
        return await self._move_cursor(self._router, self._keys.router(uaid), up_to_ms)

    async def _move_cursor(self, table: str, key: Item, up_to_ms: int) -> bool:
        lower = "attribute_not_exists(current_timestamp) OR current_timestamp < :cursor"
        try:
            await self._dynamo.write(
                "UpdateItem",
                TableName=table,
                Key=key,
                UpdateExpression="SET current_timestamp = :cursor",
                ConditionExpression=f"attribute_exists(uaid) AND ({lower})",
                ExpressionAttributeValues={":cursor": number(up_to_ms)},
            )
        except NotAppliedError:
            return False
        return True

    async def _set_last_connect(self, uaid: Uaid, seen: Item) -> None:
        with contextlib.suppress(NotAppliedError):
            await self._dynamo.write(
                "UpdateItem",
                TableName=self._router,
                Key=self._keys.router(uaid),
                UpdateExpression="SET last_connect = :seen",
                ConditionExpression="attribute_exists(uaid)",
                ExpressionAttributeValues={":seen": seen},
            )

    async def clear_route(self, uaid: Uaid, seen: Route) -> bool:
        try:
            await self._dynamo.write(
                "UpdateItem",
                TableName=self._router,
                Key=self._keys.router(uaid),
                UpdateExpression="REMOVE node_id",
                ConditionExpression=f"{_THERE} AND node_id = :node AND connected_at = :connected",
                ExpressionAttributeValues={
                    ":now": number(self._now_s()),
                    ":node": string(seen.node_id),
                    ":connected": number(seen.connected_at_ms),
                },
            )
        except NotAppliedError:
            return False
        return True

    async def remove(self, uaid: Uaid) -> bool:
        before = await self._remove(uaid)
        return bool(before) and not over(before, self._now_s())

    async def remove_unchanged(self, uaid: Uaid, seen: Item) -> bool:
        """Applied only if nobody has claimed the record since, nor cleared its route."""
        held = {name: seen[name] for name in FENCES if name in seen}
        conditions = [f"{name} = :{name}" for name in held]
        conditions += [f"attribute_not_exists({name})" for name in FENCES if name not in seen]
        try:
            before = await self._remove(
                uaid,
                ConditionExpression=" AND ".join(["attribute_exists(uaid)", *conditions]),
                ExpressionAttributeValues={f":{name}": value for name, value in held.items()},
            )
        except NotAppliedError:
            return False
        return bool(before)

    async def _remove(self, uaid: Uaid, **condition: Any) -> Item:
        """The record first: without it nothing else of the user agent is found."""
        answer = await self._dynamo.write(
            "DeleteItem",
            TableName=self._router,
            Key=self._keys.router(uaid),
            ReturnValues="ALL_OLD",
            **condition,
        )
        before: Item = answer.get("Attributes", {})
        self._remembered.drop(uaid)
        tables = {get_string(before, "current_month"), get_string(before, "previous_month")}
        for table in self._tables.names.keys() & tables:
            await self._dynamo.delete_all(table, await self._keys_of(table, uaid))
        await self._dynamo.delete_all(self._storage, await self._update_keys(uaid))
        return before

    async def _keys_of(self, table: str, uaid: Uaid) -> list[Item]:
        return await self.query_keys(table, uaid, "chidmessageid")

    async def _update_keys(self, uaid: Uaid) -> list[Item]:
        return await self.query_keys(self._storage, uaid, "chid")

    async def query_keys(self, table: str, uaid: Uaid, name: str) -> list[Item]:
        """The keys of all rows of a user agent, its channel set among them."""
        keys: list[Item] = []
        request: dict[str, Any] = {
            "TableName": table,
            "KeyConditionExpression": "uaid = :uaid",
            "ExpressionAttributeValues": {":uaid": self._keys.uaid(uaid)},
            "ProjectionExpression": f"uaid, {name}",
            "ConsistentRead": True,
        }
        while True:
            answer = await self._dynamo.read("Query", **request)
            keys += answer["Items"]
            if "LastEvaluatedKey" not in answer:
                return keys
            request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]
