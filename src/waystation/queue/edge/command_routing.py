"""Routes the commands of clients: chooses the server, holds commands back, finishes them.

Rule 1: a command is sent to the server of its slot. It waits while the slot has no server, and
        after that server refused it.
Rule 2: commands of one client for one id keep their order (`client_session.Lane`).
Rule 3: every command is finished exactly once, in `finish`.

A core without I/O; `edge` has the rules for answers.
"""

from collections.abc import Callable
from typing import Final

from waystation.queue.cluster.slot_map import NOBODY, NodeId, SlotMap
from waystation.queue.edge.client_session import ClientSession, Lane, Pending
from waystation.queue.edge.effects import Effects
from waystation.queue.edge.observer import EdgeObserver
from waystation.queue.edge.ref_updates import RefUpdates
from waystation.queue.edge.refs import RefCache
from waystation.queue.edge.requests import Requests
from waystation.queue.errors import TRY_LATER
from waystation.queue.model import EntityId, Slot
from waystation.queue.wire.commands import Lget, Lkey, Send, Skey
from waystation.queue.wire.link import ClientTransmission
from waystation.queue.wire.link_messages import Sagain
from waystation.queue.wire.responses import Err, Response, encode_response
from waystation.queue.wire.transmission import encode_answer

HELD_MAX: Final = 10_000  # held commands, all slots together

_SENDERS: Final = (Send, Skey, Lkey, Lget)


class CommandRouting:
    def __init__(
        self,
        out: Effects,
        slot_map: SlotMap,
        *,
        refs: RefCache,
        disconnect: Callable[[ClientSession], None],
        asks_first: bool,
        observer: EdgeObserver,
    ) -> None:
        self._out = out
        self._observer = observer
        self._refs = refs
        self.slot_map = slot_map
        self.up: set[NodeId] = set()
        self.frozen: set[Slot] = set()  # refused by their server since the last release
        self.in_flight: dict[int, tuple[ClientSession, Pending]] = {}  # oldest first
        self._held: dict[Slot, dict[int, tuple[ClientSession, Pending]]] = {}
        self.held_count = 0
        self.disconnect = disconnect
        self.requests = Requests(self, out)
        self.ref_updates = RefUpdates(self, self.requests, refs, ask_first=asks_first)

    def is_up(self, node_id: NodeId) -> bool:
        return node_id in self.up

    @property
    def waits(self) -> bool:
        """Whether held commands need a newer map. A server that is down is not waited for here:
        `link_up` reports its return."""
        slots = self.slot_map.slots
        return bool(self.frozen) or any(slots[slot].server == NOBODY for slot in self._held)

    # Begin

    def begin(self, session: ClientSession, pending: Pending) -> bool:
        """False if a command with the same correlation id and entity id is pending."""
        if not pending.corr_id or pending.key in session.pending:
            return False
        session.add(pending)
        self.in_flight[pending.number] = (session, pending)
        return True

    def take(self, session: ClientSession, pending: Pending) -> None:
        tracked = self.begin(session, pending)
        if tracked:
            session.queue_up(pending)
        pending.slot = self._refs.home(pending.kind, pending.entity_id)
        if not tracked or not self.ref_updates.link(session, pending):
            self._go(session, pending)

    def left(self, session: ClientSession) -> None:
        for pending in session.pending.values():
            self.in_flight.pop(pending.number, None)
            self._unhold(pending)
            self.ref_updates.undo(pending)
        session.pending.clear()
        session.lanes.clear()

    # In flight

    def come_back(
        self, session: ClientSession, pending: Pending, *, is_barred: bool = False
    ) -> None:
        """Sends a command again that a server did not execute, perhaps to another server."""
        self.loosen(session, self.set_aside(session, pending, is_barred=is_barred))

    def set_aside(
        self, session: ClientSession, pending: Pending, *, is_barred: bool = False
    ) -> Lane:
        """Holds a returned command with the others that wait for its slot."""
        lane = pending.lane
        assert lane is not None
        lane.refused(pending, is_barred=is_barred)
        self._hold(session, pending)
        return lane

    def go_on(self, session: ClientSession, pending: Pending) -> None:
        """Continues a command whose reference is known or written."""
        lane = pending.lane
        if lane is None:
            self._go(session, pending)
        else:
            self.loosen(session, lane)

    def loosen(self, session: ClientSession, lane: Lane) -> None:
        """Sends the waiting commands of a lane that may be sent now."""
        for pending in list(lane.items):
            if pending.node_id != NOBODY:
                continue
            if pending.asking or session.gone:
                return
            self._unhold(pending)
            self._go(session, pending)
            if pending.node_id == NOBODY:
                return

    def _go(self, session: ClientSession, pending: Pending) -> None:
        lane = pending.lane
        if lane is not None and lane.must_wait(pending):
            self._hold(session, pending)
            self.let_out(session, session.order.pass_over(pending.number))
            return
        if self.ref_updates.must_ask(pending, self.requests.mono):
            self.ref_updates.ask(session, pending)
            return
        pending.slot = self._refs.home(pending.kind, pending.entity_id)
        server = self.slot_map.slots[pending.slot].server
        if pending.slot in self.frozen or server not in self.up:
            self._hold(session, pending)
            pending.waited = True
            self.let_out(session, session.order.pass_over(pending.number))
        elif lane is not None and not lane.may_go(pending, server):
            self._hold(session, pending)
        else:
            self._send(session, pending, server)

    def _send(self, session: ClientSession, pending: Pending, node_id: NodeId) -> None:
        pending.node_id = node_id
        pending.renewed = session.renewed
        if pending.waited:
            pending.waited = False
            self._observer.waited(self.requests.mono - pending.since)
        self.introduce(session, node_id)
        lane = pending.lane
        if lane is not None:
            pending.term = lane.term
            if lane.sent_on_by != NOBODY or lane.refused_by == node_id:
                self._begin_again(session, pending.entity_id, lane, node_id)
        self._out.send(node_id, session.stream, ClientTransmission(pending.item))

    def _begin_again(
        self, session: ClientSession, entity_id: EntityId, lane: Lane, node_id: NodeId
    ) -> None:
        """Sends `Sagain` to the server that refused the id. A server that answered `MOVED` gets it
        wherever the command goes now, because it also returns later commands."""
        waiting = {lane.sent_on_by}
        if lane.refused_by == node_id:
            waiting.add(node_id)
            lane.refused_by = NOBODY
        lane.sent_on_by = NOBODY
        for server in sorted(waiting & session.opened & self.up):
            self._out.send(server, session.stream, Sagain(entity_id))

    def introduce(self, session: ClientSession, node_id: NodeId) -> None:
        if node_id not in session.opened:
            session.opened.add(node_id)
            self._out.send(node_id, session.stream, session.introduction())

    def _hold(self, session: ClientSession, pending: Pending) -> None:
        if self.held_count >= HELD_MAX:
            self.give_up(session, pending)
            return
        pending.node_id = NOBODY
        pending.held = pending.slot
        self._held.setdefault(pending.slot, {})[pending.number] = (session, pending)
        self.held_count += 1

    def _unhold(self, pending: Pending) -> None:
        slot, pending.held = pending.held, None
        if slot is not None:
            held = self._held[slot]
            del held[pending.number]
            self.held_count -= 1
            if not held:
                del self._held[slot]

    def _release(self, slot: Slot) -> None:
        server = self.slot_map.slots[slot].server
        if server not in self.up or slot not in self._held:
            return
        # Refusals may arrive in another order than the commands were sent.
        for _, (session, pending) in sorted(self._held[slot].items()):
            if pending.held is None:
                continue
            self._unhold(pending)
            if not session.gone:
                self._go(session, pending)

    def release_all(self) -> None:
        self.frozen.clear()
        for slot in list(self._held):
            self._release(slot)

    def forget_untold(self, before: float) -> None:
        """Drops commands without a pending answer that were not served in time."""
        for held in list(self._held.values()):
            for _, pending in list(held.values()):
                if pending.lane is None and pending.since <= before:
                    self._unhold(pending)

    # End

    def say(
        self, session: ClientSession, corr_id: bytes, entity_id: bytes, response: Response
    ) -> None:
        """Answers a command from the edge itself, in order."""
        self.let_out(session, session.order.at_once(_encode(session, corr_id, entity_id, response)))

    def finish(self, session: ClientSession, pending: Pending, item: bytes) -> None:
        """Ends a command with this answer."""
        if not session.remove(pending):
            return
        self.in_flight.pop(pending.number, None)
        self._unhold(pending)
        self.let_out(session, session.order.answered(pending.number, item))
        lane = pending.lane
        if lane is None:
            return
        if lane.items:
            self.loosen(session, lane)
        elif lane.sent_on_by != NOBODY:
            # It ended before it was sent again, so the server that answered `MOVED` still waits.
            self._begin_again(session, pending.entity_id, lane, lane.sent_on_by)

    def refuse(self, session: ClientSession, pending: Pending, response: Response) -> None:
        self.finish(
            session, pending, _encode(session, pending.corr_id, pending.entity_id, response)
        )

    def let_out(self, session: ClientSession, items: list[bytes]) -> None:
        for item in items:
            self._out.answer(session, item)

    def give_up(self, session: ClientSession, pending: Pending) -> None:
        """No server serves the slot: sends the answer that clients take as temporary."""
        is_sender = isinstance(pending.command, _SENDERS)
        self._observer.unserved(disconnected=not is_sender)
        if is_sender:
            self.refuse(session, pending, Err(TRY_LATER))
        else:
            self.disconnect(session)


def _encode(session: ClientSession, corr_id: bytes, entity_id: bytes, response: Response) -> bytes:
    encoded = encode_response(response, session.dialect.version)
    return encode_answer(corr_id, entity_id, encoded, session.dialect)
