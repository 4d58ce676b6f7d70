"""Queues, keys and messages for the suites of queue stores."""

import secrets

from waystation.queue.model import (
    AuthKey,
    BoxKey,
    KeyKind,
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
    ServiceId,
)
from waystation.queue.store import (
    Appended,
    QueueStore,
)

DAY_S = 86_400
NOW_S = 1_700_000_000
TODAY_S = NOW_S - NOW_S % DAY_S
QUOTA = 4


def new_key() -> AuthKey:
    return AuthKey(KeyKind.ED25519, secrets.token_bytes(32))


def new_link(fixed: bytes = b"fixed") -> Link:
    return Link(LinkId(secrets.token_bytes(24)), LinkData(fixed, b"user"))


def new_notifier() -> Notifier:
    return Notifier(NotifierId(secrets.token_bytes(24)), new_key(), BoxKey(secrets.token_bytes(32)))


def new_queue(
    *,
    mode: QueueMode | None = QueueMode.MESSAGING,
    link: Link | None = None,
    notifier: Notifier | None = None,
    sender_key: AuthKey | None = None,
    slot: int | None = None,
    service_id: ServiceId | None = None,
) -> Queue:
    recipient_id = bytearray(secrets.token_bytes(24))
    if slot is not None:
        recipient_id[0] = slot >> 4
        recipient_id[1] = (slot & 15) << 4 | recipient_id[1] & 15
    return Queue(
        recipient_id=RecipientId(bytes(recipient_id)),
        recipient_keys=(new_key(),),
        box_key=BoxKey(secrets.token_bytes(32)),
        sender_id=SenderId(secrets.token_bytes(24)),
        sender_key=sender_key,
        mode=mode,
        link=link,
        notifier=notifier,
        updated_on_s=TODAY_S,
        service_id=service_id,
    )


def new_message(body: bytes = b"body", *, at_s: int = NOW_S, notify: bool = False) -> Message:
    return Message(MessageId(secrets.token_bytes(24)), at_s, notify, body)


async def send(
    store: QueueStore,
    queue: Queue,
    message: Message,
    *,
    quota: int = QUOTA,
    expire_before_s: int | None = None,
) -> Appended:
    return await store.append(
        queue.recipient_id,
        message,
        quota=quota,
        day_s=TODAY_S,
        expire_before_s=expire_before_s,
    )


async def drained(store: QueueStore, queue: Queue) -> list[Message]:
    """Every message in its order, each acknowledged."""
    taken: list[Message] = []
    while (head := await store.head(queue.recipient_id)) is not None:
        taken.append(head)
        outcome = await store.acknowledge(queue.recipient_id, head.message_id)
        assert outcome is not None
        assert outcome.removed == head
    return taken
