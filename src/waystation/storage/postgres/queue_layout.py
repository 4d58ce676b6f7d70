"""Queues and messages as rows of PostgreSQL."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from waystation.queue.model import (
    AuthKey,
    Blocking,
    BoxKey,
    Link,
    LinkData,
    LinkId,
    Message,
    MessageId,
    Notifier,
    NotifierId,
    Queue,
    QueueMode,
    RecipientId,
    SenderId,
    Service,
    ServiceId,
    ServiceRole,
    Standing,
)
from waystation.queue.store import NOBODYS_QUEUE, PendingNotification

_encode = msgspec.msgpack.Encoder().encode
_decode_keys = msgspec.msgpack.Decoder(tuple[AuthKey, ...]).decode
_decode_key = msgspec.msgpack.Decoder(AuthKey).decode
_decode_blocking = msgspec.msgpack.Decoder(Blocking).decode
_decode_pending = msgspec.msgpack.Decoder(PendingNotification).decode

Row = Mapping[str, Any]

QUEUE_COLUMNS: Final = (
    "recipient_id",
    "sender_id",
    "link_id",
    "notifier_id",
    "recipient_keys",
    "box_key",
    "sender_key",
    "mode",
    "link_fixed",
    "link_user",
    "notifier_key",
    "notifier_box_key",
    "standing",
    "blocking",
    "updated_on_s",
    "service_id",
    "notifier_service_id",
)


def encode_key(key: AuthKey) -> bytes:
    return _encode(key)


def encode_keys(keys: tuple[AuthKey, ...]) -> bytes:
    return _encode(keys)


def encode_blocking(blocking: Blocking) -> bytes:
    return _encode(blocking)


def queue_values(queue: Queue) -> tuple[object, ...]:
    """The values in column order."""
    link, notifier = queue.link, queue.notifier
    return (
        queue.recipient_id,
        queue.sender_id,
        None if link is None else link.link_id,
        None if notifier is None else notifier.notifier_id,
        encode_keys(queue.recipient_keys),
        queue.box_key,
        None if queue.sender_key is None else encode_key(queue.sender_key),
        None if queue.mode is None else queue.mode.value,
        None if link is None else link.data.fixed,
        None if link is None else link.data.user,
        None if notifier is None else encode_key(notifier.key),
        None if notifier is None else notifier.box_key,
        queue.standing.value,
        None if queue.blocking is None else encode_blocking(queue.blocking),
        queue.updated_on_s,
        queue.service_id,
        None if notifier is None else notifier.service_id,
    )


NOBODYS_ROW: Final[Row] = dict(zip(QUEUE_COLUMNS, queue_values(NOBODYS_QUEUE), strict=True))


def read_queue(row: Row) -> Queue:
    link_id, notifier_id, key = row["link_id"], row["notifier_id"], row["sender_key"]
    return Queue(
        recipient_id=RecipientId(row["recipient_id"]),
        recipient_keys=_decode_keys(row["recipient_keys"]),
        box_key=BoxKey(row["box_key"]),
        sender_id=SenderId(row["sender_id"]),
        sender_key=None if key is None else _decode_key(key),
        mode=None if row["mode"] is None else QueueMode(row["mode"]),
        link=None
        if link_id is None
        else Link(LinkId(link_id), LinkData(row["link_fixed"], row["link_user"])),
        notifier=None
        if notifier_id is None
        else Notifier(
            NotifierId(notifier_id),
            _decode_key(row["notifier_key"]),
            BoxKey(row["notifier_box_key"]),
            _service_id(row["notifier_service_id"]),
        ),
        standing=Standing(row["standing"]),
        blocking=None if row["blocking"] is None else _decode_blocking(row["blocking"]),
        updated_on_s=row["updated_on_s"],
        service_id=_service_id(row["service_id"]),
    )


def _service_id(value: bytes | None) -> ServiceId | None:
    return None if value is None else ServiceId(value)


def read_service(row: Row) -> Service:
    return Service(ServiceId(row["service_id"]), ServiceRole(row["role"]))


def read_message(row: Row) -> Message:
    return Message(MessageId(row["message_id"]), row["accepted_at_s"], row["notify"], row["body"])


def encode_pending(notification: PendingNotification) -> bytes:
    return _encode(notification)


def read_pending(row: Row) -> PendingNotification:
    return _decode_pending(row["notification"])
