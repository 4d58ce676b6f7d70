"""Executes commands only for slots that this server owns, until their answer is sent.

Rule 1: a command for a slot of another server is not executed. The answer is `WRONG_SLOT`; `FROZEN`
        while the slot moves; `MOVED` if a reference here names the queue's slot; `UNKNOWN` if
        neither the queue nor the slot of the id is here: the edge followed an outdated reference.
        A copy that we keep as a follower says nothing about where to go.
Rule 2: ownership is checked when a command begins and once more before its answer, because the slot
        may have been taken over. A slot that we freeze ourselves waits for running commands, so
        those are still answered. A command that may have changed something is not sent to another
        server, or it could be executed twice: the client gets a temporary error, also for a change
        that our follower never confirmed, because it may have it, and own the slot by now.
Rule 3: a proof was checked before any of this, so refusals cost the same as on a single server.
Rule 4: after a refusal all later commands for the same id are refused too, and after `MOVED`
        answered the same way (`refused_ids`).
"""

from typing import Final, Protocol, cast

import msgspec

from waystation.queue.errors import TRY_LATER, Code
from waystation.queue.model import (
    ID_BYTES,
    NO_ENTITY,
    CorrId,
    Queue,
    RefKind,
    Slot,
    slot_of,
)
from waystation.queue.server.admission import Case
from waystation.queue.server.checks import Proven
from waystation.queue.server.client import Client
from waystation.queue.server.dispatch import Caller, Dispatch, later
from waystation.queue.server.refused_ids import RefusedIds
from waystation.queue.server.services import ServiceSession
from waystation.queue.server.subscribers import Subscriber
from waystation.queue.store import Ref, RefStore, drops_link
from waystation.queue.wire.commands import (
    Command,
    Del,
    Get,
    Ldel,
    Lget,
    Ndel,
    Nkey,
    Nsub,
    Party,
    Que,
    Send,
    Sub,
)
from waystation.queue.wire.link_messages import DelRef, Frozen, Moved, Unknown, WrongSlot
from waystation.queue.wire.responses import Err, Response
from waystation.queue.wire.transmission import Transmission

_REFERRED: Final = {
    Party.SENDER: RefKind.SENDER,
    Party.NOTIFIER: RefKind.NOTIFIER,
    Party.LINK: RefKind.LINK,
}


_REPEATABLE: Final = (Sub, Nsub, Get, Lget, Que)


class Ownership(Protocol):
    """What this server may answer for; implemented by `KeptOwnership`."""

    @property
    def epoch(self) -> int: ...

    def serves(self, slot: int) -> bool:
        """Whether a command may begin."""
        ...

    def answers(self, slot: int) -> bool:
        """Whether a running command may be answered."""
        ...

    def frozen(self, slot: int) -> bool: ...

    def is_certain(self) -> bool:
        """Whether no slot can have been taken from us without our knowledge."""
        ...

    def owns(self, slot: int) -> bool:
        """Whether it is ours by the map, served or not."""
        ...

    def begin(self, slot: int) -> bool:
        """Whether a command for this slot may run; if so, `end` must follow."""
        ...

    def end(self, slot: int) -> None: ...


class Elsewhere(msgspec.Struct, frozen=True):
    """Instead of a response: a message for the edge, not for the client."""

    word: WrongSlot | Unknown | Frozen | Moved | DelRef


class OwnedDispatch:
    """A `Dispatch` that checks the ownership of slots."""

    def __init__(self, dispatch: Dispatch, ownership: Ownership, refs: RefStore) -> None:
        self._dispatch = dispatch
        self._ownership = ownership
        self._refs = refs

    async def look_up(
        self, transmission: Transmission, service: ServiceSession | None = None
    ) -> Case:
        return await self._dispatch.look_up(transmission, service)

    async def execute(self, caller: Caller, case: Case, *, proven: Proven) -> Response:
        sent = case.transmission
        entity_id = sent.entity_id
        refused_ids = refused_ids_of(caller.client)
        if refused_ids and (barred := _barred(sent, refused_ids)) is not None:
            return barred
        copied = case.queue is not None and is_copy(self._ownership, case.queue, entity_id)
        if copied and self._ownership.serves(slot_of(entity_id)):
            case = Case(sent, None, (), Code.AUTH, case.service)
        if case.queue is not None:
            slot = case.queue.slot
        elif len(entity_id) == ID_BYTES:
            slot = slot_of(entity_id)
        else:
            return await self._dispatch.execute(caller, case, proven=proven)
        if not self._ownership.begin(slot):
            if case.queue is not None and not copied:
                return self._elsewhere(sent, slot, refused_ids)
            return await self._not_here(sent, slot, refused_ids, copied=copied)
        try:
            if case.refused is Code.AUTH or case.verdict(proven=proven) is Code.AUTH:
                ref = await self._ref_of(sent)
                if case.queue is None and ref is not None:
                    referred = await self._referred(sent, ref, refused_ids)
                    if referred is not None:
                        return referred
            response = await self._dispatch.execute(caller, case, proven=proven)
            if not self._ownership.answers(slot):
                if isinstance(sent.command, _REPEATABLE) or _changed_nothing(response):
                    return self._elsewhere(sent, slot, refused_ids)
                return Err(later(sent.command))
            if refused_ids is not None:
                refused_ids.done(sent)
            if case.queue is not None and not isinstance(response, Err):
                await self._drop_references(caller, sent.command, case.queue)
            return response
        finally:
            self._ownership.end(slot)

    async def _drop_references(self, caller: Caller, command: Command, queue: Queue) -> None:
        """Reports ids that were deleted. Most of their references are on other servers: the edge
        removes them. If that message is lost, the reference leads to a server that answers AUTH
        until it is swept."""
        gone: list[tuple[RefKind, bytes | None]] = []
        link_id = None if queue.link is None else queue.link.link_id
        notifier_id = None if queue.notifier is None else queue.notifier.notifier_id
        if isinstance(command, Del):
            gone.append((RefKind.SENDER, queue.sender_id))
        if isinstance(command, Del | Ldel) or (isinstance(command, Send) and drops_link(queue)):
            gone.append((RefKind.LINK, link_id))
        if isinstance(command, Del | Ndel | Nkey):
            gone.append((RefKind.NOTIFIER, notifier_id))
        for kind, entity_id in gone:
            if entity_id is None:
                continue
            if slot_of(entity_id) != queue.slot:
                word = _as_response(DelRef(kind, entity_id))
                caller.client.tell(NO_ENTITY, word)
            elif await self._refs.get_ref(kind, entity_id) is not None:
                await self._refs.drop_ref(kind, entity_id, None)

    async def _lacks(self, sent: Transmission, home: Slot) -> bool:
        """Whether this slot of ours certainly has no such queue: we serve the slot now, and the
        queue did not arrive since the look-up."""
        if not self._ownership.serves(home):
            return False
        found = await self._dispatch.look_up(sent)
        return found.queue is None and found.refused is Code.AUTH

    async def _ref_of(self, sent: Transmission) -> tuple[RefKind, Ref] | None:
        """A reference of ours for the id. Read before any refusal, whether or not there is a queue
        (rule 3)."""
        kind = _REFERRED.get(sent.command.party)
        ref = None if kind is None else await self._refs.get_ref(kind, sent.entity_id)
        return None if kind is None or ref is None else (kind, ref)

    async def _referred(
        self, sent: Transmission, ref: tuple[RefKind, Ref], refused_ids: RefusedIds | None
    ) -> Response | None:
        """Where a reference leads, unless to a slot of ours that has no such queue."""
        kind, home = ref[0], ref[1].home
        if not self._ownership.owns(home):
            moved = Moved(sent.corr_id, kind, home)
            if refused_ids is not None:
                refused_ids.send_on(sent, moved)
            return _as_response(moved)
        if await self._lacks(sent, home):
            return None
        return self._elsewhere(sent, home, refused_ids)

    def _elsewhere(
        self, sent: Transmission, slot: Slot, refused_ids: RefusedIds | None
    ) -> Response:
        if refused_ids is not None:
            refused_ids.bar(sent, slot)
        return _as_response(not_ours(self._ownership, sent.corr_id, slot))

    async def _not_here(
        self, sent: Transmission, slot: Slot, refused_ids: RefusedIds | None, *, copied: bool
    ) -> Response:
        """Neither the slot of its id nor its queue is ours: the edge followed a reference. It can
        tell by our epoch whether the reference is outdated or our map is."""
        ownership = self._ownership
        if copied and refused_ids is not None:
            refused_ids.bar(sent, slot)
        found = await self._dispatch.look_up(sent)  # it may have arrived meanwhile
        is_known = found.queue is not None or found.refused is not Code.AUTH
        unsure = is_known != copied or ownership.frozen(slot) or not ownership.is_certain()
        if not unsure:  # without a queue no later command could overtake this one
            return _as_response(Unknown(sent.corr_id, ownership.epoch))
        if refused_ids is not None:
            refused_ids.bar(sent, slot)
        return _as_response(Frozen(sent.corr_id))


def _barred(sent: Transmission, refused_ids: RefusedIds) -> Response | None:
    if refused_ids.refuses(sent):
        return _as_response(Frozen(sent.corr_id))
    moved = refused_ids.sends_on(sent, _REFERRED.get(sent.command.party))
    return None if moved is None else _as_response(moved)


def _changed_nothing(response: Response) -> bool:
    """Certainly: a change that the store did not confirm may have been made."""
    return isinstance(response, Err) and response.fault != TRY_LATER


def refused_ids_of(client: Subscriber) -> RefusedIds | None:
    """None for a client that is not connected over a link."""
    session = client.session if isinstance(client, Client) else None
    return getattr(session, "refused_ids", None)


def is_copy(ownership: Ownership, queue: Queue, entity_id: bytes) -> bool:
    """Whether it is another owner's queue, found by an id that may be a reference."""
    return slot_of(entity_id) != queue.slot and not ownership.owns(queue.slot)


def not_ours(ownership: Ownership, corr_id: CorrId, slot: int) -> Frozen | WrongSlot:
    if ownership.frozen(slot):
        return Frozen(corr_id)
    return WrongSlot(corr_id, ownership.epoch)


def _as_response(word: WrongSlot | Unknown | Frozen | Moved | DelRef) -> Response:
    """Typed as a response to pass through `execute`; `StreamSession.say` sends it to the edge."""
    return cast(Response, Elsewhere(word))
