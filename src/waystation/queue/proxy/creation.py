"""Queues that are being made: on one server, with references on others, seen by nobody until then.

Rule 1: NEWQ → IDS (kept) and NEWR → SET_REF for each id that does not begin with the home slot →
        NEWC → only now the client gets its IDS.
Rule 2: an id that somebody has already is the client's own choice: `AUTH`. Anything else that goes
        wrong is silence, and everything that was set is taken back; what cannot be taken back
        now, the servers sweep later.
Rule 3: a server that is busy or gone before it made anything is passed over, at most `TRIES_MAX`
        times.

A core without I/O: `edge` sends what it returns.
"""

import enum
import random
import secrets
from typing import Final, Protocol

from waystation.queue.cluster.slot_map import NOBODY, NodeId, SlotMap
from waystation.queue.errors import Code, Fault
from waystation.queue.model import EntityId, RefKind, Slot, SubMode, slot_of
from waystation.queue.proxy.guest import Guest, Pending
from waystation.queue.proxy.outlet import Outlet
from waystation.queue.proxy.refs import RefCache
from waystation.queue.wire.commands import New
from waystation.queue.wire.link import REQUESTS_FROM, Body
from waystation.queue.wire.link_words import Cok, DelRef, Duplicate, Newc, Newq, Newr, Newx, SetRef
from waystation.queue.wire.responses import Err, Response

TRIES_MAX: Final = 3
CREATE_S: Final = 15.0


class Stage(enum.Enum):
    ASKED = "asked"  # NEWQ is under way
    LINKING = "linking"  # references are being set
    COMMITTING = "committing"  # NEWC is under way


class Creation:
    __slots__ = (
        "answer",
        "guest",
        "home",
        "made",
        "node_id",
        "outstanding",
        "pending",
        "set_refs",
        "stage",
        "tx_id",
    )

    def __init__(
        self, guest: Guest, pending: Pending, *, node_id: NodeId, home: Slot, tx_id: bytes
    ) -> None:
        self.guest = guest
        self.pending = pending
        self.node_id = node_id
        self.home = home
        self.tx_id = tx_id
        self.stage = Stage.ASKED
        self.answer = b""  # the IDS, kept until all stands
        self.made: Newr | None = None
        self.outstanding = 0
        self.set_refs: list[SetRef] = []

    def references(self, made: Newr) -> list[SetRef]:
        """What has to be set before the queue may be committed."""
        self.made = made
        self.stage = Stage.LINKING
        self.set_refs = [
            SetRef(kind, entity_id, self.home, self.tx_id)
            for kind, entity_id in ids_of(made)
            if kind in made.needs
        ]
        self.outstanding = len(self.set_refs)
        return self.set_refs

    def reference_set(self) -> bool:
        """Whether this was the last one."""
        self.outstanding -= 1
        return self.outstanding <= 0

    def undo(self) -> list[DelRef]:
        return [DelRef(ref.kind, ref.entity_id, self.tx_id) for ref in self.set_refs]


def ids_of(made: Newr) -> list[tuple[RefKind, bytes]]:
    ids: list[tuple[RefKind, bytes]] = [(RefKind.SENDER, made.sender_id)]
    if made.notifier_id is not None:
        ids.append((RefKind.NOTIFIER, made.notifier_id))
    if made.link_id is not None:
        ids.append((RefKind.LINK, made.link_id))
    return ids


class Host(Protocol):
    """The edge, as far as creating needs it."""

    @property
    def slot_map(self) -> SlotMap: ...

    def is_up(self, node_id: NodeId) -> bool: ...

    def introduce(self, guest: Guest, node_id: NodeId) -> None: ...

    def say(self, guest: Guest, corr_id: bytes, entity_id: bytes, response: Response) -> None: ...

    def give_up(self, guest: Guest, pending: Pending) -> None: ...

    def hang_up(self, guest: Guest) -> None: ...

    def subscribe(
        self, guest: Guest, entity_id: EntityId, slot: Slot, item: bytes | None
    ) -> None: ...


class Creating:
    """All queues that are being made."""

    def __init__(self, host: Host, out: Outlet, *, refs: RefCache, chance: random.Random) -> None:
        self._host = host
        self._out = out
        self._refs = refs
        self._chance = chance
        self._homes = homes_of(host.slot_map)
        self._creations: dict[bytes, Creation] = {}
        self._requests: dict[int, tuple[NodeId, Creation, SetRef | None]] = {}
        self._next_request = REQUESTS_FROM

    def create(self, guest: Guest, pending: Pending) -> None:
        nodes = [
            node
            for node_id, node in self._host.slot_map.nodes.items()
            if node.takes_new and self._host.is_up(node_id) and self._homes.get(node_id)
        ]
        if not nodes or not pending.corr_id:
            # Without a correlation id nobody could tell whose answer it is.
            self._host.hang_up(guest)
            return
        guest.pending[pending.key] = pending
        node = self._chance.choices(nodes, [node.weight_new for node in nodes])[0]
        home = self._chance.choice(self._homes[node.node_id])
        pending.node_id, pending.slot = node.node_id, home
        tx_id = secrets.token_bytes(16)
        creation = Creation(guest, pending, node_id=node.node_id, home=home, tx_id=tx_id)
        self._creations[tx_id] = creation
        self._host.introduce(guest, node.node_id)
        self._out.send(node.node_id, guest.stream, Newq(home, tx_id, pending.item))

    def elsewhere(self, pending: Pending) -> None:
        creation = self._creation_of(pending)
        if creation is None:
            return
        del self._creations[creation.tx_id]
        pending.retries += 1
        if pending.retries >= TRIES_MAX or creation.guest.gone:
            self._host.give_up(creation.guest, pending)
        else:
            self.create(creation.guest, pending)

    def _creation_of(self, pending: Pending) -> Creation | None:
        return next((one for one in self._creations.values() if one.pending is pending), None)

    def refused(self, pending: Pending) -> None:
        """The server said why; the client is told."""
        creation = self._creation_of(pending)
        if creation is not None:
            del self._creations[creation.tx_id]

    def keep(self, pending: Pending, item: bytes) -> None:
        creation = self._creation_of(pending)
        if creation is not None:
            creation.answer = item

    def made(self, made: Newr) -> None:
        creation = self._creations.get(made.tx_id)
        if creation is None:
            return  # given up; the server forgets it by itself
        references = creation.references(made)
        for reference in references:
            owner = self._host.slot_map.slots[slot_of(reference.entity_id)].server
            if not self._host.is_up(owner):
                self._undo(creation, None)
                return
        for reference in references:
            owner = self._host.slot_map.slots[slot_of(reference.entity_id)].server
            self._request(owner, creation, reference, reference)
        if not references:
            self._commit(creation)

    def _request(
        self, node_id: NodeId, creation: Creation, reference: SetRef | None, body: Body
    ) -> None:
        number = self._next_request
        self._next_request = number + 1 if number < 0xFFFFFFFF else REQUESTS_FROM
        self._requests[number] = (node_id, creation, reference)
        self._out.send(node_id, number, body)

    def _commit(self, creation: Creation) -> None:
        creation.stage = Stage.COMMITTING
        self._request(creation.node_id, creation, None, Newc(creation.tx_id))

    def answered(self, number: int, body: Body) -> None:
        """To a request of ours, by its number."""
        request = self._requests.pop(number, None)
        if request is None:
            return
        _, creation, reference = request
        if creation.tx_id not in self._creations:
            return
        if not isinstance(body, Cok):
            taken = isinstance(body, Duplicate)
            self._undo(creation, Code.AUTH if taken else None)
        elif reference is None:
            self._created(creation)
        elif creation.reference_set():
            self._commit(creation)

    def _created(self, creation: Creation) -> None:
        guest, pending, made = creation.guest, creation.pending, creation.made
        del self._creations[creation.tx_id]
        guest.pending.pop(pending.key, None)
        assert made is not None
        for kind, entity_id in ids_of(made):
            if kind in made.needs:
                self._refs.learn(kind, entity_id, creation.home)
        if guest.gone:
            return
        command = pending.command
        if isinstance(command, New) and command.sub_mode is SubMode.SUBSCRIBE:
            self._host.subscribe(guest, EntityId(made.recipient_id), creation.home, None)
        self._out.answer(guest, creation.answer)

    def _undo(self, creation: Creation, fault: Fault | None) -> None:
        """Nothing may be left of it; without a fault the client is disconnected."""
        del self._creations[creation.tx_id]
        if self._host.is_up(creation.node_id):
            self._next_unasked(creation.node_id, Newx(creation.tx_id))
        for removal in creation.undo():
            owner = self._host.slot_map.slots[slot_of(removal.entity_id)].server
            if self._host.is_up(owner):
                self._next_unasked(owner, removal)
        guest, pending = creation.guest, creation.pending
        guest.pending.pop(pending.key, None)
        if guest.gone:
            return
        if fault is None:
            self._host.hang_up(guest)
        else:
            self._host.say(guest, pending.corr_id, pending.entity_id, Err(fault))

    def _next_unasked(self, node_id: NodeId, body: Body) -> None:
        """A request whose answer changes nothing."""
        number = self._next_request
        self._next_request = number + 1 if number < 0xFFFFFFFF else REQUESTS_FROM
        self._out.send(node_id, number, body)

    # The map, links, time

    def learned(self) -> None:
        self._homes = homes_of(self._host.slot_map)

    def link_down(self, node_id: NodeId) -> None:
        for number, (asked, creation, _) in list(self._requests.items()):
            if asked == node_id:
                del self._requests[number]
                if creation.tx_id in self._creations:
                    self._undo(creation, None)
        for creation in [one for one in self._creations.values() if one.node_id == node_id]:
            if creation.stage is Stage.ASKED:
                self.elsewhere(creation.pending)
            else:
                self._undo(creation, None)

    def tick(self, mono: float) -> None:
        for creation in list(self._creations.values()):
            if mono - creation.pending.since >= CREATE_S:
                self._undo(creation, None)


def homes_of(slot_map: SlotMap) -> dict[NodeId, list[Slot]]:
    """The slots in which each server may make new queues: those that stay where they are."""
    homes: dict[NodeId, list[Slot]] = {}
    for slot, one in enumerate(slot_map.slots):
        if one.state == "S" and one.owner != NOBODY:
            homes.setdefault(one.owner, []).append(Slot(slot))
    return homes
