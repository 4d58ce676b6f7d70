"""What clients have subscribed to, and how it goes on where their slots went.

Rule 1: a subscription is renewed by the client's own words, or, where it never said any, by the
        grant that the servers hand on; what answers is the edge's, not the client's.
Rule 2: a server that does not know itself responsible yet is asked again, until it is. What it
        refused bars everything about the id (`server.bars`), so it is told that we begin again;
        not while commands of the client are under way there, or one could overtake another.
Rule 3: a renewal that is refused ends the client's connection; it is never told END.
Rule 4: a server that was not told yet what a client has there finds nothing to acknowledge. Whether
        a client hears that `NO_MSG` is decided when nothing has to be renewed any more: until then
        its `ACK`, which has changed nothing, is said again.

A core without I/O.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from waystation.queue.cluster.slot_map import NOBODY, NodeId, SlotMap
from waystation.queue.model import EntityId, MessageId, RecipientId, Slot, slot_of
from waystation.queue.proxy.guest import Guest, Lane, Pending, Subscription
from waystation.queue.proxy.outlet import Outlet
from waystation.queue.wire.commands import Ack
from waystation.queue.wire.link import Sent
from waystation.queue.wire.link_words import Sagain, Sdlv, Sres
from waystation.queue.wire.transmission import decode_transmission


class Host(Protocol):
    """The edge, as far as renewing needs it."""

    @property
    def slot_map(self) -> SlotMap: ...

    def is_up(self, node_id: NodeId) -> bool: ...

    def introduce(self, guest: Guest, node_id: NodeId) -> None: ...

    def set_aside(self, guest: Guest, pending: Pending) -> Lane: ...

    def loosen(self, guest: Guest, lane: Lane) -> None: ...

    @property
    def hang_up(self) -> Callable[[Guest], None]: ...


class Renewals:
    def __init__(self, host: Host, out: Outlet) -> None:
        self._host = host
        self._out = out
        self._subscribed: dict[Slot, dict[tuple[Guest, EntityId], None]] = {}
        self._getting: dict[Guest, None] = {}  # who has what was got and not acknowledged
        self._due: dict[tuple[Guest, EntityId], None] = {}

    @property
    def has_due(self) -> bool:
        return bool(self._due)

    # What clients have

    def subscribe(
        self, guest: Guest, entity_id: EntityId, slot: Slot, item: bytes | None, *, at: NodeId
    ) -> None:
        """A server has said so. The map that took the slot from it may have been here sooner."""
        self.unsubscribe(guest, entity_id)
        corr_id: bytes = entity_id
        if item is not None:
            corr_id = decode_transmission(item, guest.dialect).corr_id
        guest.subscriptions[entity_id] = Subscription(slot, item, corr_id)
        self._subscribed.setdefault(slot, {})[guest, entity_id] = None
        if self._host.slot_map.slots[slot].server != at:
            self._renew(guest, entity_id)

    def unsubscribe(self, guest: Guest, entity_id: EntityId) -> None:
        subscription = guest.subscriptions.pop(entity_id, None)
        if subscription is None:
            return
        self._due.pop((guest, entity_id), None)
        of_slot = self._subscribed[subscription.slot]
        of_slot.pop((guest, entity_id), None)
        if not of_slot:
            del self._subscribed[subscription.slot]

    def got(self, guest: Guest, recipient_id: RecipientId, message_id: MessageId) -> None:
        guest.delivered[recipient_id] = message_id
        self._getting[guest] = None

    def acknowledged(self, guest: Guest, recipient_id: RecipientId) -> None:
        guest.delivered.pop(recipient_id, None)
        if not guest.delivered:
            self._getting.pop(guest, None)

    def left(self, guest: Guest) -> None:
        for entity_id in list(guest.subscriptions):
            self.unsubscribe(guest, entity_id)
        guest.delivered.clear()
        guest.renewing.clear()
        self._getting.pop(guest, None)

    # Renewing

    def taken_up(self, slots: set[Slot]) -> None:
        """These are served by another server, or over another link, than before."""
        for slot in slots & self._subscribed.keys():
            for guest, entity_id in list(self._subscribed.get(slot, ())):
                self._renew(guest, entity_id)
        self._restore(self._getting, slots)

    def stream_lost(self, guest: Guest, node_id: NodeId) -> None:
        """One client's way to one server broke; it is made anew in a moment."""
        self.forget_answers(guest, node_id)
        slots = self._host.slot_map.slots
        for entity_id, subscription in guest.subscriptions.items():
            if slots[subscription.slot].server == node_id:
                self._due[guest, entity_id] = None

    def forget_answers(self, guest: Guest, node_id: NodeId) -> None:
        for key in [key for key in guest.renewing if key[0] == node_id]:
            del guest.renewing[key]

    def try_again(self) -> None:
        due, self._due = self._due, {}
        for guest, entity_id in due:
            if not guest.gone and entity_id in guest.subscriptions:
                self._renew(guest, entity_id)

    def _renew(self, guest: Guest, entity_id: EntityId) -> None:
        subscription = guest.subscriptions[entity_id]
        server = self._host.slot_map.slots[subscription.slot].server
        if not self._host.is_up(server):
            return  # `taken_up` comes when there is one
        if subscription.refused_by == server and guest.is_at(server, entity_id):
            self._due[guest, entity_id] = None
            return
        key = (server, subscription.corr_id)
        _, before = guest.renewing.get(key, (entity_id, 0))
        guest.renewing[key] = (entity_id, before + 1)
        guest.renewed += 1
        self._host.introduce(guest, server)
        if subscription.refused_by == server:
            self._out.send(server, guest.stream, Sagain(entity_id))
        subscription.refused_by = NOBODY
        item = subscription.item
        body = Sres(RecipientId(entity_id)) if item is None else Sent(item)
        self._out.send(server, guest.stream, body)

    def _restore(self, guests: Iterable[Guest], slots: set[Slot]) -> None:
        """Messages that clients got and have not acknowledged."""
        for guest in list(guests):
            for recipient_id, message_id in guest.delivered.items():
                slot = slot_of(recipient_id)
                server = self._host.slot_map.slots[slot].server
                if slot in slots and self._host.is_up(server):
                    self._tell_delivered(guest, server, recipient_id, message_id)

    def _tell_delivered(
        self, guest: Guest, server: NodeId, recipient_id: RecipientId, message_id: MessageId
    ) -> None:
        self._host.introduce(guest, server)
        self._out.send(server, guest.stream, Sdlv(recipient_id, True, message_id))

    # What is not there to be acknowledged

    def doubts(self, guest: Guest, pending: Pending, epoch: int) -> bool:
        """Whether `NO_MSG`, said by a server with this map, need not be so; `pending` is said again
        then (rule 4)."""
        command, entity_id, server = pending.command, pending.entity_id, pending.node_id
        if not isinstance(command, Ack):
            return False
        recipient_id = RecipientId(entity_id)
        got = guest.delivered.get(recipient_id)
        if got is not None and command.message_id in (b"", got) and not pending.doubted:
            pending.doubted = True
            lane = self._host.set_aside(guest, pending)
            if not guest.gone:  # there was no room for it
                self._tell_delivered(guest, server, recipient_id, got)
                self._host.loosen(guest, lane)
            return True
        if entity_id not in guest.subscriptions:
            return False
        is_older = epoch > self._host.slot_map.epoch & 0xFFFFFFFF  # our map, than the server's
        if not is_older and not self._is_unsettled(guest, pending):
            return False
        lane = self._host.set_aside(guest, pending)
        if is_older:
            self._out.refresh()  # whether the slot was away meanwhile; what waits goes on then
            return True
        self.try_again()
        if (guest, entity_id) not in self._due:
            self._host.loosen(guest, lane)
        return True

    def _is_unsettled(self, guest: Guest, pending: Pending) -> bool:
        entity_id = pending.entity_id
        if guest.renewed != pending.renewed or (guest, entity_id) in self._due:
            return True
        return any(entity_id == renewed for renewed, _ in guest.renewing.values())

    # What came of it

    def answered(self, guest: Guest, node_id: NodeId, corr_id: bytes, *, refused: bool) -> bool:
        """Whether this was the answer to a renewal."""
        if self._settle(guest, node_id, corr_id) is None:
            return False
        if refused:
            self._host.hang_up(guest)
        return True

    def resumed(self, guest: Guest, node_id: NodeId) -> None:
        """A grant was found. Servers answer in their order, so it is the oldest."""
        for key, (entity_id, _) in guest.renewing.items():
            if key[0] == node_id and key[1] == entity_id:
                self._settle(guest, node_id, key[1])
                return

    def failed(self, guest: Guest, node_id: NodeId, corr_id: bytes) -> None:
        """Not served there at this moment (rule 2)."""
        entity_id = self._settle(guest, node_id, corr_id)
        if entity_id is None:
            entity_id = EntityId(corr_id)  # of a grant, settled when another one was answered
        subscription = guest.subscriptions.get(entity_id)
        if subscription is not None:
            if subscription.item is not None:
                subscription.refused_by = node_id
            self._due[guest, entity_id] = None
            self._out.refresh()

    def _settle(self, guest: Guest, node_id: NodeId, corr_id: bytes) -> EntityId | None:
        key = (node_id, corr_id)
        found = guest.renewing.pop(key, None)
        if found is None:
            return None
        entity_id, count = found
        if count > 1:
            guest.renewing[key] = (entity_id, count - 1)
        return entity_id
