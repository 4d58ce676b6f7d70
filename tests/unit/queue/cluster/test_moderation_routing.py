"""A moderation order is routed to the server of its queue, by slot or reference."""

import pytest

from waystation.queue.cluster import moderation_routing
from waystation.queue.cluster.moderation_routing import TRIES_MAX, moderate
from waystation.queue.cluster.slot_map import NOBODY, Assignment, NodeId, SlotMap
from waystation.queue.control import Outcome
from waystation.queue.model import CorrId, Slot, slot_of
from waystation.queue.wire.link import Body
from waystation.queue.wire.link_messages import (
    Frozen,
    LinkMessage,
    Moderate,
    Moderated,
    NotFound,
    RefIs,
    Unknown,
    WrongSlot,
)

ID = bytes((0x10, 0)) + b"i" * 22
HOME = Slot(700)
ORDER = Moderate(ID, "status")
A, B = NodeId(1), NodeId(2)
NO_CORR = CorrId(b"")


def slot_map(epoch: int, home: NodeId = B, own: NodeId = A) -> SlotMap:
    slots = [Assignment(A)] * 4096
    slots[HOME], slots[slot_of(ID)] = Assignment(home), Assignment(own)
    return SlotMap(epoch=epoch, nodes={}, slots=tuple(slots))


class Cluster:
    """Maps as they are read, the last one again and again, and answers in their order."""

    def __init__(self, maps: list[SlotMap], answers: list[Body | None]) -> None:
        self._maps = maps
        self._answers = answers
        self.asked: list[NodeId] = []

    async def read(self) -> SlotMap:
        return self._maps.pop(0) if len(self._maps) > 1 else self._maps[0]

    async def ask(self, node_id: NodeId, message: LinkMessage) -> Body | None:
        assert message == ORDER
        self.asked.append(node_id)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    async def moderate(self) -> str:
        return await moderate(self.read, self, ORDER)


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moderation_routing, "PAUSE_S", 0.0)


async def test_a_reference_leads_to_the_queue() -> None:
    cluster = Cluster([slot_map(1)], [RefIs(HOME), Moderated("done")])

    assert await cluster.moderate() == "done"
    assert cluster.asked == [A, B]


@pytest.mark.parametrize("answer", [NotFound(), RefIs(slot_of(ID))], ids=["none", "to itself"])
async def test_an_id_of_no_queue_is_unknown(answer: LinkMessage) -> None:
    cluster = Cluster([slot_map(1)], [answer])

    assert await cluster.moderate() == Outcome.UNKNOWN.value
    assert cluster.asked == [A]


@pytest.mark.parametrize("epoch", [4, 6], ids=["older", "newer"])
async def test_a_server_with_another_map_is_asked_again(epoch: int) -> None:
    """It may not have heard yet that it has the slot, or we that somebody else has."""
    maps = [slot_map(5), slot_map(5), slot_map(6, home=A)]
    cluster = Cluster(maps, [RefIs(HOME), Unknown(NO_CORR, epoch), Moderated("done")])

    assert await cluster.moderate() == "done"
    assert cluster.asked == [A, B, A]


async def test_a_server_whose_reference_leads_to_itself_is_asked_again() -> None:
    """It has the reference, too, and is not the home by its own map yet."""
    cluster = Cluster([slot_map(5, own=B)], [RefIs(HOME), RefIs(HOME), Moderated("done")])

    assert await cluster.moderate() == "done"
    assert cluster.asked == [B, B, B]


@pytest.mark.parametrize(
    "answer", [RefIs(HOME), Unknown(NO_CORR, 4)], ids=["to itself", "by an older map"]
)
async def test_a_server_that_answers_unknown_to_the_end_has_no_queue(answer: LinkMessage) -> None:
    """It is asked until it must have read the map; an operator is not told that it is silent."""
    cluster = Cluster([slot_map(5)], [RefIs(HOME), answer])

    assert await cluster.moderate() == Outcome.UNKNOWN.value
    assert len(cluster.asked) == TRIES_MAX


async def test_a_reference_to_a_missing_queue_is_read_once_more() -> None:
    """The id may be somebody's anew, elsewhere."""
    elsewhere = Slot(9)
    found = Cluster(
        [slot_map(5)], [RefIs(HOME), Unknown(NO_CORR, 5), RefIs(elsewhere), Moderated("done")]
    )
    gone = Cluster([slot_map(5)], [RefIs(HOME), Unknown(NO_CORR, 5), RefIs(HOME)])

    assert await found.moderate() == "done"
    assert found.asked == [A, B, A, A]
    assert await gone.moderate() == Outcome.UNKNOWN.value
    assert gone.asked == [A, B, A]


async def test_an_order_waits_for_a_moving_slot() -> None:
    answers = [Frozen(NO_CORR), WrongSlot(NO_CORR, 2), None, Moderated("done")]

    assert await Cluster([slot_map(1), slot_map(2)], answers).moderate() == "done"


async def test_a_server_that_does_not_answer_is_reported() -> None:
    silent = Cluster([slot_map(1)], [None])

    assert "does not answer" in await silent.moderate()
    assert len(silent.asked) == TRIES_MAX
    assert "no node serves" in await Cluster([slot_map(1, own=NOBODY)], [None]).moderate()
