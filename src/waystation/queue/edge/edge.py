"""The core of an edge: passes each command, answer and event to the module that decides about it.

Rule 1: a command is sent unchanged to the server of its slot (`command_routing`); refusals of
        servers are handled in `failures`, answers in `replies`.
Rule 2: while a slot has no server, its commands wait in order, up to `HOLD_S`. Then senders get
        `PROXY BROKER TIMEOUT` and other clients are disconnected: clients take both as temporary.
Rule 3: clients do not notice that a slot moves: `renewals` renews their subscriptions.
Rule 4: commands of one client for one id are executed in order, also while the slot moves
        (`client_session.Lane`), and answered in order (`answer_order`).

A core without I/O. Every message comes through here, so it calls the `Effects` it was given.
"""

import random
from collections.abc import Iterable
from typing import Final

from waystation.queue.cluster.slot_map import NodeId, SlotMap
from waystation.queue.edge.client_session import ClientSession, Pending
from waystation.queue.edge.command_routing import CommandRouting
from waystation.queue.edge.creation import Creations
from waystation.queue.edge.effects import Budget, Effects
from waystation.queue.edge.failures import Failures
from waystation.queue.edge.observer import EdgeObserver, NoEdgeObserver
from waystation.queue.edge.refs import RefCache
from waystation.queue.edge.renewals import Renewals
from waystation.queue.edge.replies import Replies
from waystation.queue.errors import Code
from waystation.queue.model import DhPrivateKey, RefKind, Slot
from waystation.queue.wire.commands import New, Party, Ping
from waystation.queue.wire.link import REQUESTS_FROM, Frame, ServerTransmission
from waystation.queue.wire.link_messages import (
    Busy,
    Cok,
    DelRef,
    Frozen,
    Moved,
    Newr,
    NotFound,
    Sclose,
    Unknown,
    WrongSlot,
)
from waystation.queue.wire.responses import PONG, Err
from waystation.queue.wire.transmission import Dialect, Transmission, decode_transmission

HOLD_S: Final = 8.0  # below the ten seconds after which clients time out
ANSWER_S: Final = 30.0
ORDER_WAIT_S: Final = 0.5  # how long other answers wait for one
PENDING_MAX: Final = 1024  # commands of one client in flight; the driver stops reading before

_KINDS: Final = {
    Party.SENDER: RefKind.SENDER,
    Party.NOTIFIER: RefKind.NOTIFIER,
    Party.LINK: RefKind.LINK,
}
_OWN: Final = (Party.PROXY,)


class Edge:
    def __init__(
        self,
        out: Effects,
        slot_map: SlotMap,
        *,
        refs: RefCache,
        chance: random.Random,
        asks_first: bool = False,
        observer: EdgeObserver | None = None,
    ) -> None:
        self._out = out
        self._observer = NoEdgeObserver() if observer is None else observer
        self._sessions: dict[int, ClientSession] = {}
        self._next_stream = 1
        self._routing = routing = CommandRouting(
            out,
            slot_map,
            refs=refs,
            disconnect=self.disconnect,
            asks_first=asks_first,
            observer=self._observer,
        )
        self._requests = routing.requests
        self._ref_updates = routing.ref_updates
        self._renewals = Renewals(routing, out)
        self._creations = Creations(
            routing,
            out,
            requests=routing.requests,
            renewals=self._renewals,
            refs=refs,
            chance=chance,
        )
        self._failures = Failures(
            routing, out, refs=refs, renewals=self._renewals, creating=self._creations
        )
        self._replies = Replies(
            routing,
            out,
            renewals=self._renewals,
            creating=self._creations,
            failures=self._failures,
            hides=not asks_first,
            observer=self._observer,
        )

    @property
    def slot_map(self) -> SlotMap:
        return self._routing.slot_map

    @property
    def epoch(self) -> int:
        return self.slot_map.epoch

    @property
    def held(self) -> int:
        return self._routing.held_count

    @property
    def in_flight(self) -> int:
        return len(self._routing.in_flight)

    @property
    def requests(self) -> int:
        return len(self._requests)

    @property
    def waits(self) -> bool:
        """Whether something waits for a newer map."""
        return self._routing.waits or self._renewals.has_due or self._requests.waits

    def is_up(self, node_id: NodeId) -> bool:
        return self._routing.is_up(node_id)

    # Clients

    def opened(
        self, dialect: Dialect, session_key: DhPrivateKey | None, *, forwarded: bool = False
    ) -> ClientSession:
        while self._next_stream in self._sessions:
            self._next_stream = self._next_stream % (REQUESTS_FROM - 1) + 1
        session = ClientSession(self._next_stream, dialect, session_key, forwarded=forwarded)
        self._next_stream = session.stream % (REQUESTS_FROM - 1) + 1
        self._sessions[session.stream] = session
        return session

    def closed(self, session: ClientSession) -> None:
        session.gone = True
        self._sessions.pop(session.stream, None)
        self._renewals.left(session)
        self._creations.left(session)
        self._routing.left(session)
        for node_id in session.opened & self._routing.up:
            self._out.send(node_id, session.stream, Sclose())
        session.opened.clear()

    def received(
        self, session: ClientSession, items: Iterable[bytes], mono: float
    ) -> list[tuple[bytes, Transmission]]:
        """Takes a client's commands. Returns those that the edge executes itself: proxying."""
        self._requests.mono = mono
        own: list[tuple[bytes, Transmission]] = []
        for item in items:
            received = decode_transmission(item, session.dialect)
            if not isinstance(received, Transmission):
                self._routing.say(
                    session, received.corr_id, received.entity_id, Err(received.fault)
                )
                continue
            command = received.command
            if received.service_proof is not None or command.party is Party.SERVICE:
                self._routing.say(session, received.corr_id, received.entity_id, Err(Code.SERVICE))
            elif isinstance(command, Ping):
                self._routing.say(session, received.corr_id, received.entity_id, PONG)
            elif command.party in _OWN:
                own.append((item, received))
            elif len(session.pending) >= PENDING_MAX:
                self.disconnect(session)
                return own
            else:
                self._take(session, item, received, mono)
                if session.gone:
                    return own
        return own

    def _take(
        self, session: ClientSession, item: bytes, received: Transmission, mono: float
    ) -> None:
        command = received.command
        kind = _KINDS.get(command.party)
        pending = Pending(item, received.corr_id, received.entity_id, command, mono, kind=kind)
        self._observer.took(command, len(item))
        if not isinstance(command, New):
            self._routing.take(session, pending)
        elif self._routing.begin(session, pending):
            self._out.spent(session, Budget.CREATIONS)
            self._creations.create(session, pending)
        else:
            self.disconnect(session)  # a NEW with the same correlation id is pending

    def disconnect(self, session: ClientSession) -> None:
        if not session.gone:
            self.closed(session)
            self._out.disconnect(session)

    # Frames of servers

    def frame_arrived(self, node_id: NodeId, frame: Frame, mono: float) -> None:
        self._requests.mono = mono
        if frame.epoch > self.slot_map.epoch & 0xFFFFFFFF:
            self._out.refresh()
        if frame.stream >= REQUESTS_FROM:
            self._requests.answered(node_id, frame.stream, frame.body)
            return
        session = self._sessions.get(frame.stream)
        if session is None:
            return  # the client has left
        match frame.body:
            case ServerTransmission(item):
                self._replies.said(node_id, session, item, frame.epoch)
            case Newr() as made:
                self._creations.made(node_id, made)
            case WrongSlot() | Unknown() | Moved() | Frozen() | Busy() as failure:
                self._failures.failed(node_id, session, failure)
            case DelRef(kind, entity_id):
                self._ref_updates.drop(kind, entity_id)
            case Cok():
                self._renewals.resumed(session, node_id)
            case NotFound() | Sclose():
                self.disconnect(session)  # rule 3: a grant was lost, or the server ended the stream
            case _:
                pass

    # The map, links, time

    def learned(self, slot_map: SlotMap) -> bool:
        """Takes over a map that was read; False if it is not newer."""
        if slot_map.epoch <= self.slot_map.epoch:
            return False
        before, self._routing.slot_map = self.slot_map, slot_map
        self._creations.learned()
        # A slot that moved away and back has lost its clients, though its server is the same.
        changed = {
            Slot(slot)
            for slot, (one, was) in enumerate(zip(slot_map.slots, before.slots, strict=True))
            if one != was and (one.server != was.server or one.turn != was.turn)
        }
        self._renewals.taken_up(changed)
        self._retry_waiting()
        return True

    def link_up(self, node_id: NodeId) -> None:
        self._routing.up.add(node_id)
        served = {
            Slot(slot) for slot, one in enumerate(self.slot_map.slots) if one.server == node_id
        }
        self._renewals.taken_up(served)
        self._retry_waiting()

    def _retry_waiting(self) -> None:
        """Sends again what may be sent now; subscriptions first."""
        self._renewals.try_again()
        self._routing.release_all()
        self._requests.repeat_waiting()

    def link_down(self, node_id: NodeId) -> None:
        """The result of commands in flight to that server is unknown."""
        self._routing.up.discard(node_id)
        self._requests.link_down(node_id)
        self._creations.link_down(node_id)
        for session in list(self._sessions.values()):
            if node_id in session.opened:
                self._lost(session, node_id)

    def stream_down(self, node_id: NodeId, stream: int) -> None:
        """A client's dedicated link to a server broke."""
        session = self._sessions.get(stream)
        if session is not None and node_id in session.opened:
            self._creations.stream_lost(session, node_id)
            self._renewals.stream_lost(session, node_id)
            self._lost(session, node_id)

    def _lost(self, session: ClientSession, node_id: NodeId) -> None:
        session.opened.discard(node_id)
        self._renewals.forget_answers(session, node_id)
        lost = [one for one in session.pending.values() if one.node_id == node_id]
        for pending in lost:
            if not isinstance(pending.command, New):
                self._routing.give_up(session, pending)
            if session.gone:
                break

    def tick(self, mono: float) -> None:
        """Called regularly: ends what waited too long."""
        self._requests.mono = mono
        for session, pending in list(self._routing.in_flight.values()):
            waited_s = mono - pending.since
            if waited_s < ORDER_WAIT_S:
                break
            if session.gone or pending.number not in self._routing.in_flight:
                continue
            if waited_s >= (ANSWER_S if pending.held is None else HOLD_S):
                if not isinstance(pending.command, New):  # creations have their own timeout
                    self._routing.give_up(session, pending)
            else:
                self._routing.let_out(session, session.order.pass_over(pending.number))
        self._routing.forget_untold(mono - HOLD_S)
        self._creations.tick(mono)
        self._requests.tick(mono)
        self._retry_waiting()  # a server may have given up freezing a slot
