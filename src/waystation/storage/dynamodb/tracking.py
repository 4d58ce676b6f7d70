"""Tracked messages: each counted in one state, in rows of our own table.

`tracked#N`/id is a message: its `state`, and while that is not a final one, `due`, which puts it
into the index of those to be expired. `counts`/N holds how many there are in each state
(`n_STATE`). Both change in one transaction. N is one of a few shards, by the id, so that
transactions seldom meet on one counter. A final row expires by itself a day after its time; one
that is not final stays until it has been counted as expired.
"""

import zlib
from collections.abc import Mapping
from typing import Any

from waystation.push.model import Milestone
from waystation.storage.dynamodb.context import StoreContext
from waystation.storage.dynamodb.layout import Item, get_number, get_string, number, string
from waystation.storage.dynamodb.session import TransactionRefusedError, together

SHARDS = 8
KEPT_S = 86_400  # an ended message, so that a late milestone of it is not another message
_EXPIRE_PORTION = 100
_COUNT = "n_"


class TrackingRows:
    def __init__(self, context: StoreContext) -> None:
        self._dynamo = context.dynamo
        self._table = context.url.own_table

    async def track(self, reliability_id: str, milestone: Milestone, *, expires_at_ms: int) -> None:
        await self._move(reliability_id, None, milestone, expires_at_ms)

    async def _move(
        self, reliability_id: str, held: Item | None, milestone: Milestone, expires_at_ms: int
    ) -> None:
        """`held`: what we believe to be there. If it is not, what is there is told."""
        while held is None or not _state(held).terminal:
            try:
                await self._dynamo.transact(
                    self._written(reliability_id, held, milestone, expires_at_ms),
                    self._counted(reliability_id, held, milestone),
                )
            except TransactionRefusedError as refusal:
                held = refusal.items[0]
                if held is None and milestone is Milestone.EXPIRED:
                    return  # somebody else has moved it, and it is gone
                continue
            return

    def _written(
        self, reliability_id: str, held: Item | None, milestone: Milestone, expires_at_ms: int
    ) -> Item:
        item = _key(reliability_id) | {"state": string(milestone.value)}
        if milestone.terminal:
            item["expiry"] = number(-(-expires_at_ms // 1000) + KEPT_S)
        else:
            item["due"] = number(expires_at_ms)
        put: dict[str, Any] = {
            "TableName": self._table,
            "Item": item,
            "ConditionExpression": "attribute_not_exists(pk)",
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
        if held is not None:
            put["ConditionExpression"] = "#state = :state"
            put["ExpressionAttributeNames"] = {"#state": "state"}
            put["ExpressionAttributeValues"] = {":state": string(_state(held).value)}
        return {"Put": put}

    def _counted(self, reliability_id: str, held: Item | None, milestone: Milestone) -> Item:
        changes = {_COUNT + milestone.value: 1}
        if held is not None:
            name = _COUNT + _state(held).value
            changes[name] = changes.get(name, 0) - 1
        names = {f"#{at}": name for at, name in enumerate(changes)}
        values = {f":{at}": number(change) for at, change in enumerate(changes.values())}
        return {
            "Update": {
                "TableName": self._table,
                "Key": {"pk": string("counts"), "sk": string(str(_shard(reliability_id)))},
                "UpdateExpression": "ADD " + ", ".join(f"#{n} :{n}" for n in range(len(changes))),
                "ExpressionAttributeNames": names,
                "ExpressionAttributeValues": values,
            }
        }

    async def count(self, *, now_ms: int) -> Mapping[str, int]:
        while await self.expire(now_ms=now_ms, limit=_EXPIRE_PORTION) == _EXPIRE_PORTION:
            pass
        answer = await self._dynamo.read(
            "Query",
            TableName=self._table,
            KeyConditionExpression="pk = :pk",
            ExpressionAttributeValues={":pk": string("counts")},
            ConsistentRead=True,
        )
        counts: dict[str, int] = {}
        for row in answer["Items"]:
            for name in row:
                if name.startswith(_COUNT):
                    state = name.removeprefix(_COUNT)
                    counts[state] = counts.get(state, 0) + (get_number(row, name) or 0)
        return {state: counts[state] for state in sorted(counts) if counts[state]}

    async def expire(self, *, now_ms: int, limit: int) -> int:
        """Move up to `limit` messages whose time is over; how many there were."""
        found = await together(self._due(shard, now_ms, limit) for shard in range(SHARDS))
        due = [row for rows in found for row in rows][:limit]
        for row in due:
            expires_at_ms = get_number(row, "due") or now_ms
            await self._move(row["sk"]["S"], row, Milestone.EXPIRED, expires_at_ms)
        return len(due)

    async def _due(self, shard: int, now_ms: int, limit: int) -> list[Item]:
        answer = await self._dynamo.read(
            "Query",
            TableName=self._table,
            IndexName="DueIndex",
            KeyConditionExpression="pk = :pk AND due <= :now",
            ExpressionAttributeValues={":pk": string(f"tracked#{shard}"), ":now": number(now_ms)},
            ConsistentRead=True,
            Limit=limit,
        )
        return answer["Items"]


def _shard(reliability_id: str) -> int:
    return zlib.crc32(reliability_id.encode()) % SHARDS


def _key(reliability_id: str) -> Item:
    return {"pk": string(f"tracked#{_shard(reliability_id)}"), "sk": string(reliability_id)}


def _state(item: Item) -> Milestone:
    return Milestone(get_string(item, "state"))
