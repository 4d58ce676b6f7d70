"""Handles commands that a server refused: follows references, waits, sends them again.

Rule 1: an id that leads elsewhere (`MOVED`) is sent to its home slot, and the home is cached.
Rule 2: a server that does not own the slot (`WRONG_SLOT`) or does not serve it now (`FROZEN`,
        `BUSY`) may know a newer map: the map is read, and the command sent again.
Rule 3: `UNKNOWN` is accepted from the server of the home slot, by the same map only. A cached home
        may belong to a deleted queue whose id is in use again: such a home is looked up once more.

A core without I/O.
"""

from waystation.queue.cluster.slot_map import NodeId
from waystation.queue.edge.client_session import ClientSession, Pending
from waystation.queue.edge.command_routing import CommandRouting
from waystation.queue.edge.creation import Creations
from waystation.queue.edge.effects import Effects
from waystation.queue.edge.refs import RefCache
from waystation.queue.edge.renewals import Renewals
from waystation.queue.errors import Code
from waystation.queue.model import RefKind
from waystation.queue.wire.commands import New
from waystation.queue.wire.link_messages import Busy, Frozen, Moved, Unknown, WrongSlot
from waystation.queue.wire.responses import Err

Failure = WrongSlot | Unknown | Moved | Frozen | Busy


class Failures:
    def __init__(
        self,
        routing: CommandRouting,
        out: Effects,
        *,
        refs: RefCache,
        renewals: Renewals,
        creating: Creations,
    ) -> None:
        self._routing = routing
        self._out = out
        self._refs = refs
        self._renewals = renewals
        self._creations = creating

    def failed(self, node_id: NodeId, session: ClientSession, failure: Failure) -> None:
        pending = next(
            (one for one in session.pending.values() if one.corr_id == failure.corr_id), None
        )
        if pending is None:
            self._renewal_failed(node_id, session, failure)
        elif pending.node_id != node_id:
            pass  # it was sent elsewhere since
        elif isinstance(pending.command, New):
            self._creations.elsewhere(pending)
        elif isinstance(failure, Moved):
            self._moved(session, pending, failure)
        elif not self._is_gone(session, pending, failure):
            self._refused(session, pending)

    def ask_again(
        self, session: ClientSession, pending: Pending, *, is_barred: bool = False
    ) -> bool:
        """Looks the home up once more if it came from the cache; whether it did."""
        kind = pending.kind
        if kind is None or pending.rechecked:
            return False
        if not self._refs.forget(kind, pending.entity_id):
            return False
        pending.rechecked = True  # the reference may still lead to the same home
        if not self.is_redirected(pending):
            return False
        pending.looked_up = False
        self._routing.come_back(session, pending, is_barred=is_barred)
        return True

    def is_redirected(self, pending: Pending) -> bool:
        """Whether its server was not chosen by the id alone."""
        return pending.slot != self._refs.home(None, pending.entity_id)

    def _moved(self, session: ClientSession, pending: Pending, moved: Moved) -> None:
        assert pending.lane is not None
        pending.lane.sent_on_by = pending.node_id
        if moved.home == pending.slot:  # another map chose another server
            self._out.refresh()
            self._routing.set_aside(session, pending)
        else:
            self._refs.learn(moved.kind, pending.entity_id, moved.home)
            self._routing.come_back(session, pending)

    def _is_gone(self, session: ClientSession, pending: Pending, failure: Failure) -> bool:
        """Whether the reference leads to a home without that id: the queue or link was deleted, or
        moved."""
        by_one_map = isinstance(failure, Unknown | WrongSlot) and (
            failure.epoch == self._routing.slot_map.epoch
        )
        if not by_one_map or not self._is_served_by(pending) or not self.is_redirected(pending):
            return False
        if isinstance(failure, Unknown):
            if not self.ask_again(session, pending):
                self._routing.refuse(session, pending, Err(Code.AUTH))
            return True
        # A link id may be in use again, and its server answers for its copy of that queue, not
        # for this slot.
        is_link = pending.kind is RefKind.LINK
        return is_link and self.ask_again(session, pending, is_barred=True)

    def _refused(self, session: ClientSession, pending: Pending) -> None:
        if self._is_served_by(pending):
            self._routing.frozen.add(pending.slot)
            self._out.refresh()
        self._routing.come_back(session, pending, is_barred=True)

    def _is_served_by(self, pending: Pending) -> bool:
        """Whether our map still gives the slot to the server that got the command."""
        return self._routing.slot_map.slots[pending.slot].server == pending.node_id

    def _renewal_failed(self, node_id: NodeId, session: ClientSession, failure: Failure) -> None:
        is_gone = isinstance(failure, Unknown) and failure.epoch == self._routing.slot_map.epoch
        if is_gone and self._renewals.answered(session, node_id, failure.corr_id, refused=True):
            return  # the queue ended while its slot moved
        self._renewals.failed(session, node_id, failure.corr_id)
