"""Renews the subscriptions of clients on the server that a slot has moved to.

Rule 1: a subscription is renewed by repeating the client's command or, if it came with `NEW`, by
        the grant that servers pass on. The edge consumes the answer.
Rule 2: a server that does not serve the slot yet is asked again until it does. A refusal blocks all
        commands for the id (`server.refused_ids`), so `Sagain` is sent first, but not while
        commands of the client are in flight there, or their order could change.
Rule 3: a refused renewal closes the client's connection; the client never gets END for it.
Rule 4: a message from a server that no longer has the queue is dropped: the new server delivers it
        again or did, and the client may have acknowledged it there.
Rule 5: a server without the record of a client's GET answers its `ACK` with `NO_MSG`. That `ACK`
        has changed nothing; it is sent again until all renewals are done.

A core without I/O.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from waystation.queue.cluster.slot_map import NOBODY, NodeId, SlotMap
from waystation.queue.edge.client_session import ClientSession, Lane, Pending, Subscription
from waystation.queue.edge.effects import Effects
from waystation.queue.model import EntityId, MessageId, RecipientId, Slot, slot_of
from waystation.queue.wire.commands import Ack
from waystation.queue.wire.link import ClientTransmission
from waystation.queue.wire.link_messages import Sagain, Sdlv, Sres
from waystation.queue.wire.transmission import decode_transmission


class Host(Protocol):
    """The part of the edge that renewals use."""

    @property
    def slot_map(self) -> SlotMap: ...

    def is_up(self, node_id: NodeId) -> bool: ...

    def introduce(self, session: ClientSession, node_id: NodeId) -> None: ...

    def set_aside(self, session: ClientSession, pending: Pending) -> Lane: ...

    def loosen(self, session: ClientSession, lane: Lane) -> None: ...

    @property
    def disconnect(self) -> Callable[[ClientSession], None]: ...


class Renewals:
    def __init__(self, host: Host, out: Effects) -> None:
        self._host = host
        self._out = out
        self._subscribed: dict[Slot, dict[tuple[ClientSession, EntityId], None]] = {}
        self._getting: dict[ClientSession, None] = {}  # with messages from GET, unacknowledged
        self._due: dict[tuple[ClientSession, EntityId], None] = {}

    @property
    def has_due(self) -> bool:
        return bool(self._due)

    # State of clients

    def subscribe(
        self,
        session: ClientSession,
        entity_id: EntityId,
        slot: Slot,
        item: bytes | None,
        *,
        at: NodeId,
    ) -> None:
        """A server confirmed it. The map that moved the slot away may have arrived before."""
        self.unsubscribe(session, entity_id)
        corr_id: bytes = entity_id
        if item is not None:
            corr_id = decode_transmission(item, session.dialect).corr_id
        session.subscriptions[entity_id] = Subscription(slot, item, corr_id)
        self._subscribed.setdefault(slot, {})[session, entity_id] = None
        if self._host.slot_map.slots[slot].server != at:
            self._renew(session, entity_id)

    def unsubscribe(self, session: ClientSession, entity_id: EntityId) -> None:
        subscription = session.subscriptions.pop(entity_id, None)
        if subscription is None:
            return
        self._due.pop((session, entity_id), None)
        of_slot = self._subscribed[subscription.slot]
        of_slot.pop((session, entity_id), None)
        if not of_slot:
            del self._subscribed[subscription.slot]

    def got(self, session: ClientSession, recipient_id: RecipientId, message_id: MessageId) -> None:
        session.delivered[recipient_id] = message_id
        self._getting[session] = None

    def acknowledged(self, session: ClientSession, recipient_id: RecipientId) -> None:
        session.delivered.pop(recipient_id, None)
        if not session.delivered:
            self._getting.pop(session, None)

    def left(self, session: ClientSession) -> None:
        for entity_id in list(session.subscriptions):
            self.unsubscribe(session, entity_id)
        session.delivered.clear()
        session.renewing.clear()
        self._getting.pop(session, None)

    def is_late(self, session: ClientSession, node_id: NodeId, entity_id: EntityId) -> bool:
        """Whether a message of this queue comes from a server that no longer has it (rule 4). One
        that froze the slot still has it, because the move may be given up."""
        subscription = session.subscriptions.get(entity_id)
        if subscription is None:
            return False
        return self._host.slot_map.slots[subscription.slot].owner != node_id

    # Renew

    def taken_up(self, slots: set[Slot]) -> None:
        """These slots have another server, or a new link."""
        for slot in slots & self._subscribed.keys():
            for session, entity_id in list(self._subscribed.get(slot, ())):
                self._renew(session, entity_id)
        self._restore(self._getting, slots)

    def stream_lost(self, session: ClientSession, node_id: NodeId) -> None:
        """A client's dedicated link broke; it is opened again at once."""
        self.forget_answers(session, node_id)
        slots = self._host.slot_map.slots
        for entity_id, subscription in session.subscriptions.items():
            if slots[subscription.slot].server == node_id:
                self._due[session, entity_id] = None

    def forget_answers(self, session: ClientSession, node_id: NodeId) -> None:
        for key in [key for key in session.renewing if key[0] == node_id]:
            del session.renewing[key]

    def try_again(self) -> None:
        due, self._due = self._due, {}
        for session, entity_id in due:
            if not session.gone and entity_id in session.subscriptions:
                self._renew(session, entity_id)

    def _renew(self, session: ClientSession, entity_id: EntityId) -> None:
        subscription = session.subscriptions[entity_id]
        server = self._host.slot_map.slots[subscription.slot].server
        if not self._host.is_up(server):
            return  # `taken_up` is called when there is one
        if subscription.refused_by == server and session.is_at(server, entity_id):
            self._due[session, entity_id] = None
            return
        key = (server, subscription.corr_id)
        _, before = session.renewing.get(key, (entity_id, 0))
        session.renewing[key] = (entity_id, before + 1)
        session.renewed += 1
        self._host.introduce(session, server)
        if subscription.refused_by == server:
            self._out.send(server, session.stream, Sagain(entity_id))
        subscription.refused_by = NOBODY
        item = subscription.item
        body = Sres(RecipientId(entity_id)) if item is None else ClientTransmission(item)
        self._out.send(server, session.stream, body)

    def _restore(self, sessions: Iterable[ClientSession], slots: set[Slot]) -> None:
        """Reports unacknowledged messages from GET to the new servers."""
        for session in list(sessions):
            for recipient_id, message_id in session.delivered.items():
                slot = slot_of(recipient_id)
                server = self._host.slot_map.slots[slot].server
                if slot in slots and self._host.is_up(server):
                    self._tell_delivered(session, server, recipient_id, message_id)

    def _tell_delivered(
        self,
        session: ClientSession,
        server: NodeId,
        recipient_id: RecipientId,
        message_id: MessageId,
    ) -> None:
        self._host.introduce(session, server)
        self._out.send(server, session.stream, Sdlv(recipient_id, True, message_id))

    # NO_MSG during a renewal

    def must_repeat_ack(self, session: ClientSession, pending: Pending, epoch: int) -> bool:
        """Whether `NO_MSG` from a server with this map may be wrong; then `pending` is sent again
        (rule 5)."""
        command, entity_id, server = pending.command, pending.entity_id, pending.node_id
        if not isinstance(command, Ack):
            return False
        recipient_id = RecipientId(entity_id)
        got = session.delivered.get(recipient_id)
        if got is not None and command.message_id in (b"", got) and not pending.rechecked:
            pending.rechecked = True
            lane = self._host.set_aside(session, pending)
            if not session.gone:  # the limit of held commands was reached
                self._tell_delivered(session, server, recipient_id, got)
                self._host.loosen(session, lane)
            return True
        if entity_id not in session.subscriptions:
            return False
        is_older = epoch > self._host.slot_map.epoch & 0xFFFFFFFF  # our map, than the server's
        if not is_older and not self._is_unsettled(session, pending):
            return False
        lane = self._host.set_aside(session, pending)
        if is_older:
            self._out.refresh()  # the slot may have moved; held commands go on with the new map
            return True
        self.try_again()
        if (session, entity_id) not in self._due:
            self._host.loosen(session, lane)
        return True

    def _is_unsettled(self, session: ClientSession, pending: Pending) -> bool:
        entity_id = pending.entity_id
        if session.renewed != pending.renewed or (session, entity_id) in self._due:
            return True
        return any(entity_id == renewed for renewed, _ in session.renewing.values())

    # Results

    def answered(
        self, session: ClientSession, node_id: NodeId, corr_id: bytes, *, refused: bool
    ) -> bool:
        """Whether this was the answer to a renewal."""
        if self._settle(session, node_id, corr_id) is None:
            return False
        if refused:
            self._host.disconnect(session)
        return True

    def resumed(self, session: ClientSession, node_id: NodeId) -> None:
        """A grant was found. Servers answer in order, so it is for the oldest renewal."""
        for key, (entity_id, _) in session.renewing.items():
            if key[0] == node_id and key[1] == entity_id:
                self._settle(session, node_id, key[1])
                return

    def failed(self, session: ClientSession, node_id: NodeId, corr_id: bytes) -> None:
        """The server does not serve it now (rule 2)."""
        entity_id = self._settle(session, node_id, corr_id)
        if entity_id is None:
            entity_id = EntityId(corr_id)  # of a grant, settled with the answer to another one
        subscription = session.subscriptions.get(entity_id)
        if subscription is not None:
            if subscription.item is not None:
                subscription.refused_by = node_id
            self._due[session, entity_id] = None
            self._out.refresh()

    def _settle(self, session: ClientSession, node_id: NodeId, corr_id: bytes) -> EntityId | None:
        key = (node_id, corr_id)
        found = session.renewing.pop(key, None)
        if found is None:
            return None
        entity_id, count = found
        if count > 1:
            session.renewing[key] = (entity_id, count - 1)
        return entity_id
