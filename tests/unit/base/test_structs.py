import gc
import weakref

import msgspec
import pytest

from waystation.base.structs import quick_to_write


@quick_to_write
class Guest(msgspec.Struct, eq=False, weakref=True):
    party: list["Guest"]
    name: str = ""
    seat: int | None = None


def test_attributes_are_written_read_and_deleted_as_ever() -> None:
    guest = Guest([])
    guest.name = "first"
    guest.seat = 7
    guest.seat += 1
    assert (guest.name, guest.seat) == ("first", 8)
    del guest.name
    with pytest.raises(AttributeError):
        _ = guest.name


def test_nothing_else_can_be_written() -> None:
    with pytest.raises(AttributeError):
        Guest([]).age = 3  # pyright: ignore[reportAttributeAccessIssue] that is the point


def test_each_has_its_own_defaults_and_is_copied_as_ever() -> None:
    one = Guest([])
    other = msgspec.structs.replace(one, seat=2)
    one.seat = 1
    assert (one.seat, other.seat, Guest([]).seat) == (1, 2, None)


def test_a_circle_is_collected() -> None:
    party: list[Guest] = []
    guest = Guest(party)
    party.append(guest)
    gone = weakref.ref(guest)
    del guest, party
    gc.collect()
    assert gone() is None


def test_the_collector_knows_of_it_from_the_start() -> None:
    assert gc.is_tracked(Guest([]))
