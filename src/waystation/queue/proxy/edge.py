"""Which server a client's command goes to, and what follows when slots move and links break.

Rule 1: a command goes where the map says that its slot is served, as it came. An id that leads
        elsewhere is resent to its home and remembered (`MOVED`).
Rule 2: while nobody serves a slot, what is for it waits, in its order, up to `HOLD_S`; then senders
        are asked to come back (`PROXY BROKER TIMEOUT`) and everybody else is disconnected: these
        are the two answers that clients take as temporary.
Rule 3: a client never learns that a slot moved. Its subscriptions are renewed at the new server by
        its own words, or by the servers' grant where it never said any; if that fails it is
        disconnected, and never told END.
Rule 4: a server that does not know itself responsible (`WRONG_SLOT`) knows a newer map: it is read,
        and the command said again, `RETRIES_MAX` times.

A core without I/O. Every message comes through here, so it calls the `Outlet` it was given.
"""

import random
from bisect import insort
from collections.abc import Iterable
from typing import Final

from waystation.queue.cluster.slot_map import NOBODY, NodeId, SlotMap
from waystation.queue.errors import TRY_LATER, Code
from waystation.queue.model import (
    DhPrivateKey,
    EntityId,
    RecipientId,
    RefKind,
    Slot,
    slot_of,
)
from waystation.queue.proxy.creation import Creating
from waystation.queue.proxy.guest import Guest, Pending, Subscription
from waystation.queue.proxy.outlet import Outlet
from waystation.queue.proxy.refs import RefCache
from waystation.queue.wire.commands import (
    Ack,
    Del,
    Get,
    Lget,
    Lkey,
    New,
    Party,
    Ping,
    Send,
    Skey,
)
from waystation.queue.wire.fields import FieldError
from waystation.queue.wire.link import REQUESTS_FROM, Frame, Said, Sent
from waystation.queue.wire.link_words import (
    Busy,
    Frozen,
    Moved,
    Newr,
    NotFound,
    Sclose,
    Sdlv,
    Sres,
    WrongSlot,
)
from waystation.queue.wire.responses import PONG, Err, Response, encode_response
from waystation.queue.wire.transmission import (
    Dialect,
    Transmission,
    decode_answer,
    decode_transmission,
    encode_answer,
)

HOLD_S: Final = 8.0  # below the ten seconds after which clients give up by themselves
ANSWER_S: Final = 30.0
RETRIES_MAX: Final = 3
HELD_MAX: Final = 10_000  # commands that wait for all slots together
PENDING_MAX: Final = 512  # commands of one client under way; the shell stops reading before

_SENDERS: Final = (Send, Skey, Lkey, Lget)
_KINDS: Final = {
    Party.SENDER: RefKind.SENDER,
    Party.NOTIFIER: RefKind.NOTIFIER,
    Party.LINK: RefKind.LINK,
}
_OWN: Final = (Party.PROXY,)


class Edge:
    def __init__(
        self, out: Outlet, slot_map: SlotMap, *, refs: RefCache, chance: random.Random
    ) -> None:
        self._out = out
        self._refs = refs
        self._map = slot_map
        self._up: set[NodeId] = set()
        self._guests: dict[int, Guest] = {}
        self._next_stream = 1
        self._held: dict[Slot, list[tuple[Guest, Pending]]] = {}
        self._held_count = 0
        self._subscribed: dict[Slot, dict[tuple[int, EntityId], None]] = {}
        self._creating = Creating(self, out, refs=refs, chance=chance)

    @property
    def epoch(self) -> int:
        return self._map.epoch

    @property
    def slot_map(self) -> SlotMap:
        return self._map

    def is_up(self, node_id: NodeId) -> bool:
        return node_id in self._up

    # Clients

    def opened(
        self, dialect: Dialect, session_key: DhPrivateKey | None, *, forwarded: bool = False
    ) -> Guest:
        stream = self._next_stream
        self._next_stream = stream % (REQUESTS_FROM - 1) + 1
        guest = Guest(stream, dialect, session_key, forwarded=forwarded)
        self._guests[stream] = guest
        return guest

    def closed(self, guest: Guest) -> None:
        guest.gone = True
        self._guests.pop(guest.stream, None)
        for entity_id in list(guest.subscriptions):
            self._unsubscribe(guest, entity_id)
        for node_id in guest.opened & self._up:
            self._out.send(node_id, guest.stream, Sclose())
        guest.opened.clear()
        guest.pending.clear()

    def received(
        self, guest: Guest, items: Iterable[bytes], mono: float
    ) -> list[tuple[bytes, Transmission]]:
        """A client's commands, as they came. Returns those that are for the edge itself: the roles
        of proxying."""
        own: list[tuple[bytes, Transmission]] = []
        for item in items:
            received = decode_transmission(item, guest.dialect)
            if not isinstance(received, Transmission):
                self.say(guest, received.corr_id, received.entity_id, Err(received.fault))
                continue
            command = received.command
            if received.service_proof is not None or command.party is Party.SERVICE:
                self.say(guest, received.corr_id, received.entity_id, Err(Code.SERVICE))
            elif isinstance(command, Ping):
                self.say(guest, received.corr_id, received.entity_id, PONG)
            elif command.party in _OWN:
                own.append((item, received))
            elif len(guest.pending) >= PENDING_MAX:
                self.hang_up(guest)
                return own
            else:
                pending = Pending(item, received.corr_id, received.entity_id, command, mono)
                if isinstance(command, New):
                    self._creating.create(guest, pending)
                else:
                    pending.slot = self._refs.home(_KINDS.get(command.party), received.entity_id)
                    self._forward(guest, pending)
        return own

    def say(self, guest: Guest, corr_id: bytes, entity_id: bytes, response: Response) -> None:
        encoded = encode_response(response, guest.dialect.version)
        self._out.answer(guest, encode_answer(corr_id, entity_id, encoded, guest.dialect))

    def hang_up(self, guest: Guest) -> None:
        if not guest.gone:
            self.closed(guest)
            self._out.hang_up(guest)

    # Commands on their way

    def _forward(self, guest: Guest, pending: Pending) -> None:
        if pending.corr_id:
            guest.pending[pending.key] = pending
        server = self._map.slots[pending.slot].server
        if pending.slot in self._held or server not in self._up:
            self._hold(guest, pending)
        else:
            self._send(guest, pending, server)

    def _send(self, guest: Guest, pending: Pending, node_id: NodeId) -> None:
        pending.node_id = node_id
        self.introduce(guest, node_id)
        self._out.send(node_id, guest.stream, Sent(pending.item))

    def introduce(self, guest: Guest, node_id: NodeId) -> None:
        if node_id not in guest.opened:
            guest.opened.add(node_id)
            self._out.send(node_id, guest.stream, guest.introduction())

    def _hold(self, guest: Guest, pending: Pending) -> None:
        if self._held_count >= HELD_MAX:
            self.give_up(guest, pending)
            return
        pending.node_id = NOBODY
        # Refusals of what was sent before may come after what came later.
        insort(self._held.setdefault(pending.slot, []), (guest, pending), key=_arrival)
        self._held_count += 1

    def _release(self, slot: Slot) -> None:
        server = self._map.slots[slot].server
        if server not in self._up or slot not in self._held:
            return
        waiting = self._held.pop(slot)
        self._held_count -= len(waiting)
        for guest, pending in waiting:
            if not guest.gone:
                self._send(guest, pending, server)

    def give_up(self, guest: Guest, pending: Pending) -> None:
        """Rule 2."""
        guest.pending.pop(pending.key, None)
        if isinstance(pending.command, _SENDERS):
            self.say(guest, pending.corr_id, pending.entity_id, Err(TRY_LATER))
        else:
            self.hang_up(guest)

    # What servers say

    def heard(self, node_id: NodeId, frame: Frame, mono: float) -> None:
        if frame.epoch > self._map.epoch & 0xFFFFFFFF:
            self._out.refresh()
        if frame.stream >= REQUESTS_FROM:
            self._creating.answered(frame.stream, frame.body)
            return
        guest = self._guests.get(frame.stream)
        if guest is None:
            return  # it left meanwhile
        match frame.body:
            case Said(item):
                self._said(guest, item)
            case Newr() as made:
                self._creating.made(made)
            case WrongSlot() | Moved() | Frozen() | Busy() as failure:
                self._failed(guest, failure, mono)
            case NotFound() | Sclose():
                self.hang_up(guest)  # a grant that was lost, or the server's wish: rule 3
            case _:
                pass

    def _said(self, guest: Guest, item: bytes) -> None:
        try:
            answer = decode_answer(item, guest.dialect)
        except FieldError:
            self.hang_up(guest)
            return
        key = (answer.corr_id, answer.entity_id)
        is_error = answer.response.startswith(b"ERR ")
        if answer.corr_id and guest.replays.get(key):
            guest.replays[key] -= 1
            if is_error:
                self.hang_up(guest)
            return
        pending = guest.pending.get(key) if answer.corr_id else None
        if pending is None:
            if answer.response in (b"END", b"DELD"):
                self._unsubscribe(guest, answer.entity_id)
            self._out.answer(guest, item)
            return
        if isinstance(pending.command, New) and not is_error:
            self._creating.keep(pending, item)
            return
        del guest.pending[key]
        if answer.response == b"ERR AUTH" and self._ask_again(guest, pending):
            return
        if isinstance(pending.command, New):
            self._creating.refused(pending)
        if not is_error:
            self._note(guest, pending, answer.response)
        self._out.answer(guest, item)

    def _ask_again(self, guest: Guest, pending: Pending) -> bool:
        """A remembered home may be that of a queue that is gone, and the id somebody's anew."""
        kind = _KINDS.get(pending.command.party)
        if kind is None or pending.doubted or not self._refs.forget(kind, pending.entity_id):
            return False
        pending.doubted = True  # the reference may still lead there
        first = self._refs.home(None, pending.entity_id)
        if first == pending.slot:
            return False
        pending.slot = first
        self._forward(guest, pending)
        return True

    def _unknown_at_home(self, guest: Guest, pending: Pending) -> None:
        """A reference leads there, and nobody has that id: its queue or link is gone."""
        guest.pending.pop(pending.key, None)
        if not self._ask_again(guest, pending):
            self.say(guest, pending.corr_id, pending.entity_id, Err(Code.AUTH))

    def _note(self, guest: Guest, pending: Pending, response: bytes) -> None:
        """What is to be renewed should the slot move."""
        command, entity_id = pending.command, pending.entity_id
        if pending.subscribes:
            self.subscribe(guest, entity_id, pending.slot, pending.item)
        elif isinstance(command, Get) and response.startswith(b"MSG "):
            message_id = response[5 : 5 + response[4]]
            guest.delivered[RecipientId(entity_id)] = message_id  # pyright: ignore[reportArgumentType]
        elif isinstance(command, Ack):
            guest.delivered.pop(RecipientId(entity_id), None)
        elif isinstance(command, Del):
            guest.delivered.pop(RecipientId(entity_id), None)
            self._unsubscribe(guest, entity_id)

    def _failed(
        self, guest: Guest, failure: WrongSlot | Moved | Frozen | Busy, mono: float
    ) -> None:
        pending = next(
            (one for one in guest.pending.values() if one.corr_id == failure.corr_id), None
        )
        if pending is None:
            return
        if isinstance(pending.command, New):
            self._creating.elsewhere(pending)
            return
        if isinstance(failure, Moved):
            if failure.home == pending.slot:  # it was sent there: both are at one server
                self._unknown_at_home(guest, pending)
                return
            self._refs.learn(failure.kind, pending.entity_id, failure.home)
            pending.slot = failure.home
            self._forward(guest, pending)
            return
        if isinstance(failure, WrongSlot) and failure.epoch <= self._map.epoch:
            strayed = pending.slot != self._refs.home(None, pending.entity_id)
            if strayed and self._map.slots[pending.slot].server == pending.node_id:
                self._unknown_at_home(guest, pending)
                return
        pending.retries += not isinstance(failure, Frozen)  # that one ends by time
        if pending.retries > RETRIES_MAX:
            self.give_up(guest, pending)
        elif isinstance(failure, WrongSlot) and failure.epoch <= self._map.epoch:
            self._forward(guest, pending)  # we know that map: it is served elsewhere by now
        else:
            self._hold(guest, pending)
            self._out.refresh()

    # Subscriptions

    def subscribe(self, guest: Guest, entity_id: EntityId, slot: Slot, item: bytes | None) -> None:
        self._unsubscribe(guest, entity_id)
        guest.subscriptions[entity_id] = Subscription(slot, item)
        self._subscribed.setdefault(slot, {})[guest.stream, entity_id] = None

    def _unsubscribe(self, guest: Guest, entity_id: EntityId) -> None:
        subscription = guest.subscriptions.pop(entity_id, None)
        if subscription is not None:
            of_slot = self._subscribed[subscription.slot]
            of_slot.pop((guest.stream, entity_id), None)
            if not of_slot:
                del self._subscribed[subscription.slot]

    def _renew(self, slot: Slot) -> None:
        """The slot is served by another server, or over another link, than before."""
        server = self._map.slots[slot].server
        if server not in self._up:
            return
        for stream, entity_id in list(self._subscribed.get(slot, ())):
            guest = self._guests[stream]
            item = guest.subscriptions[entity_id].item
            self.introduce(guest, server)
            if item is None:
                self._out.send(server, stream, Sres(RecipientId(entity_id)))
                continue
            answer = decode_transmission(item, guest.dialect)
            key = (answer.corr_id, entity_id)
            guest.replays[key] = guest.replays.get(key, 0) + 1
            self._out.send(server, stream, Sent(item))

    def _renew_deliveries(self, slots: set[Slot]) -> None:
        """Messages that clients got and have not acknowledged."""
        for guest in self._guests.values():
            for recipient_id, message_id in guest.delivered.items():
                slot = slot_of(recipient_id)
                server = self._map.slots[slot].server
                if slot in slots and server in self._up:
                    self.introduce(guest, server)
                    self._out.send(server, guest.stream, Sdlv(recipient_id, True, message_id))

    # The map, links, time

    def learned(self, slot_map: SlotMap) -> bool:
        """A map was read. Whether it is newer than ours."""
        if slot_map.epoch <= self._map.epoch:
            return False
        before, self._map = self._map, slot_map
        self._creating.learned()
        changed = {
            Slot(slot)
            for slot, one in enumerate(slot_map.slots)
            if one.server != before.slots[slot].server
        }
        self._taken_up(changed)
        for slot in set(self._held) - changed:
            self._release(slot)
        return True

    def link_up(self, node_id: NodeId) -> None:
        self._up.add(node_id)
        served = {Slot(slot) for slot, one in enumerate(self._map.slots) if one.server == node_id}
        self._taken_up(served)

    def _taken_up(self, slots: set[Slot]) -> None:
        for slot in slots & self._subscribed.keys():
            self._renew(slot)
        self._renew_deliveries(slots)
        for slot in slots & self._held.keys():
            self._release(slot)

    def link_down(self, node_id: NodeId) -> None:
        """Whatever was under way there has an unknown end."""
        self._up.discard(node_id)
        for guest in list(self._guests.values()):
            guest.opened.discard(node_id)
            lost = [one for one in guest.pending.values() if one.node_id == node_id]
            for pending in lost:
                if isinstance(pending.command, New):
                    continue
                self.give_up(guest, pending)
                if guest.gone:
                    break
        self._creating.link_down(node_id)

    def tick(self, mono: float) -> None:
        """Once a second or so: what waited too long."""
        for slot, waiting in list(self._held.items()):
            kept = [one for one in waiting if mono - one[1].since < HOLD_S and not one[0].gone]
            self._held_count -= len(waiting) - len(kept)
            if kept:
                self._held[slot] = kept
                self._release(slot)  # a server may have thought better of freezing it
            else:
                del self._held[slot]
            for guest, pending in waiting:
                if mono - pending.since >= HOLD_S and not guest.gone:
                    self.give_up(guest, pending)
        self._creating.tick(mono)
        for guest in list(self._guests.values()):
            late = [one for one in guest.pending.values() if mono - one.since >= ANSWER_S]
            for pending in late:
                if not guest.gone:
                    self.give_up(guest, pending)


def _arrival(held: tuple[Guest, Pending]) -> int:
    return held[1].number
