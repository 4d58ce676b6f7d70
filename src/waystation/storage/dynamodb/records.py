"""SimplePush versions, broadcasts, and what senders may learn of their messages.

Versions are rows of Autopush's table `storage`; the others have no place in its schema and are rows
of our own table: `broadcast`/id, and `status#`message id/`-`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from waystation.base.errors import BusyError
from waystation.base.ids import dashed
from waystation.push.model import (
    USER_AGENT_LIFETIME_S,
    ChannelId,
    MessageId,
    MessageStatus,
    MilestoneNote,
    SavedUpdate,
    Uaid,
    Update,
)
from waystation.storage.dynamodb.channels import ChannelRows
from waystation.storage.dynamodb.context import StoreContext
from waystation.storage.dynamodb.layout import (
    Item,
    decode_update,
    encode_update,
    get_number,
    number,
    string,
)
from waystation.storage.dynamodb.session import (
    NotAppliedError,
    TransactionRefusedError,
    together,
)
from waystation.storage.dynamodb.user_agents import UserAgentRows

TRIES_MAX = 64  # of a write that others make void again and again
_BROADCASTS = string("broadcast")
_MILESTONE = "at_"  # before the name of a milestone


class RecordRows:
    def __init__(self, context: StoreContext, agents: UserAgentRows, channels: ChannelRows) -> None:
        self._dynamo = context.dynamo
        self._storage = context.url.storage_table
        self._own = context.url.own_table
        self._keys = context.keys
        self._now_s = context.now_s
        self._agents = agents
        self._channels = channels

    # SimplePush

    async def save_update(self, uaid: Uaid, update: Update) -> SavedUpdate:
        """One transaction: the channel is subscribed, and no row is there. If one is, the refusal
        brings it; a second transaction replaces it, if its version is lower."""
        table = await self._agents.place(uaid)
        if table is None:
            return SavedUpdate(False)
        subscribed = {
            "TableName": table,
            "Key": self._keys.channels(uaid),
            "ConditionExpression": "contains(chids, :channel)",
            "ExpressionAttributeValues": {":channel": string(dashed(update.channel_id))},
        }
        expiry = self._now_s() + USER_AGENT_LIFETIME_S
        put = {
            "TableName": self._storage,
            "Item": encode_update(self._keys.update(uaid, update.channel_id), update, expiry),
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
        held: Update | None = None
        for _ in range(TRIES_MAX):
            saved = update.saved(held)
            if not saved.applied:
                return saved
            try:
                await self._dynamo.transact(
                    {"ConditionCheck": subscribed}, {"Put": put | _unchanged(held)}
                )
            except TransactionRefusedError as refusal:
                if refusal.refused[0]:
                    moved_to = await self._agents.read_place(uaid)
                    if moved_to is not None and moved_to != table:
                        return await self.save_update(uaid, update)
                    return SavedUpdate(False)
                held = decode_update(refusal.items[1] or {})
            else:
                return saved
        raise BusyError("others keep writing the version of this subscription", retry_after_s=1)

    async def fetch_updates(self, uaid: Uaid, *, limit: int) -> Sequence[Update]:
        rows, channels = await self._updates_and_channels(uaid)
        updates = filter(None, map(decode_update, rows))
        return [update for update in updates if update.channel_id in channels][:limit]

    async def _updates_and_channels(self, uaid: Uaid) -> tuple[list[Item], frozenset[ChannelId]]:
        rows: list[Item] = []
        request: dict[str, Any] = {
            "TableName": self._storage,
            "KeyConditionExpression": "uaid = :uaid",
            "ExpressionAttributeValues": {":uaid": self._keys.uaid(uaid)},
            "ConsistentRead": True,
        }
        while True:
            answer = await self._dynamo.read("Query", **request)
            rows += answer["Items"]
            if "LastEvaluatedKey" not in answer:
                break
            request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]
        return rows, await self._channels.get(uaid) if rows else frozenset()

    async def forget_update(self, uaid: Uaid, channel_id: ChannelId, version: int) -> bool:
        try:
            await self._dynamo.write(
                "DeleteItem",
                TableName=self._storage,
                Key=self._keys.update(uaid, channel_id),
                ConditionExpression="version = :version",
                ExpressionAttributeValues={":version": number(version)},
            )
        except NotAppliedError:
            return False
        return True

    # Broadcasts

    async def publish_broadcast(self, broadcast_id: str, version: str) -> bool:
        answer = await self._dynamo.write(
            "PutItem",
            TableName=self._own,
            Item={"pk": _BROADCASTS, "sk": string(broadcast_id), "version": string(version)},
            ReturnValues="ALL_OLD",
        )
        return not answer.get("Attributes")

    async def get_broadcasts(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        request: dict[str, Any] = {
            "TableName": self._own,
            "KeyConditionExpression": "pk = :pk",
            "ExpressionAttributeValues": {":pk": _BROADCASTS},
            "ConsistentRead": True,
        }
        while True:
            answer = await self._dynamo.read("Query", **request)
            for row in answer["Items"]:
                found[row["sk"]["S"]] = row["version"]["S"]
            if "LastEvaluatedKey" not in answer:
                return found
            request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

    # Statuses

    async def note_milestones(self, notes: Sequence[MilestoneNote]) -> None:
        by_message: dict[MessageId, list[MilestoneNote]] = {}
        for note in notes:
            by_message.setdefault(note.message_id, []).append(note)
        await together(self._note(message_id, these) for message_id, these in by_message.items())

    async def _note(self, message_id: MessageId, notes: Sequence[MilestoneNote]) -> None:
        """Written as if there were nothing, then on top of what turned out to be there."""
        key = _status_key(message_id)
        held: Item | None = None
        while True:
            status = _merged(None if held is None else _decode_status(held), notes)
            item = key | _status_fields(status, revision=_revision(held) + 1)
            condition: dict[str, Any] = {"ConditionExpression": "attribute_not_exists(pk)"}
            if held is not None:
                condition["ConditionExpression"] = "revision = :seen"
                condition["ExpressionAttributeValues"] = {":seen": number(_revision(held))}
            try:
                await self._dynamo.write(
                    "PutItem",
                    TableName=self._own,
                    Item=item,
                    ReturnValuesOnConditionCheckFailure="ALL_OLD",
                    **condition,
                )
            except NotAppliedError as refused:
                held = refused.item
                continue
            return

    async def get_status(self, message_id: MessageId, *, now_ms: int) -> MessageStatus | None:
        item = await self._dynamo.get(self._own, _status_key(message_id))
        status = None if item is None else _decode_status(item)
        return None if status is None or status.keep_until_ms <= now_ms else status


def _status_key(message_id: MessageId) -> Item:
    return {"pk": string(f"status#{message_id}"), "sk": string("-")}


def _status_fields(status: MessageStatus, *, revision: int) -> Item:
    fields = {
        "sender": string(status.sender.hex()),
        "keep_until": number(status.keep_until_ms),
        "expiry": number(-(-status.keep_until_ms // 1000)),
        "revision": number(revision),
    }
    return fields | {_MILESTONE + name: number(at) for name, at in status.milestones.items()}


def _decode_status(item: Item) -> MessageStatus:
    return MessageStatus(
        sender=bytes.fromhex(item["sender"]["S"]),
        milestones={
            name.removeprefix(_MILESTONE): int(value["N"])
            for name, value in item.items()
            if name.startswith(_MILESTONE)
        },
        keep_until_ms=get_number(item, "keep_until") or 0,
    )


def _revision(item: Item | None) -> int:
    return 0 if item is None else get_number(item, "revision") or 0


def _merged(held: MessageStatus | None, notes: Sequence[MilestoneNote]) -> MessageStatus:
    milestones = {} if held is None else dict(held.milestones)
    keep_until_ms = 0 if held is None else held.keep_until_ms
    for note in notes:
        name = note.milestone.value
        milestones[name] = min(milestones.get(name, note.at_ms), note.at_ms)
        keep_until_ms = max(keep_until_ms, note.keep_until_ms)
    sender = notes[0].sender if held is None else held.sender
    return MessageStatus(sender=sender, milestones=milestones, keep_until_ms=keep_until_ms)


def _unchanged(held: Update | None) -> dict[str, Any]:
    """The condition that a row of SimplePush is still the one that was seen, or still none."""
    if held is None:
        return {"ConditionExpression": "attribute_not_exists(version)"}
    same, values = "version = :version", {":version": number(held.version)}
    if held.accepted_at_ms:
        same += " AND accepted_ms = :ms"
        values[":ms"] = number(held.accepted_at_ms)
    else:
        same += " AND attribute_not_exists(accepted_ms)"
    return {"ConditionExpression": same, "ExpressionAttributeValues": values}
