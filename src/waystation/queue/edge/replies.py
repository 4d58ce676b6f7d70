"""Handles messages of servers to clients: what the edge records before it passes them on.

Rule 1: an answer belongs to the pending command or renewal with its id; everything else is an event
        and is passed to the client unchanged.
Rule 2: an answer with a new id is passed on after its reference is written (`creation`,
        `ref_updates`). Answers that subscribe or acknowledge are recorded for later moves.
Rule 3: the refusal of an unknown id takes as long as that of an id with a reference (queues §6.6).

A core without I/O.
"""

from functools import partial

from waystation.queue.cluster.slot_map import NodeId
from waystation.queue.edge.client_session import ClientSession, Pending
from waystation.queue.edge.command_routing import CommandRouting
from waystation.queue.edge.creation import Creations
from waystation.queue.edge.effects import Budget, Effects
from waystation.queue.edge.failures import Failures
from waystation.queue.edge.observer import EdgeObserver
from waystation.queue.edge.renewals import Renewals
from waystation.queue.model import MessageId, RecipientId
from waystation.queue.wire.commands import Ack, Del, Get, New, Nkey
from waystation.queue.wire.fields import FieldError
from waystation.queue.wire.responses import Nid, decode_response
from waystation.queue.wire.transmission import decode_answer


class Replies:
    def __init__(
        self,
        routing: CommandRouting,
        out: Effects,
        *,
        renewals: Renewals,
        creating: Creations,
        failures: Failures,
        hides: bool,
        observer: EdgeObserver,
    ) -> None:
        """`hides`: an extra hop would reveal that an id has a reference."""
        self._routing = routing
        self._ref_updates = routing.ref_updates
        self._out = out
        self._renewals = renewals
        self._creations = creating
        self._failures = failures
        self._hides = hides
        self._observer = observer

    def said(self, node_id: NodeId, session: ClientSession, item: bytes, epoch: int) -> None:
        try:
            answer = decode_answer(item, session.dialect)
        except FieldError:
            self._routing.disconnect(session)
            return
        is_error = answer.response.startswith(b"ERR ")
        if is_error:
            self._observer.refused(answer.response)
        pending = None
        if answer.corr_id:
            pending = session.pending.get((answer.corr_id, answer.entity_id))
            if pending is None and session.renewing:
                corr_id = answer.corr_id
                if self._renewals.answered(session, node_id, corr_id, refused=is_error):
                    return
        if pending is None:
            if answer.response in (b"END", b"DELD"):
                self._renewals.unsubscribe(session, answer.entity_id)
            elif answer.response.startswith(b"MSG ") and self._renewals.is_late(
                session, node_id, answer.entity_id
            ):
                return
            self._routing.let_out(session, session.order.event(item))
        elif isinstance(pending.command, New) and not is_error:
            self._creations.keep(pending, item)
        elif answer.response == b"ERR NO_MSG" and self._renewals.must_repeat_ack(
            session, pending, epoch
        ):
            pass  # it is sent again
        elif answer.response != b"ERR AUTH":
            self._answered(session, pending, answer.response, item)
        elif not self._failures.ask_again(session, pending):
            self._unauthorised(session, pending, item)

    def _answered(
        self, session: ClientSession, pending: Pending, response: bytes, item: bytes
    ) -> None:
        if response.startswith(b"ERR "):
            self._refused(pending)
        elif isinstance(pending.command, Nkey):
            nid = decode_response(response, session.dialect.version)
            if isinstance(nid, Nid) and self._ref_updates.name(session, pending, nid, item):
                return
        else:
            self._note(session, pending, response)
        self._routing.finish(session, pending, item)

    def _refused(self, pending: Pending) -> None:
        if isinstance(pending.command, New):
            self._creations.refused(pending)
        self._ref_updates.undo(pending)

    def _unauthorised(self, session: ClientSession, pending: Pending, item: bytes) -> None:
        self._refused(pending)
        self._out.spent(session, Budget.REFUSALS)
        is_known = pending.rechecked or self._failures.is_redirected(pending)
        if self._hides and pending.kind is not None and not is_known:
            self._out.after_a_hop(partial(self._routing.finish, session, pending, item))  # rule 3
        else:
            self._routing.finish(session, pending, item)

    def _note(self, session: ClientSession, pending: Pending, response: bytes) -> None:
        """Records what must be renewed when the slot moves."""
        command, entity_id = pending.command, pending.entity_id
        if pending.subscribes:
            at = pending.node_id
            self._renewals.subscribe(session, entity_id, pending.slot, pending.item, at=at)
        elif isinstance(command, Get) and response.startswith(b"MSG "):
            message_id = MessageId(response[5 : 5 + response[4]])
            self._renewals.got(session, RecipientId(entity_id), message_id)
        elif isinstance(command, Ack | Del):
            self._renewals.acknowledged(session, RecipientId(entity_id))
            if isinstance(command, Del):
                self._renewals.unsubscribe(session, entity_id)
