"""Commands that are checked for ownership of their slot, without a link."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.queue.server.connected import Told
from waystation.queue.errors import TRY_LATER, Code
from waystation.queue.model import CorrId, EntityId, MessageId, Queue, RefKind, Slot, slot_of
from waystation.queue.server import ownership
from waystation.queue.server.admission import Case
from waystation.queue.server.dispatch import Caller, DisconnectError
from waystation.queue.server.ownership import Elsewhere, OwnedDispatch
from waystation.queue.server.refused_ids import RefusedIds
from waystation.queue.store import Ref
from waystation.queue.wire.commands import Ack, Command, Del, Lget, Ping, Send, Sub
from waystation.queue.wire.link_messages import DelRef, Frozen, Moved, Unknown, WrongSlot
from waystation.queue.wire.responses import OK, PONG, Err, Response
from waystation.queue.wire.transmission import Transmission
from waystation.testing.conformance.queue_samples import new_link, new_queue

CALLER = Caller(Told(), 18, None)


class Slots:
    """An ownership that a test decides."""

    epoch = 7

    def __init__(self) -> None:
        self.owned = True
        self.is_frozen = False
        self.certain = True
        self.unserved: int | None = None  # ours by the map, without a lease
        self.foreign: int | None = None  # somebody else's
        self.running: list[int] = []

    def serves(self, slot: int) -> bool:
        if slot == self.foreign:
            return False
        return self.owned and not self.is_frozen and slot != self.unserved

    def answers(self, slot: int) -> bool:
        return self.owned

    def frozen(self, slot: int) -> bool:
        return self.is_frozen

    def is_certain(self) -> bool:
        return self.certain

    def owns(self, slot: int) -> bool:
        return (self.owned and slot != self.foreign) or slot == self.unserved

    def begin(self, slot: int) -> bool:
        if self.serves(slot):
            self.running.append(slot)
            return True
        return False

    def end(self, slot: int) -> None:
        self.running.remove(slot)


class Done:
    """Steps that answer what they are told, after what happens meanwhile."""

    def __init__(
        self, response: Response = OK, meanwhile: Callable[[], None] | None = None
    ) -> None:
        self.response = response
        self.meanwhile = meanwhile
        self.executed = 0
        self.found: Queue | None = None

    async def look_up(self, transmission: Transmission, service: object = None) -> Case:
        return Case(transmission, self.found, refused=None if self.found else Code.AUTH)

    async def execute(self, caller: Caller, case: Case, *, proven: bool) -> Response:
        self.executed += 1
        await asyncio.sleep(0)
        if self.meanwhile is not None:
            self.meanwhile()
        return self.response


class Refs:
    def __init__(self) -> None:
        self.refs: dict[tuple[RefKind, bytes], Ref] = {}

    async def set_ref(self, kind: RefKind, entity_id: bytes, ref: Ref) -> bool:
        return self.refs.setdefault((kind, entity_id), ref) == ref

    async def get_ref(self, kind: RefKind, entity_id: bytes) -> Ref | None:
        return self.refs.get((kind, entity_id))

    async def drop_ref(self, kind: RefKind, entity_id: bytes, tx_id: bytes | None) -> bool:
        return self.refs.pop((kind, entity_id), None) is not None


def case_of(command: Command, queue: Queue | None, entity_id: bytes = bytes(24)) -> Case:
    sent = Transmission(CorrId(b"c"), EntityId(entity_id), command)
    return Case(sent, queue, refused=None if queue is not None else Code.AUTH)


async def executed(slots: Slots, steps: Done, case: Case, refs: Refs | None = None) -> Any:
    owned = OwnedDispatch(steps, slots, refs or Refs())  # pyright: ignore[reportArgumentType]
    response = await owned.execute(CALLER, case, proven=True)
    assert slots.running == []
    return response.word if isinstance(response, Elsewhere) else response


async def test_what_is_ours_is_done() -> None:
    assert await executed(Slots(), Done(), case_of(Sub(), new_queue())) == OK


async def test_a_queue_that_we_only_follow_is_found_by_its_reference() -> None:
    """Q-116: the id's slot is ours, and the queue is in our store as a copy."""
    slots, steps, refs, queue = Slots(), Done(), Refs(), new_queue()
    slots.foreign = queue.slot
    entity_id = bytes((queue.slot >> 4 ^ 1, 0)) + bytes(22)
    case = case_of(Send(False, b""), queue, entity_id)
    await refs.set_ref(RefKind.SENDER, entity_id, Ref(queue.slot, bytes(16)))

    word = await executed(slots, steps, case, refs)
    assert word == Moved(CorrId(b"c"), RefKind.SENDER, queue.slot)
    assert steps.executed == 0
    slots.foreign = None
    assert await executed(slots, steps, case, refs) == OK


async def test_a_refusal_asks_for_a_reference_whether_or_not_there_is_a_queue() -> None:
    """Q-110, by counting: otherwise an id that nobody has would be refused later."""

    class Counted(Refs):
        asked = 0

        async def get_ref(self, kind: RefKind, entity_id: bytes) -> Ref | None:
            self.asked += 1
            return await super().get_ref(kind, entity_id)

    queue = new_queue()
    sent = Transmission(CorrId(b"c"), EntityId(queue.sender_id), Send(False, b""), bytes(64))
    asked: list[int] = []
    for found, refused in ((queue, None), (queue, Code.AUTH), (None, Code.AUTH)):
        refs, steps = Counted(), Done(Err(Code.AUTH))
        owned = OwnedDispatch(steps, Slots(), refs)  # pyright: ignore[reportArgumentType]
        case = Case(sent, found, refused=refused)
        assert await owned.execute(CALLER, case, proven=False) == Err(Code.AUTH)
        asked.append(refs.asked)

    assert asked == [1, 1, 1]


async def test_a_queue_that_comes_while_commands_are_sent_on_to_it_gets_them_in_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Q-123: the second would be done here, and the first said again after it."""
    slots, steps, refs, refused_ids, queue = Slots(), Done(), Refs(), RefusedIds(), new_queue()
    monkeypatch.setattr(ownership, "refused_ids_of", lambda _client: refused_ids)
    slots.foreign = queue.slot
    entity_id = bytes((queue.slot >> 4 ^ 1, 0)) + bytes(22)
    await refs.set_ref(RefKind.SENDER, entity_id, Ref(queue.slot, bytes(16)))
    moved = Moved(CorrId(b"c"), RefKind.SENDER, queue.slot)
    assert await executed(slots, steps, case_of(Send(False, b"1"), None, entity_id), refs) == moved

    slots.foreign, second = None, case_of(Send(False, b"2"), queue, entity_id)
    assert await executed(slots, steps, second, refs) == moved
    assert steps.executed == 0
    refused_ids.again(EntityId(entity_id))

    assert await executed(slots, steps, second, refs) == OK


async def test_an_outdated_reference_to_a_follower_is_answered_with_unknown() -> None:
    """Neither is ours: an edge with our map knows that it was sent here in vain."""
    slots, steps, queue = Slots(), Done(), new_queue()
    entity_id = bytes((queue.slot >> 4 ^ 1, 0)) + bytes(22)
    slots.owned, steps.found = False, queue

    word = await executed(slots, steps, case_of(Send(False, b""), queue, entity_id))
    assert word == Unknown(CorrId(b"c"), 7)
    native = await executed(slots, steps, case_of(Sub(), queue, queue.recipient_id))
    assert native == WrongSlot(CorrId(b"c"), 7)


@pytest.mark.parametrize("frozen", [False, True])
async def test_what_is_not_ours_is_not_begun(frozen: bool) -> None:
    slots, steps, queue = Slots(), Done(), new_queue()
    slots.owned, slots.is_frozen = frozen, frozen
    word = await executed(slots, steps, case_of(Sub(), queue, queue.recipient_id))

    assert word == (Frozen(CorrId(b"c")) if frozen else WrongSlot(CorrId(b"c"), 7))
    assert steps.executed == 0


async def test_what_was_begun_before_a_freeze_is_answered() -> None:
    """The freeze waits for it, so it is in the copy; to refuse it would make it happen twice."""
    slots = Slots()

    def freeze() -> None:
        slots.is_frozen = True

    assert (
        await executed(slots, Done(meanwhile=freeze), case_of(Send(False, b""), new_queue())) == OK
    )


async def test_an_answer_that_came_after_the_slot_was_lost_is_none() -> None:
    slots = Slots()

    def lose() -> None:
        slots.owned = False

    word = await executed(slots, Done(meanwhile=lose), case_of(Sub(), new_queue()))
    assert word == WrongSlot(CorrId(b"c"), 7)


async def test_an_executed_command_is_not_sent_to_the_new_owner_of_the_slot() -> None:
    """Its sender comes back by itself; a recipient's view of the queue begins anew."""
    slots = Slots()

    def lose() -> None:
        slots.owned = False

    done = Done(meanwhile=lose)
    assert await executed(slots, done, case_of(Send(False, b""), new_queue())) == Err(TRY_LATER)
    slots.owned = True
    with pytest.raises(DisconnectError):
        await executed(slots, done, case_of(Ack(MessageId(b"m" * 24)), new_queue()))
    slots.owned = True
    refused = Done(Err(Code.NO_MSG), meanwhile=lose)
    word = await executed(slots, refused, case_of(Ack(MessageId(b"m" * 24)), new_queue()))
    assert word == WrongSlot(CorrId(b"c"), 7)


async def test_what_the_follower_never_confirmed_is_not_done_again_where_it_has_the_slot() -> None:
    """It may have got the message before it became the owner."""
    slots = Slots()

    def lose() -> None:
        slots.owned = False

    unconfirmed = Done(Err(TRY_LATER), meanwhile=lose)
    sent = await executed(slots, unconfirmed, case_of(Send(False, b""), new_queue()))
    assert sent == Err(TRY_LATER)
    slots.owned = True
    opened = await executed(slots, unconfirmed, case_of(Lget(), new_queue()))
    assert opened == WrongSlot(CorrId(b"c"), 7)  # that changes nothing, ever


async def test_an_unknown_id_may_be_a_reference() -> None:
    refs, slots, entity_id = Refs(), Slots(), b"\x12\x34" + bytes(22)
    await refs.set_ref(RefKind.SENDER, entity_id, Ref(Slot(9), b"t" * 16))
    steps, case = Done(Err(Code.AUTH)), case_of(Send(False, b""), None, entity_id)
    slots.foreign = 9
    assert await executed(slots, steps, case, refs) == Moved(CorrId(b"c"), RefKind.SENDER, Slot(9))
    slots.foreign = None
    assert await executed(slots, steps, case, refs) == Err(Code.AUTH)  # ours, and not there
    steps.found = new_queue()
    assert await executed(slots, steps, case, refs) == WrongSlot(CorrId(b"c"), 7)  # by now it is

    other = await executed(slots, steps, case_of(Sub(), None, entity_id), refs)
    assert other == Err(Code.AUTH)  # recipients' ids are never references


async def test_a_server_says_that_it_has_no_such_queue_only_while_it_is_certain() -> None:
    """An edge that followed a reference here takes it for the end of the queue."""
    slots, case = Slots(), case_of(Send(False, b""), None)
    slots.owned = False

    assert await executed(slots, Done(), case) == Unknown(CorrId(b"c"), 7)
    slots.certain = False
    assert await executed(slots, Done(), case) == Frozen(CorrId(b"c"))


async def test_a_reference_to_a_slot_that_we_must_not_serve_now_leads_nowhere_yet() -> None:
    refs, slots, entity_id = Refs(), Slots(), b"\x12\x34" + bytes(22)
    await refs.set_ref(RefKind.SENDER, entity_id, Ref(Slot(9), b"t" * 16))
    slots.unserved = 9

    word = await executed(slots, Done(), case_of(Send(False, b""), None, entity_id), refs)

    assert word == WrongSlot(CorrId(b"c"), 7)


async def test_commands_without_a_queue_need_no_slot() -> None:
    slots = Slots()
    slots.owned = False
    sent = Transmission(CorrId(b"c"), EntityId(b""), Ping())

    assert await executed(slots, Done(PONG), Case(sent)) == PONG


async def test_references_of_a_deleted_queue_are_named_to_the_edge() -> None:
    client = Told()
    queue = new_queue(slot=1, link=new_link())
    assert queue.link is not None
    owned = OwnedDispatch(Done(), Slots(), Refs())  # pyright: ignore[reportArgumentType]
    response = await owned.execute(Caller(client, 18, None), case_of(Del(), queue), proven=True)
    named = {
        (told.word.kind, told.word.entity_id)
        for _, told in client.told
        if isinstance(told, Elsewhere) and isinstance(told.word, DelRef)
    }
    foreign = {(RefKind.SENDER, queue.sender_id), (RefKind.LINK, queue.link.link_id)}

    assert response == OK
    assert named == {one for one in foreign if slot_of(one[1]) != 1}
