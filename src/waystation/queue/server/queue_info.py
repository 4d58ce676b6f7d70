"""QUE: what a recipient may read about its queue (§5.8)."""

import base64
import datetime
from typing import Any

import msgspec

from waystation.queue.model import Message, Queue
from waystation.queue.server.subscribers import Subscriber, Subscription
from waystation.queue.store import QueueStore


async def describe(store: QueueStore, queue: Queue, client: Subscriber) -> bytes:
    """JSON for `INFO`, for this connection."""
    size = await store.size(queue.recipient_id)
    head = await store.head(queue.recipient_id)
    answer: dict[str, Any] = {
        "qiSnd": queue.sender_key is not None,
        "qiNtf": queue.notifier is not None,
    }
    subscription = client.subscriptions.get(queue.recipient_id)
    if subscription is not None:
        answer["qiSub"] = _subscription(subscription)
    answer["qiSize"] = size
    if head is not None:
        answer["qiMsg"] = _message(head)
    return msgspec.json.encode(answer)


def _subscription(subscription: Subscription) -> dict[str, Any]:
    state: dict[str, Any] = {"qSubThread": "prohibitSub" if subscription.gets else "noSub"}
    if subscription.delivered is not None:
        state["qDelivered"] = base64.b64encode(subscription.delivered).decode()
    return state


def _message(message: Message) -> dict[str, Any]:
    at = datetime.datetime.fromtimestamp(message.accepted_at_s, datetime.UTC)
    return {
        "msgId": base64.b64encode(message.message_id).decode(),
        "msgTs": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "msgType": "quota" if message.is_marker else "message",
    }
