from waystation.push.connect.registry import Registry
from waystation.push.model import Uaid

UAID, OTHER = Uaid(b"\x01" * 16), Uaid(b"\x02" * 16)


class Member:
    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True

    def __repr__(self) -> str:
        return self.name


def of(*names: str) -> tuple[Registry[Member], list[Member]]:
    return Registry(), [Member(name) for name in names]


def test_whoever_entered_is_found_until_it_leaves() -> None:
    registry, (a, b) = of("a", "b")
    registry.add(UAID, a)
    registry.add(OTHER, b)

    assert registry.get(UAID) is a
    assert list(registry) == [a, b]
    assert registry.remove(UAID, a)
    assert registry.get(UAID) is None
    assert len(registry) == 1
    assert not registry.remove(UAID, a)


def test_the_older_connection_is_closed_when_the_newer_is_greeted() -> None:
    """C-013"""
    registry, (a, b) = of("a", "b")
    registry.add(UAID, a)
    assert registry.greeted(a) is None
    registry.add(UAID, b)

    assert registry.get(UAID) is b
    assert registry.greeted(b) is a
    assert registry.greeted(b) is None


def test_the_older_leaving_does_not_remove_the_newer() -> None:
    registry, (a, b) = of("a", "b")
    registry.add(UAID, a)
    registry.add(UAID, b)

    assert not registry.remove(UAID, a)
    assert registry.get(UAID) is b


def test_if_the_newer_loses_its_claim_the_older_is_found_again() -> None:
    registry, (a, b) = of("a", "b")
    registry.add(UAID, a)
    registry.add(UAID, b)

    assert registry.remove(UAID, b)
    assert registry.get(UAID) is a


def test_an_older_one_that_has_ended_is_not_found_again() -> None:
    registry, (a, b) = of("a", "b")
    registry.add(UAID, a)
    registry.add(UAID, b)
    a.alive = False
    registry.remove(UAID, b)

    assert registry.get(UAID) is None


def test_entering_twice_keeps_nobody_aside() -> None:
    registry, (a,) = of("a")
    registry.add(UAID, a)
    registry.add(UAID, a)

    assert registry.greeted(a) is None


def test_of_three_the_last_that_is_greeted_stays() -> None:
    registry, (a, b, c) = of("a", "b", "c")
    for member in (a, b, c):
        registry.add(UAID, member)

    assert registry.greeted(b) is a
    a.alive = False
    assert not registry.remove(UAID, a)
    assert registry.greeted(c) is b
    assert registry.get(UAID) is c


def test_if_two_newer_ones_fail_in_turn_the_oldest_is_found_again() -> None:
    """Otherwise it would be connected, and no notification would ever find it."""
    registry, (a, b, c) = of("a", "b", "c")
    for member in (a, b, c):
        registry.add(UAID, member)
    b.alive = False
    assert not registry.remove(UAID, b)
    c.alive = False

    assert registry.remove(UAID, c)
    assert registry.get(UAID) is a


def test_if_the_one_in_the_middle_fails_the_last_closes_the_first() -> None:
    registry, (a, b, c, d) = of("a", "b", "c", "d")
    for member in (a, b, c, d):
        registry.add(UAID, member)
    b.alive = False
    registry.remove(UAID, b)

    assert registry.greeted(d) is c
    assert registry.greeted(c) is a


def test_nothing_is_kept_of_those_who_left() -> None:
    registry, members = of(*"abcdef")
    for member in members:
        registry.add(UAID, member)
    for member in members:
        member.alive = False
        registry.remove(UAID, member)

    assert len(registry) == 0
    assert registry._aside == {}
