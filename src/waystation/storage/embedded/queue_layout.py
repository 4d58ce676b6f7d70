"""The layout of queue rows in LMDB.

| table | key | value |
|---|---|---|
| queues | recipient id | head, record without the link's data |
| senders, notifiers | their id | recipient id |
| links | link id | recipient id, link data |
| lines | recipient id | number of the first and of the next message, whether the next is admitted |
| messages | recipient id, number | message id, time, kind, body |
| grants | recipient id | session that created the queue and may resume its subscription |
| refs | id, kind | slot of the id's queue, transaction |
| pending | number | a notification that was waiting when the server stopped |
| services | fingerprint | id and role of a service |
| service_queues, service_notifiers | id of a service, recipient or notifier id | recipient id |

An id begins with its slot, so the rows of a slot are adjacent in `queues`, `lines` and `messages`.
A queue's record names all its other rows, so a slot is copied by reading `queues`.

An empty queue has no row in `lines`: an idle queue is its record and two ids. Messages of a queue
are numbered without gaps, so the numbers give the size, and the next message is found without a
search.

An append decodes only the head of a record: standing, day, and whether the next message drops the
link.
"""

import struct
from typing import Final, cast

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
    Queue,
    QueueMode,
    RecipientId,
    SenderId,
    Service,
    ServiceId,
    Slot,
    Standing,
)
from waystation.queue.store import NOBODYS_QUEUE, PendingNotification, Ref, RefKind, drops_link

FORMAT: Final = "waystation.queue/1"
TABLES: Final = (
    "queues",
    "lines",
    "messages",
    "refs",
    "grants",
    "senders",
    "notifiers",
    "links",
    "pending",
    "services",
    "service_queues",
    "service_notifiers",
)

ID_BYTES: Final = 24

_HEAD = struct.Struct(">BBI")  # standing, next message drops the link, day
_LINE = struct.Struct(">QQ?")  # first, next, admitted
_NUMBER = struct.Struct(">Q")
_MESSAGE = struct.Struct(">24sQB")
_LINK = struct.Struct(">24sI")
_SLOT = struct.Struct(">H")

_STANDINGS: Final[tuple[Standing, ...]] = (Standing.ACTIVE, Standing.OFF, Standing.BLOCKED)
_ACTIVE: Final = 0
_DAY_S: Final = 86_400
_SILENT, _NOTIFY, _MARKER = 0, 1, 2


class _Row(msgspec.Struct, frozen=True, array_like=True):
    """New fields go last and have a default, so that rows of older versions stay readable."""

    recipient_keys: tuple[AuthKey, ...]
    box_key: bytes
    sender_id: bytes
    sender_key: AuthKey | None
    mode: QueueMode | None
    link_id: bytes | None
    notifier: Notifier | None
    blocking: Blocking | None
    service_id: bytes | None = None


class MessageRange(msgspec.Struct, frozen=True, gc=False):
    """Numbers of the messages of one queue: `first` up to, not including, `next`."""

    first: int = 0
    next: int = 0
    can_write: bool = True

    @property
    def size(self) -> int:
        return self.next - self.first


NO_MESSAGES: Final = MessageRange()

_encode = msgspec.msgpack.Encoder().encode
_decode_row = msgspec.msgpack.Decoder(_Row).decode
_decode_service = msgspec.msgpack.Decoder(Service).decode
_decode_pending = msgspec.msgpack.Decoder(PendingNotification).decode


# Queues


def encode_queue(queue: Queue) -> bytes:
    head = _HEAD.pack(
        _STANDINGS.index(queue.standing), drops_link(queue), queue.updated_on_s // _DAY_S
    )
    return head + _encode(
        _Row(
            queue.recipient_keys,
            queue.box_key,
            queue.sender_id,
            queue.sender_key,
            queue.mode,
            None if queue.link is None else queue.link.link_id,
            queue.notifier,
            queue.blocking,
            queue.service_id,
        )
    )


NOBODYS_RECORD: Final = encode_queue(NOBODYS_QUEUE)


def link_id_of(value: bytes) -> LinkId | None:
    row = _decode_row(memoryview(value)[_HEAD.size :])
    return None if row.link_id is None else LinkId(row.link_id)


def ids_of(recipient_id: RecipientId, value: bytes) -> list[tuple[RefKind, bytes]]:
    """The other ids of this queue: sender, link, notifier."""
    queue, link_id = decode_queue(recipient_id, value, None), link_id_of(value)
    ids: list[tuple[RefKind, bytes]] = [(RefKind.SENDER, queue.sender_id)]
    if queue.notifier is not None:
        ids.append((RefKind.NOTIFIER, queue.notifier.notifier_id))
    if link_id is not None:
        ids.append((RefKind.LINK, link_id))
    return ids


def decode_queue(recipient_id: RecipientId, value: bytes, link: bytes | None) -> Queue:
    """`link` is the row of `links` that the record names, if it names one."""
    standing, day = cast("tuple[int, int]", _HEAD.unpack_from(value)[::2])
    row = _decode_row(memoryview(value)[_HEAD.size :])
    return Queue(
        recipient_id=recipient_id,
        recipient_keys=row.recipient_keys,
        box_key=BoxKey(row.box_key),
        sender_id=SenderId(row.sender_id),
        sender_key=row.sender_key,
        mode=row.mode,
        link=None if row.link_id is None or link is None else decode_link(row.link_id, link),
        notifier=row.notifier,
        standing=_STANDINGS[standing],
        blocking=row.blocking,
        updated_on_s=day * _DAY_S,
        service_id=None if row.service_id is None else ServiceId(row.service_id),
    )


class RecordHead(msgspec.Struct, frozen=True, gc=False):
    """The head of a queue's record: all that an append decodes."""

    active: bool
    drops_link: bool
    day_s: int


def read_record_head(value: bytes) -> RecordHead:
    standing, drops, day = _HEAD.unpack_from(value)
    return RecordHead(standing == _ACTIVE, bool(drops), day * _DAY_S)


def on_day(value: bytes, day_s: int) -> bytes:
    """The same record with that day of last use."""
    standing, drops, _ = _HEAD.unpack_from(value)
    return _HEAD.pack(standing, drops, day_s // _DAY_S) + value[_HEAD.size :]


# Links


def encode_link(recipient_id: RecipientId, data: LinkData) -> bytes:
    return _LINK.pack(recipient_id, len(data.fixed)) + data.fixed + data.user


def decode_link(link_id: bytes, value: bytes) -> Link:
    _, fixed_bytes = _LINK.unpack_from(value)
    middle = _LINK.size + fixed_bytes
    return Link(LinkId(link_id), LinkData(value[_LINK.size : middle], value[middle:]))


# Messages


def encode_line(line: MessageRange) -> bytes:
    return _LINE.pack(line.first, line.next, line.can_write)


def decode_line(value: bytes | None) -> MessageRange:
    return NO_MESSAGES if value is None else MessageRange(*_LINE.unpack(value))


def message_key(recipient_id: RecipientId, number: int) -> bytes:
    return recipient_id + _NUMBER.pack(number)


def split_message_key(key: bytes) -> tuple[bytes, int]:
    return key[:ID_BYTES], _NUMBER.unpack_from(key, ID_BYTES)[0]


def encode_message(message: Message) -> bytes:
    if message.body is None:
        return _MESSAGE.pack(message.message_id, message.accepted_at_s, _MARKER)
    kind = _NOTIFY if message.notify else _SILENT
    return _MESSAGE.pack(message.message_id, message.accepted_at_s, kind) + message.body


def decode_message(value: bytes) -> Message:
    message_id, accepted_at_s, kind = _MESSAGE.unpack_from(value)
    body = None if kind == _MARKER else value[_MESSAGE.size :]
    return Message(MessageId(message_id), accepted_at_s, kind == _NOTIFY, body)


# Services


def encode_service(service: Service) -> bytes:
    return _encode(service)


def decode_service(value: bytes) -> Service:
    return _decode_service(value)


# References


def ref_key(kind: RefKind, entity_id: bytes) -> bytes:
    return entity_id + kind.value.encode()


def ref_of(key: bytes) -> tuple[RefKind, bytes]:
    return RefKind(key[-1:].decode()), key[:-1]


def encode_ref(ref: Ref) -> bytes:
    return _SLOT.pack(ref.home) + ref.tx_id


def decode_ref(value: bytes) -> Ref:
    return Ref(Slot(_SLOT.unpack_from(value)[0]), value[_SLOT.size :])


# Notifications


def pending_key(number: int) -> bytes:
    return _NUMBER.pack(number)


def encode_pending(notification: PendingNotification) -> bytes:
    return _encode(notification)


def decode_pending(value: bytes) -> PendingNotification:
    return _decode_pending(value)
