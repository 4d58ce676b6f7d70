"""Creates queues: on one server, with references on others, visible when all is written.

Rule 1: NEWQ → IDS (kept) and NEWR → SET_REF for each id that does not begin with the home slot →
        NEWC → the client gets its IDS.
Rule 2: an id that the client chose and that is in use is answered with `AUTH`; an id that a server
        drew is drawn again.
Rule 3: after any other failure before the answer, the queue is made elsewhere, at most `TRIES_MAX`
        times and for `CREATE_S`; then the client is disconnected.
Rule 4: ids whose references belong on a server that is down are drawn again at once, so that one
        server that is down does not make creations fail.
Rule 5: a server that had no room gets no new queues for `FULL_S` if there are others.
Rule 6: references of a failed creation are removed; those that cannot be removed now are swept
        later.
Rule 7: if a queue may exist, its references stay, also when its IDS never reached the client.
        Without them its ids could be given to another queue, and a server with both could not tell
        them apart. If the queue does not exist, servers sweep them.

A core without I/O.
"""

import enum
import random
import secrets
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from waystation.queue.cluster.slot_map import NOBODY, NodeId, SlotMap
from waystation.queue.edge.client_session import ClientSession, Pending
from waystation.queue.edge.effects import Effects
from waystation.queue.edge.refs import RefCache
from waystation.queue.edge.renewals import Renewals
from waystation.queue.edge.requests import Requests
from waystation.queue.errors import Code
from waystation.queue.model import EntityId, RefKind, Slot, SubMode, slot_of
from waystation.queue.wire.commands import New
from waystation.queue.wire.link import Body
from waystation.queue.wire.link_messages import (
    Busy,
    Cok,
    DelRef,
    Duplicate,
    Newc,
    Newq,
    Newr,
    Newx,
    SetRef,
)
from waystation.queue.wire.responses import Err, Response

TRIES_MAX: Final = 3
REDRAWS_MAX: Final = 64
CREATE_S: Final = 15.0
FULL_S: Final = 5.0  # pause in creations for a server that had no room


class Stage(enum.Enum):
    ASKED = "asked"  # NEWQ was sent
    LINKING = "linking"  # references are being written
    COMMITTING = "committing"  # NEWC was sent


class Creation:
    __slots__ = (
        "answer",
        "home",
        "made",
        "node_id",
        "outstanding",
        "pending",
        "session",
        "set_refs",
        "stage",
        "tx_id",
    )

    def __init__(
        self, session: ClientSession, pending: Pending, *, node_id: NodeId, home: Slot, tx_id: bytes
    ) -> None:
        self.session = session
        self.pending = pending
        self.node_id = node_id
        self.home = home
        self.tx_id = tx_id
        self.stage = Stage.ASKED
        self.answer = b""  # the IDS, kept until the commit
        self.made: Newr | None = None
        self.outstanding = 0
        self.set_refs: list[SetRef] = []

    def references(self, made: Newr) -> list[SetRef]:
        """The references to write before the commit."""
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
        """Counts one reference as written; whether it was the last."""
        self.outstanding -= 1
        return self.outstanding <= 0

    def undo(self) -> list[DelRef]:
        return [DelRef(ref.kind, ref.entity_id, self.tx_id) for ref in self.set_refs]

    def is_chosen(self, kind: RefKind) -> bool:
        """Whether the client chose that id, so that another try would fail as well."""
        command = self.pending.command
        if not isinstance(command, New) or command.link is None:
            return False
        return kind is RefKind.SENDER or (kind is RefKind.LINK and command.link.link_id is not None)


def ids_of(made: Newr) -> list[tuple[RefKind, bytes]]:
    ids: list[tuple[RefKind, bytes]] = [(RefKind.SENDER, made.sender_id)]
    if made.notifier_id is not None:
        ids.append((RefKind.NOTIFIER, made.notifier_id))
    if made.link_id is not None:
        ids.append((RefKind.LINK, made.link_id))
    return ids


class Host(Protocol):
    """The part of the edge that creations use."""

    @property
    def slot_map(self) -> SlotMap: ...

    def is_up(self, node_id: NodeId) -> bool: ...

    def introduce(self, session: ClientSession, node_id: NodeId) -> None: ...

    def finish(self, session: ClientSession, pending: Pending, item: bytes) -> None: ...

    def refuse(self, session: ClientSession, pending: Pending, response: Response) -> None: ...

    @property
    def disconnect(self) -> Callable[[ClientSession], None]: ...


class Creations:
    """All queues that are being created."""

    def __init__(
        self,
        host: Host,
        out: Effects,
        *,
        requests: Requests,
        renewals: Renewals,
        refs: RefCache,
        chance: random.Random,
    ) -> None:
        self._host = host
        self._out = out
        self._renewals = renewals
        self._requests = requests
        self._refs = refs
        self._chance = chance
        self._creation_slots = creation_slots(host.slot_map)
        self._creations: dict[bytes, Creation] = {}
        self._by_command: dict[Pending, Creation] = {}
        self._full: dict[NodeId, float] = {}  # servers without room, until when

    def __len__(self) -> int:
        return len(self._creations)

    def create(self, session: ClientSession, pending: Pending) -> None:
        nodes = [
            node
            for node_id, node in self._host.slot_map.nodes.items()
            if node.takes_new and self._host.is_up(node_id) and self._creation_slots.get(node_id)
        ]
        if not nodes:
            self._host.disconnect(session)
            return
        # If all refused lately, any of them may have room again.
        nodes = [node for node in nodes if node.node_id not in self._full] or nodes
        node = self._chance.choices(nodes, [node.weight_new for node in nodes])[0]
        home = self._chance.choice(self._creation_slots[node.node_id])
        pending.node_id, pending.slot = node.node_id, home
        tx_id = secrets.token_bytes(16)
        creation = Creation(session, pending, node_id=node.node_id, home=home, tx_id=tx_id)
        self._creations[tx_id] = self._by_command[pending] = creation
        self._host.introduce(session, node.node_id)
        self._out.send(node.node_id, session.stream, Newq(home, tx_id, pending.item))

    def elsewhere(self, pending: Pending) -> None:
        """The server cannot create the queue, or has no part of it any more (rule 3)."""
        creation = self._by_command.get(pending)
        if creation is None:
            return
        self._take_back(creation)
        pending.retries += 1
        if creation.session.gone:
            return
        if pending.retries >= TRIES_MAX:
            self._host.disconnect(creation.session)
        else:
            self.create(creation.session, pending)

    def refused(self, pending: Pending) -> None:
        """The client gets the server's refusal."""
        creation = self._by_command.pop(pending, None)
        if creation is not None:
            del self._creations[creation.tx_id]

    def keep(self, pending: Pending, item: bytes) -> None:
        creation = self._by_command.get(pending)
        if creation is not None:
            creation.answer = item

    def made(self, node_id: NodeId, made: Newr) -> None:
        creation = self._creations.get(made.tx_id)
        if creation is None or creation.node_id != node_id or creation.stage is not Stage.ASKED:
            return  # given up; the server drops the draft after its timeout
        references = creation.references(made)
        if any(self._is_away(creation, one) for one in references):
            self._draw_again(creation)
            return
        for reference in references:
            done = partial(self._referred, creation, reference)
            self._requests.ask_slot(slot_of(reference.entity_id), reference, done)
        if not references:
            self._commit(creation)

    def _is_away(self, creation: Creation, reference: SetRef) -> bool:
        server = self._host.slot_map.slots[slot_of(reference.entity_id)].server
        # A moving slot has no server for a moment; that is not "down".
        is_down = server != NOBODY and not self._host.is_up(server)
        return is_down and not creation.is_chosen(reference.kind)

    def _draw_again(self, creation: Creation) -> None:
        """Rule 4."""
        pending = creation.pending
        pending.redraws += 1
        if pending.redraws > REDRAWS_MAX:
            self.elsewhere(pending)
            return
        creation.set_refs.clear()  # none was written
        self._take_back(creation)
        self.create(creation.session, pending)

    def _referred(self, creation: Creation, reference: SetRef, body: Body | None) -> None:
        if creation.tx_id not in self._creations:
            return
        if isinstance(body, Cok):
            if creation.reference_set():
                self._commit(creation)
        elif isinstance(body, Duplicate) and creation.is_chosen(reference.kind):
            self._take_back(creation)
            self._host.refuse(creation.session, creation.pending, Err(Code.AUTH))
        else:
            self.elsewhere(creation.pending)

    def _commit(self, creation: Creation) -> None:
        creation.stage = Stage.COMMITTING
        done = partial(self._committed, creation)
        self._requests.ask_server(creation.node_id, Newc(creation.tx_id), done)

    def _committed(self, creation: Creation, body: Body | None) -> None:
        if creation.tx_id not in self._creations:
            return
        if isinstance(body, Cok):
            self._created(creation)
        elif isinstance(body, Duplicate) and creation.is_chosen(RefKind.SENDER):
            self._take_back(creation)
            self._host.refuse(creation.session, creation.pending, Err(Code.AUTH))
        elif isinstance(body, Busy):
            self._full[creation.node_id] = self._requests.mono + FULL_S
            self.elsewhere(creation.pending)
        elif body is None:
            self._give_up(creation)
        else:
            self.elsewhere(creation.pending)

    def _created(self, creation: Creation) -> None:
        session, pending, made = creation.session, creation.pending, creation.made
        self.refused(pending)
        assert made is not None
        for kind, entity_id in ids_of(made):
            if kind in made.needs:
                self._refs.learn(kind, entity_id, creation.home)
        if session.gone:
            return
        command = pending.command
        if isinstance(command, New) and command.sub_mode is SubMode.SUBSCRIBE:
            entity_id, home, at = EntityId(made.recipient_id), creation.home, creation.node_id
            self._renewals.subscribe(session, entity_id, home, None, at=at)
        self._host.finish(session, pending, creation.answer)

    def _give_up(self, creation: Creation) -> None:
        """Disconnects the client; references stay if the queue may exist (rule 7)."""
        if creation.stage is Stage.COMMITTING:
            self.refused(creation.pending)
        else:
            self._take_back(creation)
        self._host.disconnect(creation.session)

    def _take_back(self, creation: Creation) -> None:
        """Removes what was written (rule 6)."""
        self.refused(creation.pending)
        if self._host.is_up(creation.node_id):
            self._requests.ask_server(creation.node_id, Newx(creation.tx_id))
        for removal in creation.undo():
            self._requests.ask_slot(slot_of(removal.entity_id), removal)

    # The map, links, time

    def learned(self) -> None:
        self._creation_slots = creation_slots(self._host.slot_map)

    def link_down(self, node_id: NodeId) -> None:
        """Commits in flight to it have been reported to `_committed` already."""
        for creation in [one for one in self._creations.values() if one.node_id == node_id]:
            self.elsewhere(creation.pending)

    def stream_lost(self, session: ClientSession, node_id: NodeId) -> None:
        for creation in list(self._creations.values()):
            if creation.session is not session or creation.node_id != node_id:
                continue
            if creation.stage is Stage.COMMITTING:
                self._give_up(creation)
            else:
                self.elsewhere(creation.pending)

    def left(self, session: ClientSession) -> None:
        for creation in [self._by_command.get(one) for one in session.pending.values()]:
            if creation is not None and creation.stage is not Stage.COMMITTING:
                self._take_back(creation)

    def tick(self, mono: float) -> None:
        for node_id in [one for one, until in self._full.items() if until <= mono]:
            del self._full[node_id]
        for creation in list(self._creations.values()):
            if mono - creation.pending.since >= CREATE_S:
                self._give_up(creation)


def creation_slots(slot_map: SlotMap) -> dict[NodeId, list[Slot]]:
    """The slots in which each server may create queues: those that do not move."""
    homes: dict[NodeId, list[Slot]] = {}
    for slot, one in enumerate(slot_map.slots):
        if one.state == "S" and one.owner != NOBODY:
            homes.setdefault(one.owner, []).append(Slot(slot))
    return homes
