"""Addresses as limits count them."""

import pytest

from waystation.base.address_limit import UNKNOWN, AddressLimit, origin_of


@pytest.mark.parametrize(
    "address, origin",
    [
        (("192.0.2.7", 4711), "192.0.2.7"),
        (("::ffff:192.0.2.7", 4711, 0, 0), "192.0.2.7"),
        (("2001:db8:1:2::3", 4711, 0, 0), "2001:db8:1::"),
        (("2001:db8:1:ffff::9", 4711, 0, 0), "2001:db8:1::"),
        (("fe80::1%eth0", 4711, 0, 2), "fe80::"),
        ("", UNKNOWN),
        ((), UNKNOWN),
        (("not an address", 1), UNKNOWN),
    ],
    ids=["ipv4", "mapped", "ipv6", "its neighbour", "scoped", "unix", "nothing", "nonsense"],
)
def test_an_address_is_counted_with_its_household(address: object, origin: str) -> None:
    assert origin_of(address) == origin


def test_an_origin_has_room_again_when_one_of_its_connections_left() -> None:
    limit = AddressLimit(2)
    for _ in range(2):
        assert limit.has_room("192.0.2.7")
        limit.enter("192.0.2.7")

    assert not limit.has_room("192.0.2.7")
    assert limit.has_room("192.0.2.8")
    assert limit.has_room(UNKNOWN)
    limit.leave("192.0.2.7")
    assert limit.has_room("192.0.2.7")
    limit.leave("192.0.2.7")
    assert len(limit) == 0


def test_without_a_limit_nobody_is_counted() -> None:
    limit = AddressLimit(0)
    limit.enter("192.0.2.7")

    assert limit.has_room("192.0.2.7")
    assert len(limit) == 0
