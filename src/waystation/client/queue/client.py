"""A client of one SMP server: makes queues, receives, acknowledges and sends.

    async with QueueClient(ServerAddress.parse(text)) as client:
        queue = await client.create()
        async for event in client.events():
            if isinstance(event, Received):
                await client.ack(event)

Rule 1: a message is handed over once. If the server sends it again because an ACK was lost, the
        ACK is repeated and the message is not handed over again.
Rule 2: subscriptions are restored on every new connection, until another connection takes them.
Rule 3: SEND and NEW are not repeated when their answer was lost, unless the caller allows a message
        to arrive twice (`again`): the protocol has no other protection. Commands that are safe to
        repeat are repeated.
"""

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

from waystation.base.errors import UnavailableError
from waystation.base.tasks import Tasks

from .address import LinkAddress, ServerAddress
from .answers import Answer, Ids, Info, Link, Message, NotifierIds, Ok, Pong, Refused, Subscribed
from .boxes import box_key
from .commands import (
    Ack,
    Command,
    Delete,
    DeleteLink,
    DeleteNotifier,
    Get,
    Inspect,
    Key,
    Mode,
    New,
    NewNotifier,
    NotifierKey,
    NotifierSub,
    Off,
    Ping,
    RecipientKeys,
    Send,
    SenderKey,
    SetLink,
    Sub,
)
from .connection import Connection, Dial, NotConnectedError, connect
from .encoding import BadBytesError
from .error_replies import AuthError, ErrorReply, error_of
from .events import Event, QuotaReached, Received, Unreadable
from .hello import Session
from .inbox import Inbox
from .keys import KeyKind, PrivateKey, PublicKey
from .links import LinkContent, NewLinkPlan, link_outcome, link_request, renewed
from .queue_secrets import Notifier, RecipientQueue, SenderQueue
from .reconnecting_connection import ConnectionSettings, ReconnectingConnection
from .subscriptions import ask_for_all, restore
from .transmission import Reply


class QueueClient:
    def __init__(
        self,
        server: ServerAddress,
        *,
        settings: ConnectionSettings | None = None,
        tls: ssl.SSLContext | None = None,
        dial: Dial = connect,
        rng: random.Random | None = None,
    ) -> None:
        """`tls`: from `tls.client_context`; by default the strict one. `dial` opens a connection
        in another way, for example through a proxy."""
        self.server = server
        self._inbox = Inbox()
        self._news = asyncio.Event()
        self._failure: BaseException | None = None
        self._tasks = Tasks(lambda _name, error: self._failed(error))
        self._line = ReconnectingConnection(
            server,
            on_event=self._heard,
            on_connected=self._restore,
            on_given_up=self._failed,
            settings=settings or ConnectionSettings(),
            tls=tls,
            dial=dial,
            rng=rng or random.Random(),
        )

    # start and stop

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    def start(self) -> None:
        """Begins to connect; `connected()` waits for the connection."""
        self._line.start()

    async def close(self) -> None:
        """Unacknowledged messages stay on the server."""
        await self._line.close()
        await self._tasks.close()
        self._failed(NotConnectedError("the client was closed"))

    async def connected(self, timeout_s: float | None = None) -> Session:
        return (await self._line.connected(timeout_s)).session

    @property
    def connections(self) -> int:
        """Successful connections; more than one means that the client reconnected."""
        return self._line.connections

    @property
    def repeated(self) -> int:
        """Messages that were delivered again and not handed over."""
        return self._inbox.deliveries.repeated

    @property
    def notifications_dropped(self) -> int:
        return self._inbox.notifications_dropped

    async def drop_connection(self) -> None:
        """Closes the connection; the client reconnects by itself."""
        if self._line.now is not None:
            await self._line.now.close()

    async def ping(self) -> None:
        await self._ask(Pong, Ping(), repeat=True)

    # for the owner of a queue

    async def create(
        self,
        *,
        mode: Mode = "M",
        subscribe: bool = True,
        key_kind: KeyKind = "ed25519",
        link_text: str | None = None,
        notifier: bool = False,
    ) -> RecipientQueue:
        """Creates a queue; `link_text` adds a short link to its address and this text, `notifier`
        the keys of a subscriber to notifications."""
        key, dh, inbox_key = (PrivateKey.generate(kind) for kind in (key_kind, "x25519", "x25519"))
        plan = NewLinkPlan.make(self.server, inbox_key, mode, link_text)
        wakes = (PrivateKey.generate(), PrivateKey.generate("x25519")) if notifier else None
        new = New(
            recipient_key=key.public,
            dh=dh.public,
            password=self.server.password.encode() or None,
            subscribe=subscribe,
            mode=mode,
            link=None if plan is None else plan.request,
            notifier=None if wakes is None else NewNotifier(wakes[0].public, wakes[1].public),
        )
        corr_id = None if plan is None else plan.corr_id
        ids = await self._ask(Ids, new, key=key, corr_id=corr_id)
        if plan is not None:
            plan.check(ids)
        queue = RecipientQueue(
            server=self.server,
            recipient_id=ids.recipient_id,
            sender_id=ids.sender_id,
            key=key,
            box_key=box_key(ids.server_dh, dh.seed),
            inbox_key=inbox_key,
            mode=ids.mode,
            link=None if plan is None else plan.kept(ids),
            notifier=None
            if wakes is None or ids.notifier is None
            else Notifier(
                ids.notifier.notifier_id, wakes[0], box_key(ids.notifier.server_dh, wakes[1].seed)
            ),
        )
        if subscribe:
            self._inbox.follow(queue)
        return queue

    async def subscribe(self, *queues: RecipientQueue, acked: Iterable[bytes] = ()) -> None:
        """Subscribes now and after every reconnect. `acked`: ids of messages that were handled
        before, in case the server sends one of them again. Raises if one queue was refused (the
        others are subscribed), or without a connection (then the next one subscribes)."""
        for queue in queues:
            self._inbox.follow(queue, acked)
        refused: list[Exception] = []
        for queue, answer in zip(
            queues,
            await asyncio.gather(
                *(self._ask_owner(queue, Sub(), any_answer=True) for queue in queues)
            ),
            strict=True,
        ):
            if isinstance(answer, Refused):
                self._inbox.unfollow(queue.recipient_id)
                refused.append(error_of(answer.error_reply))
            elif not isinstance(answer, Ok | Subscribed):
                raise BadBytesError("unexpected answer to SUB")
        if refused:
            raise refused[0]

    def follow(self, queue: RecipientQueue, acked: Iterable[bytes] = ()) -> None:
        """Like `subscribe`, but from the next connection on, without waiting for one. A refusal is
        an event."""
        self._inbox.follow(queue, acked)

    async def unsubscribe(self, queue: RecipientQueue) -> None:
        """The protocol has no command for it: reconnects without this queue."""
        self._inbox.unfollow(queue.recipient_id)
        await self.drop_connection()

    async def get(self, queue: RecipientQueue) -> Received | Unreadable | QuotaReached | None:
        """Fetches the first message without subscribing; it has to be acknowledged."""
        answer = await self._ask_owner(queue, Get())
        if isinstance(answer, Ok):
            return None
        if not isinstance(answer, Message):
            raise BadBytesError("unexpected answer to GET")
        opened = self._inbox.open(queue, answer)
        if isinstance(opened, QuotaReached):
            await self._ack(queue, answer.message_id)
        return opened

    async def ack(self, event: Received | Unreadable) -> bool:
        """Whether the server has confirmed it. If not, the ACK is repeated when the message is
        delivered again, without an event."""
        self._inbox.deliveries.acked(event.queue.recipient_id, event.message_id)
        return await self._ack(event.queue, event.message_id)

    async def secure(self, queue: RecipientQueue, sender_key: PublicKey) -> None:
        """From now on only the holder of this key can send."""
        await self._ask_owner(queue, Key(sender_key))

    async def set_keys(self, queue: RecipientQueue, keys: Sequence[PublicKey]) -> None:
        """Replaces the keys that may act as the owner of a contact queue."""
        await self._ask_owner(queue, RecipientKeys(tuple(keys)))

    async def suspend(self, queue: RecipientQueue) -> None:
        """The queue accepts no more messages; waiting ones can still be read."""
        await self._ask_owner(queue, Off())

    async def delete(self, queue: RecipientQueue) -> None:
        answer, repeated = await self._line.ask(
            Delete(), entity_id=queue.recipient_id, key=queue.key, repeat=True
        )
        if isinstance(answer, Refused) and not (
            repeated and answer.error_reply == ErrorReply("AUTH")
        ):
            raise error_of(answer.error_reply)  # AUTH to a repeated DEL: the first one deleted it
        self._inbox.unfollow(queue.recipient_id)

    async def info(self, queue: RecipientQueue) -> dict[str, Any]:
        answer = await self._ask_owner(queue, Inspect())
        assert isinstance(answer, Info)
        return answer.fields

    async def set_link(self, queue: RecipientQueue, text: str) -> RecipientQueue:
        """Adds a short link to a queue, or changes the text of its link."""
        link = renewed(queue, text)
        await self._ask_owner(queue, SetLink(link.link_id, link.data))
        return msgspec.structs.replace(queue, link=link)

    async def delete_link(self, queue: RecipientQueue) -> RecipientQueue:
        await self._ask_owner(queue, DeleteLink())
        return msgspec.structs.replace(queue, link=None)

    async def add_notifier(self, queue: RecipientQueue) -> RecipientQueue:
        """Replaces an existing notifier."""
        key, dh = PrivateKey.generate(), PrivateKey.generate("x25519")
        answer = await self._ask_owner(queue, NotifierKey(key.public, dh.public))
        assert isinstance(answer, NotifierIds)
        notifier = Notifier(answer.notifier_id, key, box_key(answer.server_dh, dh.seed))
        return msgspec.structs.replace(queue, notifier=notifier)

    async def delete_notifier(self, queue: RecipientQueue) -> RecipientQueue:
        await self._ask_owner(queue, DeleteNotifier())
        return msgspec.structs.replace(queue, notifier=None)

    # for a notifier

    async def subscribe_notifier(self, notifier: Notifier) -> None:
        self._inbox.notifiers[notifier.notifier_id] = notifier
        try:
            await self._ask(
                Ok | Subscribed,
                NotifierSub(),
                entity_id=notifier.notifier_id,
                key=notifier.key,
                repeat=True,
            )
        except Exception:
            self._inbox.notifiers.pop(notifier.notifier_id, None)
            raise

    async def subscribe_service(self, *notifiers: Notifier) -> int:
        """As a service, subscribes to all of its notifiers; returns how many there are. Only
        notifications of notifiers given here or before are decrypted."""
        self._inbox.notifiers |= {one.notifier_id: one for one in notifiers}
        self._inbox.all_served = True
        return await ask_for_all(await self._line.connected())

    # for a sender

    async def send(
        self, sender: SenderQueue, body: bytes, *, notify: bool = False, again: bool = False
    ) -> None:
        """Returns when the server has the message. `again`: repeat it after a lost answer."""
        await self._ask(
            Ok, Send(body, notify), entity_id=sender.sender_id, key=sender.key, repeat=again
        )

    async def secure_as_sender(self, sender: SenderQueue) -> None:
        """Called before the first message: from now on only this sender can send."""
        assert sender.key is not None, "a sender secures a queue with a key"
        await self._ask(
            Ok,
            SenderKey(sender.key.public),
            entity_id=sender.sender_id,
            key=sender.key,
            repeat=True,
        )

    async def open_link(
        self, link: LinkAddress, key: PrivateKey | None = None
    ) -> tuple[LinkContent, SenderQueue]:
        """The content of a short link. An invitation is secured with `key` in the same step, so
        that nobody else can use the link."""
        command, link_id, signer = link_request(link, key)
        answer = await self._ask(Link, command, entity_id=link_id, key=signer, repeat=True)
        return link_outcome(answer, link, signer)

    # events

    async def receive(self) -> Event:
        while True:
            event = self._inbox.take()
            if event is not None:
                return event
            if self._failure is not None:
                raise self._failure
            self._news.clear()
            await self._news.wait()

    async def events(self) -> AsyncIterator[Event]:
        while True:
            yield await self.receive()

    # internal

    async def ask(self, command: Command, **how: Any) -> Answer:
        """Sends any command unchanged; refusals raise."""
        answer, _ = await self._line.ask(command, **how)
        if isinstance(answer, Refused):
            raise error_of(answer.error_reply)
        return answer

    async def _ask(self, expected: Any, command: Command, **how: Any) -> Any:
        answer = await self.ask(command, **how)
        if not isinstance(answer, expected):
            raise BadBytesError(f"unexpected answer to {type(command).__name__}")
        return answer

    async def _ask_owner(
        self, queue: RecipientQueue, command: Command, *, any_answer: bool = False
    ) -> Answer:
        """All commands of an owner may be repeated."""
        answer, _ = await self._line.ask(
            command, entity_id=queue.recipient_id, key=queue.key, repeat=True
        )
        if isinstance(answer, Refused) and not any_answer:
            raise error_of(answer.error_reply)
        return answer

    async def _ack(self, queue: RecipientQueue, message_id: bytes) -> bool:
        connection = self._line.now
        if connection is None:
            return False
        try:
            answer = await connection.ask(
                Ack(message_id), entity_id=queue.recipient_id, key=queue.key
            )
        except UnavailableError:
            return False
        match answer:
            case Ok():
                return True
            case Message():
                self._acknowledge(self._inbox.message(queue, answer))
                self._news.set()
                return True
            case Refused(ErrorReply("NO_MSG")):
                return False  # not subscribed here yet, or removed by another connection
            case Refused(error_reply):
                raise error_of(error_reply)
            case _:
                raise BadBytesError("unexpected answer to ACK")

    def _heard(self, reply: Reply) -> None:
        self._acknowledge(self._inbox.event(reply))
        self._news.set()

    def _acknowledge(self, messages: list[tuple[RecipientQueue, bytes]]) -> None:
        for queue, message_id in messages:
            self._tasks.spawn("queue-ack", self._ack_quietly(queue, message_id))

    async def _ack_quietly(self, queue: RecipientQueue, message_id: bytes) -> None:
        try:
            await self._ack(queue, message_id)
        except AuthError:
            return  # deleted meanwhile

    async def _restore(self, connection: Connection) -> None:
        """Rule 2."""
        if await restore(self._inbox, connection):
            self._news.set()

    def _failed(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._news.set()
