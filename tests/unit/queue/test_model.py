"""Slots, versions and limits."""

import random

import pybase64
import pytest

from waystation.queue import model
from waystation.queue.model import VersionRange


def test_a_slot_is_the_first_two_letters() -> None:
    """Q-113"""
    chance = random.Random(1)
    for _ in range(10_000):
        entity_id = chance.randbytes(24)
        text = pybase64.urlsafe_b64encode(entity_id).decode()
        slot = model.slot_of(entity_id)
        assert model.slot_letters(slot) == text[:2]
        assert slot == (entity_id[0] << 4) | (entity_id[1] >> 4)
    assert (model.slot_letters(0), model.slot_letters(4095)) == ("AA", "__")


@pytest.mark.parametrize(
    "version, limit",
    [(6, 16088), (7, 16088), (8, 16064), (10, 16064), (11, 16048), (18, 16048)],
)
def test_the_longest_body_by_version(version: int, limit: int) -> None:
    """Q-043"""
    assert model.message_bytes_max(version) == limit


def test_what_two_ranges_have_in_common() -> None:
    ours = VersionRange(8, 18)

    assert ours.common(VersionRange(6, 10)) == VersionRange(8, 10)
    assert ours.common(VersionRange(10, 20)) == VersionRange(10, 18)
    assert ours.common(VersionRange(6, 7)) is None
    assert 8 in ours
    assert 19 not in ours


def test_a_day_begins_at_midnight() -> None:
    assert model.day_of(1_700_000_000) == 1_699_920_000
    assert model.day_of(1_699_920_000) == 1_699_920_000
