"""Reads, writes and removes references when commands need it.

Rule 1: a client gets an id only after its reference is written: NKEY's answer waits for it, and
        LSET is sent to its queue after it. If LSET is refused, the new reference is removed.
Rule 2: a link id with a reference may be the queue's own. If the reference leads to the queue's
        slot, the queue's server decides; otherwise the answer is `AUTH`.
Rule 3: references of ids that a server reports as deleted are removed; no command waits for that.
Rule 4: with `refs`, where most ids have a reference, it is read before a command is sent; with
        `hybrid` the command is sent first, and returned with the home if there is a reference.

A core without I/O.
"""

import secrets
from collections.abc import Callable
from typing import Protocol

from waystation.queue.edge.client_session import ClientSession, Pending
from waystation.queue.edge.refs import RefCache
from waystation.queue.edge.requests import Requests
from waystation.queue.errors import Code
from waystation.queue.model import ID_BYTES, RefKind, Slot, slot_of
from waystation.queue.wire.commands import Lset
from waystation.queue.wire.link import Body
from waystation.queue.wire.link_messages import (
    Cok,
    DelRef,
    Duplicate,
    GetRef,
    NotFound,
    RefIs,
    SetRef,
)
from waystation.queue.wire.responses import Err, Nid, Response


class Host(Protocol):
    """The part of the edge that reference updates use."""

    def go_on(self, session: ClientSession, pending: Pending) -> None: ...

    def finish(self, session: ClientSession, pending: Pending, item: bytes) -> None: ...

    def refuse(self, session: ClientSession, pending: Pending, response: Response) -> None: ...

    def give_up(self, session: ClientSession, pending: Pending) -> None: ...


class RefUpdates:
    def __init__(self, host: Host, requests: Requests, refs: RefCache, *, ask_first: bool) -> None:
        self._host = host
        self._requests = requests
        self._refs = refs
        self._ask_first = ask_first

    # Look up

    def must_ask(self, pending: Pending, mono: float) -> bool:
        return (
            self._ask_first
            and pending.kind is not None
            and not pending.looked_up
            and len(pending.entity_id) == ID_BYTES
            and self._refs.get(pending.kind, pending.entity_id) is None
            and not self._refs.is_absent(pending.kind, pending.entity_id, mono)
        )

    def ask(self, session: ClientSession, pending: Pending) -> None:
        kind, entity_id = pending.kind, pending.entity_id
        assert kind is not None
        pending.asking = pending.looked_up = True

        def found(body: Body | None) -> None:
            pending.asking = False
            match body:
                case RefIs(home):
                    self._refs.learn(kind, entity_id, home)
                case NotFound():
                    self._refs.learn_absent(kind, entity_id, self._requests.mono)
                case _:
                    self._unless_gone(session, pending, self._host.give_up)
                    return
            self._unless_gone(session, pending, self._host.go_on)

        self._requests.ask_slot(slot_of(entity_id), GetRef(kind, entity_id), found)

    # LSET

    def link(self, session: ClientSession, pending: Pending) -> bool:
        """Whether the command has to wait."""
        command = pending.command
        if not isinstance(command, Lset) or len(command.link_id) != ID_BYTES:
            return False
        link_id, home = command.link_id, pending.slot
        pending.asking = True
        tx_id = secrets.token_bytes(16)

        def was_set(body: Body | None) -> None:
            match body:
                case Cok():
                    pending.tx_id = tx_id
                    self._refs.learn(RefKind.LINK, link_id, home)
                    self._ready(session, pending)
                case Duplicate():
                    ask = GetRef(RefKind.LINK, link_id)
                    self._requests.ask_slot(slot_of(link_id), ask, leads)
                case _:
                    self._unless_gone(session, pending, self._host.give_up)

        def leads(body: Body | None) -> None:
            match body:
                case RefIs(there) if there == home:
                    self._ready(session, pending)
                case RefIs() | NotFound():
                    self._host.refuse(session, pending, Err(Code.AUTH))
                case _:
                    self._unless_gone(session, pending, self._host.give_up)

        self._requests.ask_slot(
            slot_of(link_id), SetRef(RefKind.LINK, link_id, home, tx_id), was_set
        )
        return True

    def _ready(self, session: ClientSession, pending: Pending) -> None:
        pending.asking = False
        if session.pending.get(pending.key) is pending:
            self._host.go_on(session, pending)
        else:
            self.undo(pending)

    def undo(self, pending: Pending) -> None:
        """Removes the reference that was written for a refused LSET."""
        command = pending.command
        if pending.tx_id and isinstance(command, Lset):
            self._refs.forget(RefKind.LINK, command.link_id)
            removal = DelRef(RefKind.LINK, command.link_id, pending.tx_id)
            self._requests.ask_slot(slot_of(command.link_id), removal)
            pending.tx_id = b""

    # NKEY

    def name(self, session: ClientSession, pending: Pending, nid: Nid, item: bytes) -> bool:
        """Whether the answer has to wait for a reference."""
        notifier_id, home = nid.notifier_id, pending.slot
        if slot_of(notifier_id) == home:
            return False

        def was_set(body: Body | None) -> None:
            if isinstance(body, Cok):
                self._refs.learn(RefKind.NOTIFIER, notifier_id, home)
                self._host.finish(session, pending, item)
            else:
                self._unless_gone(session, pending, self._host.give_up)

        tx_id = secrets.token_bytes(16)
        wanted = SetRef(RefKind.NOTIFIER, notifier_id, home, tx_id)
        self._requests.ask_slot(slot_of(notifier_id), wanted, was_set)
        return True

    # Remove

    def drop(self, kind: RefKind, entity_id: bytes) -> None:
        self._refs.forget(kind, entity_id)
        if len(entity_id) == ID_BYTES:
            self._requests.ask_slot(Slot(slot_of(entity_id)), DelRef(kind, entity_id))

    def _unless_gone(
        self,
        session: ClientSession,
        pending: Pending,
        then: Callable[[ClientSession, Pending], None],
    ) -> None:
        if session.pending.get(pending.key) is pending:
            then(session, pending)
