"""Ids that the server draws."""

import pytest

from waystation.queue.model import Slot, slot_of
from waystation.queue.server.ids import IdMaker


@pytest.mark.parametrize("slot", [0, 1, 0xABC, 4095])
def test_all_ids_of_a_queue_carry_its_slot(slot: int) -> None:
    ids = IdMaker(hybrid=True)
    recipient_id = ids.recipient(Slot(slot))
    made = [recipient_id, *(make(recipient_id) for make in (ids.sender, ids.notifier, ids.link))]

    assert [slot_of(one) for one in made] == [slot] * 4
    assert len(set(made)) == 4
    assert {len(one) for one in made} == {24}


def test_without_prefixes_only_the_recipients_id_has_the_slot() -> None:
    ids = IdMaker(hybrid=False)
    recipient_id = ids.recipient(Slot(7))

    assert slot_of(recipient_id) == 7
    assert len({slot_of(ids.sender(recipient_id)) for _ in range(100)}) > 10


def test_new_queues_spread_over_the_slots() -> None:
    ids = IdMaker(hybrid=True)

    assert len({ids.home() for _ in range(200)}) > 150
