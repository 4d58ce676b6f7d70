"""Commands of clients on their way: where each goes, what waits, and what became of it.

Rule 1: a command goes where the map says that its slot is served. While nobody serves it, or it was
        refused there a moment ago, it waits.
Rule 2: a command never overtakes one of the same client about the same id (`guest.Lane`).
Rule 3: every command that can be answered has one end: `finish`.

A core without I/O; `edge` has the rules about what comes back.
"""

from collections.abc import Callable
from typing import Final

from waystation.queue.cluster.slot_map import NOBODY, NodeId, SlotMap
from waystation.queue.errors import TRY_LATER
from waystation.queue.model import EntityId, Slot
from waystation.queue.proxy.guest import Guest, Lane, Pending
from waystation.queue.proxy.observer import EdgeObserver
from waystation.queue.proxy.outlet import Outlet
from waystation.queue.proxy.referring import Referring
from waystation.queue.proxy.refs import RefCache
from waystation.queue.proxy.requests import Requests
from waystation.queue.wire.commands import Lget, Lkey, Send, Skey
from waystation.queue.wire.link import Sent
from waystation.queue.wire.link_words import Sagain
from waystation.queue.wire.responses import Err, Response, encode_response
from waystation.queue.wire.transmission import encode_answer

HELD_MAX: Final = 10_000  # commands that wait for all slots together

_SENDERS: Final = (Send, Skey, Lkey, Lget)


class Passage:
    def __init__(
        self,
        out: Outlet,
        slot_map: SlotMap,
        *,
        refs: RefCache,
        hang_up: Callable[[Guest], None],
        asks_first: bool,
        observer: EdgeObserver,
    ) -> None:
        self._out = out
        self._observer = observer
        self._refs = refs
        self.slot_map = slot_map
        self.up: set[NodeId] = set()
        self.frozen: set[Slot] = set()  # refused lately by whoever is to serve them
        self.under_way: dict[int, tuple[Guest, Pending]] = {}  # oldest first
        self._held: dict[Slot, dict[int, tuple[Guest, Pending]]] = {}
        self.held_count = 0
        self.hang_up = hang_up
        self.requests = Requests(self, out)
        self.referring = Referring(self, self.requests, refs, ask_first=asks_first)

    def is_up(self, node_id: NodeId) -> bool:
        return node_id in self.up

    @property
    def waits(self) -> bool:
        """Whether something goes on as soon as there is a newer map. A server that is away is not
        waited for so eagerly: a link tells of its return."""
        slots = self.slot_map.slots
        return bool(self.frozen) or any(slots[slot].server == NOBODY for slot in self._held)

    # Beginning

    def begin(self, guest: Guest, pending: Pending) -> bool:
        """Whether its answer can be told from others."""
        if not pending.corr_id or pending.key in guest.pending:
            return False
        guest.add(pending)
        self.under_way[pending.number] = (guest, pending)
        return True

    def take(self, guest: Guest, pending: Pending) -> None:
        tracked = self.begin(guest, pending)
        if tracked:
            guest.queue_up(pending)
        pending.slot = self._refs.home(pending.kind, pending.entity_id)
        if not tracked or not self.referring.link(guest, pending):
            self._go(guest, pending)

    def left(self, guest: Guest) -> None:
        for pending in guest.pending.values():
            self.under_way.pop(pending.number, None)
            self._unhold(pending)
            self.referring.undo(pending)
        guest.pending.clear()
        guest.lanes.clear()

    # Under way

    def come_back(self, guest: Guest, pending: Pending, *, is_barred: bool = False) -> None:
        """A server did not do it; it is to be said again, perhaps elsewhere."""
        self.loosen(guest, self.set_aside(guest, pending, is_barred=is_barred))

    def set_aside(self, guest: Guest, pending: Pending, *, is_barred: bool = False) -> Lane:
        """It came back, and is said again with what else waits for its slot."""
        lane = pending.lane
        assert lane is not None
        lane.refused(pending, is_barred=is_barred)
        self._hold(guest, pending)
        return lane

    def go_on(self, guest: Guest, pending: Pending) -> None:
        """What it waited for is known, or set."""
        lane = pending.lane
        if lane is None:
            self._go(guest, pending)
        else:
            self.loosen(guest, lane)

    def loosen(self, guest: Guest, lane: Lane) -> None:
        """The first that waits may go, perhaps, and then the next."""
        for pending in list(lane.items):
            if pending.node_id != NOBODY:
                continue
            if pending.asking or guest.gone:
                return
            self._unhold(pending)
            self._go(guest, pending)
            if pending.node_id == NOBODY:
                return

    def _go(self, guest: Guest, pending: Pending) -> None:
        lane = pending.lane
        if lane is not None and lane.must_wait(pending):
            self._hold(guest, pending)
            self.let_out(guest, guest.order.pass_over(pending.number))
            return
        if self.referring.must_ask(pending, self.requests.mono):
            self.referring.ask(guest, pending)
            return
        pending.slot = self._refs.home(pending.kind, pending.entity_id)
        server = self.slot_map.slots[pending.slot].server
        if pending.slot in self.frozen or server not in self.up:
            self._hold(guest, pending)
            pending.waited = True
            self.let_out(guest, guest.order.pass_over(pending.number))
        elif lane is not None and not lane.may_go(pending, server):
            self._hold(guest, pending)
        else:
            self._send(guest, pending, server)

    def _send(self, guest: Guest, pending: Pending, node_id: NodeId) -> None:
        pending.node_id = node_id
        pending.renewed = guest.renewed
        if pending.waited:
            pending.waited = False
            self._observer.waited(self.requests.mono - pending.since)
        self.introduce(guest, node_id)
        lane = pending.lane
        if lane is not None:
            pending.term = lane.term
            if lane.sent_on_by != NOBODY or lane.refused_by == node_id:
                self._begin_again(guest, pending.entity_id, lane, node_id)
        self._out.send(node_id, guest.stream, Sent(pending.item))

    def _begin_again(self, guest: Guest, entity_id: EntityId, lane: Lane, node_id: NodeId) -> None:
        """A server that refused it does so until it hears this; one that sent it on sends on
        what follows, and hears this whoever it is said to now."""
        waiting = {lane.sent_on_by}
        if lane.refused_by == node_id:
            waiting.add(node_id)
            lane.refused_by = NOBODY
        lane.sent_on_by = NOBODY
        for server in sorted(waiting & guest.opened & self.up):
            self._out.send(server, guest.stream, Sagain(entity_id))

    def introduce(self, guest: Guest, node_id: NodeId) -> None:
        if node_id not in guest.opened:
            guest.opened.add(node_id)
            self._out.send(node_id, guest.stream, guest.introduction())

    def _hold(self, guest: Guest, pending: Pending) -> None:
        if self.held_count >= HELD_MAX:
            self.give_up(guest, pending)
            return
        pending.node_id = NOBODY
        pending.held = pending.slot
        self._held.setdefault(pending.slot, {})[pending.number] = (guest, pending)
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
        # Refusals of what was sent before may have come after what came later.
        for _, (guest, pending) in sorted(self._held[slot].items()):
            if pending.held is None:
                continue
            self._unhold(pending)
            if not guest.gone:
                self._go(guest, pending)

    def release_all(self) -> None:
        self.frozen.clear()
        for slot in list(self._held):
            self._release(slot)

    def forget_untold(self, before: float) -> None:
        """Commands that nobody waits for, and that nobody served in time."""
        for held in list(self._held.values()):
            for _, pending in list(held.values()):
                if pending.lane is None and pending.since <= before:
                    self._unhold(pending)

    # The end

    def say(self, guest: Guest, corr_id: bytes, entity_id: bytes, response: Response) -> None:
        """What the edge knows by itself, in its turn."""
        self.let_out(guest, guest.order.at_once(_encode(guest, corr_id, entity_id, response)))

    def finish(self, guest: Guest, pending: Pending, item: bytes) -> None:
        """Its answer is this."""
        if not guest.remove(pending):
            return
        self.under_way.pop(pending.number, None)
        self._unhold(pending)
        self.let_out(guest, guest.order.answered(pending.number, item))
        if pending.lane is not None and pending.lane.items:
            self.loosen(guest, pending.lane)

    def refuse(self, guest: Guest, pending: Pending, response: Response) -> None:
        self.finish(guest, pending, _encode(guest, pending.corr_id, pending.entity_id, response))

    def let_out(self, guest: Guest, items: list[bytes]) -> None:
        for item in items:
            self._out.answer(guest, item)

    def give_up(self, guest: Guest, pending: Pending) -> None:
        """Nobody serves it: in the form that clients take as temporary."""
        is_sender = isinstance(pending.command, _SENDERS)
        self._observer.unserved(disconnected=not is_sender)
        if is_sender:
            self.refuse(guest, pending, Err(TRY_LATER))
        else:
            self.hang_up(guest)


def _encode(guest: Guest, corr_id: bytes, entity_id: bytes, response: Response) -> bytes:
    encoded = encode_response(response, guest.dialect.version)
    return encode_answer(corr_id, entity_id, encoded, guest.dialect)
