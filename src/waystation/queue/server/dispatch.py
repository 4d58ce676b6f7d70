"""Executes commands after admission, one method per command.

Rule 1: an answer follows the commit of the store: `OK` is a promise.
Rule 2: when the store is not available, clients get a temporary error (§4.6): senders
        `PROXY BROKER TIMEOUT`, all others a closed connection without an answer.
Rule 3: the store checks conditions again where it makes a change, so a command that loses a race
        between check and change is refused and not half executed.
"""

import asyncio
import hmac

import msgspec

from waystation.base.clock import Clock
from waystation.base.errors import BusyError, UnavailableError
from waystation.base.tasks import Done, eager
from waystation.queue.errors import TRY_LATER, Code, Fault
from waystation.queue.model import (
    DAY_S,
    ID_BYTES,
    DhPrivateKey,
    Link,
    Message,
    Queue,
    RecipientId,
    ServiceId,
    ServiceRole,
    Slot,
    day_of,
    message_bytes_max,
)
from waystation.queue.server.admission import Case, look_up
from waystation.queue.server.checks import Checks, Proven
from waystation.queue.server.creation import Creation, Made
from waystation.queue.server.delivery import Delivery
from waystation.queue.server.forwarded_order import Begun
from waystation.queue.server.ids import IdMaker
from waystation.queue.server.notifiers import Notifiers
from waystation.queue.server.observer import Observer
from waystation.queue.server.queue_info import describe
from waystation.queue.server.services import ServiceSession
from waystation.queue.server.subscribers import Subscriber, Subscribers, Subscription
from waystation.queue.settings import Queue as QueueSettings
from waystation.queue.statistics import Belonging
from waystation.queue.store import Admission, QueueStore
from waystation.queue.wire.commands import (
    Ack,
    Command,
    Del,
    Get,
    Key,
    Ldel,
    Lget,
    Lkey,
    Lset,
    Ndel,
    New,
    Nkey,
    Nsub,
    Nsubs,
    Off,
    Ping,
    Que,
    Rkey,
    Send,
    Skey,
    Sub,
)
from waystation.queue.wire.responses import (
    DELETED,
    END,
    OK,
    PONG,
    SUBSCRIBED,
    Err,
    Info,
    Lnk,
    Response,
    Sok,
)
from waystation.queue.wire.transmission import Transmission

_SENDERS = (Send, Skey, Lkey, Lget)
_AUTH = Err(Code.AUTH)
_TOUCHES_MAX = 10_000


class DisconnectError(Exception):
    """The connection is closed instead of an answer."""


class Caller(msgspec.Struct, frozen=True):
    """The client of a command, and the version; a forwarded command has its own version."""

    client: Subscriber
    version: int
    session_key: DhPrivateKey | None
    service: ServiceSession | None = None


class Dispatch:
    def __init__(
        self,
        *,
        store: QueueStore,
        subscribers: Subscribers,
        delivery: Delivery,
        notifiers: Notifiers,
        ids: IdMaker,
        checks: Checks,
        settings: QueueSettings,
        observer: Observer,
        clock: Clock,
    ) -> None:
        self._store = store
        self._subscribers = subscribers
        self._delivery = delivery
        self._notifiers = notifiers
        self._ids = ids
        self._checks = checks
        self._settings = settings
        self._observer = observer
        self._clock = clock
        self._creation = Creation(store, ids, settings)
        self._password = settings.create_password.encode()
        self._touched: set[RecipientId] = set()

    # Steps 3 to 7 of §5.1

    async def look_up(
        self, transmission: Transmission, service: ServiceSession | None = None
    ) -> Case:
        try:
            return await look_up(self._store, transmission, service)
        except (UnavailableError, BusyError):
            return Case(transmission, refused=later(transmission.command))

    async def answer(
        self, caller: Caller, transmission: Transmission, begun: Begun | None = None
    ) -> Response:
        """Takes one command from its look-up to its answer; batches take the steps one by one.
        `begun` is called when the store has been asked for a change and has not answered yet."""
        case = await self.look_up(transmission, caller.service)
        proof = case.to_check(caller.session_key)
        proven = proof is not None and (await self._checks.ask([proof]))[0]
        outcome = eager(self.execute(caller, case, proven=proven), asyncio.get_running_loop())
        if begun is not None:
            begun()
        return outcome.value if isinstance(outcome, Done) else await outcome

    async def execute(self, caller: Caller, case: Case, *, proven: Proven) -> Response:
        fault = case.verdict(proven=proven)
        command = case.transmission.command
        if fault is None:
            try:
                response = await self._perform(caller, case)
            except (UnavailableError, BusyError):
                response = Err(later(command))
        else:
            response = Err(fault)
        self._observer.answered(case.transmission, case.queue, response)
        return response

    # Step 8

    async def _perform(self, caller: Caller, case: Case) -> Response:
        command, queue = case.transmission.command, case.queue
        if queue is None:
            match command:
                case New():
                    return await self._new(caller, case.transmission, command)
                case Ping():
                    return PONG
                case Nsubs() if caller.service is not None:
                    return await self._notifiers.serve_all(caller.client, caller.service)
                case _:
                    return Err(Code.CMD_PROHIBITED)  # forwarding is handled by the driver
        if isinstance(command, Send):
            return await self._send(caller.version, queue, command)
        self._touch(queue)
        match command:
            case Ack():
                return await self._ack(caller, queue, command)
            case Sub():
                return await self._sub(caller, queue, command)
            case Get():
                return await self._get(caller, queue, command)
            case Nsub():
                return await self._nsub(caller, queue, command)
            case Del():
                return await self._delete(caller.client, queue)
            case Que():
                return Info(await describe(self._store, queue, caller.client))
            case Nkey():
                return await self._notifiers.set_notifier(queue, command)
            case Ndel():
                return await self._notifiers.drop_notifier(queue)
            case _:
                return await self._change(queue, command)

    async def _change(self, queue: Queue, command: Command) -> Response:
        """Commands that only change the record of a queue."""
        store, recipient_id = self._store, queue.recipient_id
        match command:
            case Key(key) | Skey(key):
                applied = await store.secure(recipient_id, key)
            case Lkey(key):
                link = queue.link
                if link is None or not await store.secure(recipient_id, key):
                    return _AUTH
                return Lnk(queue.sender_id, link.data)
            case Lget():
                return _AUTH if queue.link is None else Lnk(queue.sender_id, queue.link.data)
            case Rkey(keys):
                applied = await store.set_recipient_keys(recipient_id, keys)
            case Lset(link_id, data):
                if len(link_id) != ID_BYTES:
                    return Err(Code.CMD_SYNTAX)
                applied = await store.set_link(recipient_id, Link(link_id, data))
            case Ldel():
                applied = await store.drop_link(recipient_id)
            case Off():
                applied = await store.suspend(recipient_id)
            case _:
                return Err(Code.CMD_PROHIBITED)
        return OK if applied else _AUTH

    # Create

    async def _new(self, caller: Caller, sent: Transmission, command: New) -> Response:
        refused = self._refuses_new(caller, command)
        if refused is not None:
            return refused
        service_id = None if caller.service is None else caller.service.service_id
        made = await self._creation.create(command, sent.corr_id, self._today_s(), service_id)
        if isinstance(made, Err):
            return made
        if service_id is not None:
            self._observer.belongs(ServiceRole.MESSAGING, Belonging.NEW)
        if made.subscribes:
            self._subscribers.subscribe(caller.client, made.queue)
        return made.ids

    async def draft(self, caller: Caller, sent: Transmission, home: Slot) -> Made | Err:
        """For a cluster: makes the queue that NEW asks for, in this slot, without storing it."""
        command = sent.command
        if not isinstance(command, New):
            return Err(Code.CMD_PROHIBITED)
        case = await self.look_up(sent)
        proof = case.to_check(caller.session_key)
        proven = proof is not None and (await self._checks.ask([proof]))[0]
        fault = case.verdict(proven=proven)
        if fault is not None:
            return Err(fault)
        refused = self._refuses_new(caller, command)
        if refused is not None:
            return refused
        return self._creation.draw(command, sent.corr_id, self._today_s(), home)

    def _refuses_new(self, caller: Caller, command: New) -> Err | None:
        if not self._settings.new_queues:
            return _AUTH
        if self._password and not hmac.compare_digest(command.password or b"", self._password):
            return _AUTH
        return Err(Code.QUOTA) if self._is_full(caller.client) else None

    # Subscribe and get

    async def _sub(self, caller: Caller, queue: Queue, command: Sub) -> Response:
        client, service = caller.client, caller.service
        service_id = None if service is None else service.service_id
        mine = client.subscriptions.get(queue.recipient_id)
        if mine is not None:
            self._observer.repeated(command)
            if mine.gets:
                return Err(Code.CMD_PROHIBITED)
        elif self._is_full(client):
            return Err(Code.QUOTA)
        moves = service_id != queue.service_id
        if moves and not await self._store.set_queue_service(queue.recipient_id, service_id):
            return _AUTH
        self._count_belonging(queue.service_id, service_id)
        taken = self._subscribers.subscribe(client, queue)
        if taken is None:
            return Err(Code.CMD_PROHIBITED)
        subscription, before = taken
        if before is not None:
            before.tell(queue.recipient_id, END)
            self._observer.subscription_ended(queue.slot)
        self._delivery.put_off(subscription)  # its messages follow the answers of this batch
        return SUBSCRIBED if service_id is None else Sok(service_id)

    def _count_belonging(self, before: ServiceId | None, after: ServiceId | None) -> None:
        if after is not None:
            self._observer.belongs(ServiceRole.MESSAGING, Belonging.of(before, after))
        elif before is not None:
            self._observer.belongs(ServiceRole.MESSAGING, Belonging.REMOVED)

    async def _get(self, caller: Caller, queue: Queue, command: Get) -> Response:
        client = caller.client
        if queue.recipient_id in client.subscriptions:
            self._observer.repeated(command)
        elif self._is_full(client):
            return Err(Code.QUOTA)
        subscription = self._subscribers.get_only(client, queue)
        if subscription is None:
            return Err(Code.CMD_PROHIBITED)
        head = await self._store.head(queue.recipient_id)
        if head is None:
            subscription.delivered = None
            return OK
        return self._delivery.hand_over(subscription, head)

    async def _nsub(self, caller: Caller, queue: Queue, command: Nsub) -> Response:
        assert queue.notifier is not None
        if caller.service is not None:
            return await self._notifiers.serve(caller.client, queue, caller.service)
        if queue.notifier.notifier_id in caller.client.notifiers:
            self._observer.repeated(command)
        return await self._notifiers.subscribe(caller.client, queue)

    async def _ack(self, caller: Caller, queue: Queue, command: Ack) -> Response:
        subscription = caller.client.subscriptions.get(queue.recipient_id)
        if subscription is None:
            return Err(Code.NO_MSG)
        # After a repeated SUB the next delivery is deferred, so an ACK is for a message that was
        # delivered before, here or by the slot's former server. If that is not the head, another
        # connection has removed it, and this one goes on with the head (queues §5.3).
        is_ahead = subscription.delivered is None and subscription.busy and not subscription.gets
        delivered = command.message_id if is_ahead else subscription.delivered
        if not delivered or command.message_id not in (b"", delivered):
            return Err(Code.NO_MSG)
        subscription.delivered = None
        subscription.busy = True
        try:
            outcome = await self._store.acknowledge(queue.recipient_id, delivered)
        except (UnavailableError, BusyError):
            if not is_ahead:
                subscription.delivered = delivered  # not removed: it is still unacknowledged
            raise
        finally:
            subscription.busy = False
        if outcome is None:
            return _AUTH
        if is_ahead:
            subscription.missed = True  # the running fetch asks the store again
        since = subscription.delivered_at  # 0: it was delivered by another server
        waited_s = self._clock.mono() - since if since else 0.0
        self._observer.acknowledged(queue, outcome.removed, waited_s, got=subscription.gets)
        return self._after_ack(subscription, outcome.next)

    def _after_ack(self, subscription: Subscription, head: Message | None) -> Response:
        if subscription.gets or not self._subscribers.is_current(subscription):
            return OK
        if head is not None:
            return self._delivery.hand_over(subscription, head)
        if subscription.missed:
            self._delivery.put_off(subscription)
        return OK

    async def _delete(self, client: Subscriber, queue: Queue) -> Response:
        deleted = await self._store.delete(queue.recipient_id)
        if deleted is None:
            return _AUTH
        self.forget(deleted.queue, by=client)
        return OK

    def forget(self, queue: Queue, *, by: Subscriber | None = None) -> None:
        """Tells the subscribers of a deleted queue, except `by`."""
        subscriber = self._subscribers.queue_gone(queue.recipient_id)
        if by is not None:
            by.subscriptions.pop(queue.recipient_id, None)
        if subscriber is not None and subscriber is not by:
            subscriber.tell(queue.recipient_id, DELETED)
        if queue.notifier is not None:
            self._notifiers.gone(queue.notifier.notifier_id, queue.notifier.service_id)

    # Send

    async def _send(self, version: int, queue: Queue, command: Send) -> Response:
        if len(command.body) > message_bytes_max(version):
            return Err(Code.LARGE_MSG)
        now_s = self._clock.now_ms() // 1000
        message = Message(self._ids.message(), now_s, command.notify, command.body)
        days = self._settings.expire_messages_days
        expires = self._settings.expire_on_send and days > 0
        appended = await self._store.append(
            queue.recipient_id,
            message,
            quota=self._settings.queue_quota,
            day_s=day_of(now_s),
            expire_before_s=now_s - int(days * DAY_S) if expires else None,
        )
        if appended.expired:
            self._observer.expired(queue.slot, appended.expired)
        match appended.admission:
            case Admission.REFUSED:
                return _AUTH
            case Admission.FULL | Admission.MARKED:
                return Err(Code.QUOTA)
            case Admission.STORED:
                if appended.is_head:
                    self._delivery.arrived(queue.recipient_id, message)
                if command.notify and queue.notifier is not None:
                    self._notifiers.announce(queue.notifier, message)
                return OK

    # Inside

    def _is_full(self, client: Subscriber) -> bool:
        return len(client.subscriptions) >= self._settings.subscriptions_max

    def _today_s(self) -> int:
        return day_of(self._clock.now_ms() // 1000)

    def _touch(self, queue: Queue) -> None:
        """Records the day of its last use; written later, for many queues at once."""
        if queue.updated_on_s != self._today_s() and len(self._touched) < _TOUCHES_MAX:
            self._touched.add(queue.recipient_id)

    async def write_touches(self) -> None:
        touched, self._touched = self._touched, set()
        today_s = self._today_s()
        for recipient_id in touched:
            await self._store.touch(recipient_id, today_s)


def later(command: Command) -> Fault:
    """The temporary error for a command; raises where the connection must be closed instead."""
    if isinstance(command, _SENDERS):
        return TRY_LATER
    raise DisconnectError
