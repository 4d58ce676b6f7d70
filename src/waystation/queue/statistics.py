"""Counters of the queue server, under the names that operators of SMP servers know.

Rule 1: everything is counted once, in the metrics. Rows of the daily log are differences of these
        counters, with the column names of that log.
Rule 2: counters contain nothing that identifies a queue, except the hashes for the number of active
        queues.
Rule 3: counting on a message's path never blocks and never raises.

It implements the observers of the server (`server.observer`) and of proxying (`server.proxying`).
"""

import enum
from collections.abc import Sequence
from typing import Final

from waystation.queue.active_queues import ActiveQueues, fold
from waystation.queue.errors import Blocked, Code, Fault
from waystation.queue.model import (
    ID_BYTES,
    Message,
    Queue,
    ServiceId,
    ServiceRole,
    Slot,
    slot_of,
)
from waystation.queue.slot_totals import SlotTotals, code_of
from waystation.queue.wire.commands import (
    Ack,
    Command,
    Del,
    Get,
    Key,
    Lkey,
    Ndel,
    New,
    Nkey,
    Nsub,
    Off,
    Send,
    Skey,
    Sub,
)
from waystation.queue.wire.responses import Err, Ids, Msg, Response
from waystation.queue.wire.transmission import Received, Transmission
from waystation.telemetry import events
from waystation.telemetry.metrics import Cell, Metrics

# Column of the daily log -> metric, its event.
COUNTED: Final = {
    "qCreated": ("queue_queues", "created"),
    "qRefused": ("queue_queues", "refused"),
    "qSecured": ("queue_queues", "secured"),
    "qSuspended": ("queue_queues", "suspended"),
    "qDeletedAll": ("queue_queues", "deleted"),
    "qDeletedNew": ("queue_queues", "deleted_new"),
    "qDeletedSecured": ("queue_queues", "deleted_secured"),
    "qDeletedAllB": ("queue_batches", "delete"),
    "qSubAll": ("queue_subscriptions", "made"),
    "qSub": ("queue_subscriptions", "delivered"),
    "qSubAuth": ("queue_subscriptions", "refused"),
    "qSubDuplicate": ("queue_subscriptions", "repeated"),
    "qSubProhibited": ("queue_subscriptions", "prohibited"),
    "qSubEnd": ("queue_subscriptions", "ended"),
    "qSubAllB": ("queue_batches", "subscribe"),
    "qSubEndB": ("queue_batches", "end"),
    "msgSent": ("queue_messages", "sent"),
    "msgSentNtf": ("queue_messages", "sent_notify"),
    "msgSentAuth": ("queue_messages", "sent_refused"),
    "msgSentQuota": ("queue_messages", "sent_quota"),
    "msgSentLarge": ("queue_messages", "sent_large"),
    "msgSentBlocked": ("queue_messages", "sent_blocked"),
    "msgRecv": ("queue_messages", "received"),
    "msgRecvGet": ("queue_messages", "received_get"),
    "msgRecvNtf": ("queue_messages", "received_notify"),
    "msgExpired": ("queue_messages", "expired"),
    "msgGet": ("queue_gets", "message"),
    "msgGetNoMsg": ("queue_gets", "empty"),
    "msgGetAuth": ("queue_gets", "refused"),
    "msgGetDuplicate": ("queue_gets", "repeated"),
    "msgGetProhibited": ("queue_gets", "prohibited"),
    "ntfCreated": ("queue_notifiers", "created"),
    "ntfDeleted": ("queue_notifiers", "deleted"),
    "ntfSub": ("queue_notifiers", "subscribed"),
    "ntfSubAuth": ("queue_notifiers", "refused"),
    "ntfSubDuplicate": ("queue_notifiers", "repeated"),
    "ntfDeletedB": ("queue_batches", "notifier_delete"),
    "ntfSubB": ("queue_batches", "notifier_subscribe"),
    "msgNtfs": ("queue_notifications", "sent"),
    "msgNtfNoSub": ("queue_notifications", "waiting"),
    "msgNtfLost": ("queue_notifications", "lost"),
    "msgNtfExpired": ("queue_notifications", "expired"),
    "msgNtfsB": ("queue_batches", "notify"),
}

# In the order of the columns of the daily log.
SERVED: Final = (
    *("new", "duplicate", "updated", "removed"),
    *("subscribed", "repeated", "queues", "ended"),
)
SERVICES: Final = {ServiceRole.MESSAGING: "rcvServices", ServiceRole.NOTIFIER: "ntfServices"}

_REPEATED: Final[dict[type[Command], str]] = {
    Sub: "qSubDuplicate",
    Get: "msgGetDuplicate",
    Nsub: "ntfSubDuplicate",
}
_BATCHED: Final[dict[type[Command], str]] = {
    Sub: "qSubAllB",
    Del: "qDeletedAllB",
    Ndel: "ntfDeletedB",
    Nsub: "ntfSubB",
}


class Outcome(enum.Enum):
    """The result of a request to another server."""

    SUCCESS = "success"
    CONNECT = "connect"  # it could not be reached
    COMPAT = "compat"  # it supports none of our versions
    OTHER = "other"


class Belonging(enum.Enum):
    """How the service of a queue or a notifier changed."""

    NEW = "new"
    DUPLICATE = "duplicate"  # the same service as before
    UPDATED = "updated"  # another service before
    REMOVED = "removed"

    @classmethod
    def of(cls, before: ServiceId | None, after: ServiceId) -> "Belonging":
        if before is None:
            return cls.NEW
        return cls.DUPLICATE if before == after else cls.UPDATED


class Statistics:
    def __init__(self, metrics: Metrics, totals: SlotTotals) -> None:
        self._totals = totals
        self.active = ActiveQueues()
        self.active_notified = ActiveQueues()
        self.cells: dict[str, Cell] = {
            name: metrics.counter(family, event=event) for name, (family, event) in COUNTED.items()
        }
        for own in (False, True):
            for outcome in Outcome:
                labels = {"outcome": outcome.value, "own": str(own).lower()}
                for name, family in (("pRelays", "queue_relays"), ("pMsgFwds", "queue_forwards")):
                    cell = metrics.counter(family, **labels)
                    self.cells[outcome_name(name, outcome, own=own)] = cell
        for role, name in SERVICES.items():
            for event in SERVED:
                cell = metrics.counter("queue_services", role=role.name.lower(), event=event)
                self.cells[f"{name}_{event}"] = cell
        self.cells["pMsgFwdsRecv"] = metrics.counter("queue_forwards_received")
        self._sent, self._sent_bytes = self.cells["msgSent"], metrics.counter("queue_message_bytes")
        self._opened = metrics.counter("queue_sockets", event="opened")
        self._closed = metrics.counter("queue_sockets", event="closed")
        self._acks = metrics.histogram("queue_ack_seconds")

    def _count(self, name: str, number: int = 1) -> None:
        self.cells[name].value += number

    # Commands

    def answered(self, sent: Transmission, queue: Queue | None, response: Response) -> None:
        command = sent.command
        if isinstance(command, Ack):
            return  # counted by `acknowledged`
        fault = response.fault if isinstance(response, Err) else None
        if isinstance(command, Send):
            self._answered_send(command, sent, queue, fault)
            return
        match command:
            case Sub():
                self._answered_sub(queue, fault)
            case Get():
                self._answered_get(queue, response, fault)
            case New():
                self._answered_new(response)
            case Nsub():
                self._count("ntfSub" if fault is None else "ntfSubAuth")
            case _ if queue is not None and fault is None:
                self._changed(command, queue)
            case Nkey() if len(sent.entity_id) == ID_BYTES:
                slot = slot_of(sent.entity_id)
                self._totals.add(events.QueueNotifierNew, slot, code=code_of(fault))
            case _:
                pass

    def _answered_send(
        self, command: Send, sent: Transmission, queue: Queue | None, fault: Fault | None
    ) -> None:
        size = len(command.body)
        if queue is None:
            slot = slot_of(sent.entity_id) if len(sent.entity_id) >= 2 else None
        else:
            slot = queue.slot
        if fault is None:
            assert queue is not None
            self._sent.value += 1
            self._sent_bytes.value += size
            if command.notify:
                self._count("msgSentNtf")
                if queue.notifier is not None:
                    self._totals.add(events.QueueNotify, queue.slot, queue_id=queue.recipient_id)
            self._used(queue, notify=command.notify)
        else:
            self._count(_refused_send(fault))
        if slot is not None:
            queue_id = None if queue is None else queue.recipient_id
            self._totals.add(
                events.QueueSend, slot, code=code_of(fault), size=size, queue_id=queue_id
            )

    def _answered_sub(self, queue: Queue | None, fault: Fault | None) -> None:
        if fault is None:
            self._count("qSubAll")
            if queue is not None:
                self._totals.add(events.QueueSub, queue.slot, queue_id=queue.recipient_id)
        elif fault is Code.CMD_PROHIBITED:
            self._count("qSubProhibited")
        else:
            self._count("qSubAuth")

    def _answered_get(self, queue: Queue | None, response: Response, fault: Fault | None) -> None:
        if fault is None:
            self._count("msgGet" if isinstance(response, Msg) else "msgGetNoMsg")
            if queue is not None:
                self._totals.add(events.QueueGet, queue.slot, queue_id=queue.recipient_id)
        elif fault is Code.CMD_PROHIBITED:
            self._count("msgGetProhibited")
        else:
            self._count("msgGetAuth")

    def _answered_new(self, response: Response) -> None:
        if not isinstance(response, Ids):
            self._count("qRefused")
            return
        self._count("qCreated")
        slot = slot_of(response.recipient_id)
        self._totals.add(events.QueueNew, slot, queue_id=response.recipient_id)
        if response.notifier is not None:
            self._count("ntfCreated")
            self._totals.add(events.QueueNotifierNew, slot, queue_id=response.recipient_id)

    def _changed(self, command: Command, queue: Queue) -> None:
        """`queue` is its state before the command."""
        slot, queue_id = queue.slot, queue.recipient_id
        match command:
            case Key() | Skey() | Lkey():
                if queue.sender_key is None:
                    self._count("qSecured")
                    self._totals.add(events.QueueSecure, slot, queue_id=queue_id)
            case Del():
                self._count("qDeletedAll")
                self._count("qDeletedNew" if queue.sender_key is None else "qDeletedSecured")
                self._totals.add(events.QueueDelete, slot, queue_id=queue_id)
            case Off():
                self._count("qSuspended")
                self._totals.add(events.QueueSuspend, slot, queue_id=queue_id)
            case Nkey():
                self._count("ntfCreated")
                self._totals.add(events.QueueNotifierNew, slot, queue_id=queue_id)
            case Ndel():
                self._count("ntfDeleted")
            case _:
                pass

    def repeated(self, command: Command) -> None:
        self._count(_REPEATED[type(command)])

    def worked_through(self, batch: Sequence[Received]) -> None:
        kinds = {type(one.command) for one in batch if isinstance(one, Transmission)}
        for kind in kinds & _BATCHED.keys():
            self._count(_BATCHED[kind])

    # Messages

    def delivered(self, slot: Slot, message: Message, *, waited: bool) -> None:
        if waited:
            self._count("qSub")
        self._totals.add(events.QueueDeliver, slot, size=len(message.body or b""))

    def acknowledged(
        self, queue: Queue, message: Message | None, waited_s: float, *, got: bool
    ) -> None:
        if message is None or message.is_marker:
            return  # the quota marker is no message
        self._count("msgRecv")
        if got:
            self._count("msgRecvGet")
        if message.notify:
            self._count("msgRecvNtf")
        self._acks.observe(waited_s)
        self._used(queue, notify=message.notify)
        dur_us = int(waited_s * 1_000_000)
        self._totals.add(events.QueueAck, queue.slot, dur_us=dur_us, queue_id=queue.recipient_id)

    def expired(self, slot: Slot, count: int) -> None:
        self._count("msgExpired", count)
        self._totals.expired(slot, count)

    def _used(self, queue: Queue, *, notify: bool) -> None:
        number = fold(queue.recipient_id)
        self.active.add(number)
        if notify:
            self.active_notified.add(number)

    # Subscriptions, notifications, connections

    def subscription_ended(self, slot: Slot) -> None:
        self._count("qSubEnd")
        self._count("qSubEndB")  # each END is sent at once, in a batch of its own

    def notified(self, *, sent: int = 0, lost: int = 0, expired: int = 0, kept: int = 0) -> None:
        if sent:
            self._count("msgNtfs", sent)
            self._count("msgNtfsB")
        self._count("msgNtfLost", lost)
        self._count("msgNtfExpired", expired)
        self._count("msgNtfNoSub", kept)

    # Services

    def belongs(self, role: ServiceRole, belonging: Belonging) -> None:
        self._count(f"{SERVICES[role]}_{belonging.value}")

    def served(self, role: ServiceRole, count: int, *, repeated: bool) -> None:
        name = SERVICES[role]
        self._count(f"{name}_repeated" if repeated else f"{name}_subscribed")
        self._count(f"{name}_queues", count)

    def service_ended(self, role: ServiceRole) -> None:
        self._count(f"{SERVICES[role]}_ended")

    # Connections

    def opened(self) -> None:
        self._opened.value += 1

    def closed(self) -> None:
        self._closed.value += 1

    # Proxying

    def relay_asked(self, outcome: Outcome, *, own: bool) -> None:
        self._count(outcome_name("pRelays", outcome, own=own))

    def passed_on(self, outcome: Outcome, *, own: bool) -> None:
        self._count(outcome_name("pMsgFwds", outcome, own=own))

    def taken_in(self) -> None:
        self._count("pMsgFwdsRecv")


def outcome_name(start: str, outcome: Outcome, *, own: bool) -> str:
    return f"{start}{'Own' if own else ''}_{outcome.value}"


def _refused_send(fault: Fault) -> str:
    if isinstance(fault, Blocked):
        return "msgSentBlocked"
    if fault is Code.QUOTA:
        return "msgSentQuota"
    return "msgSentLarge" if fault is Code.LARGE_MSG else "msgSentAuth"
