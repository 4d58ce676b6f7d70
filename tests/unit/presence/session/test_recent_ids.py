"""Which ids of a client's messages are remembered."""

from waystation.presence.session.recent_ids import RecentIds


def test_an_id_is_new_once() -> None:
    recent = RecentIds(4)

    assert recent.add(7)
    assert not recent.add(7)
    assert 7 in recent


def test_the_oldest_is_forgotten_for_one_too_many() -> None:
    recent = RecentIds(3)
    recent.extend(range(1, 8))

    assert recent.oldest_first() == [5, 6, 7]
    assert len(recent) == 3
    assert recent.add(4)
    assert 5 not in recent


def test_an_id_without_effect_may_be_repeated_and_is_then_the_newest() -> None:
    """Its old place in the ring must not make the new one leave early."""
    recent = RecentIds(3)
    recent.extend((1, 2, 3))
    recent.forget(1)
    recent.forget(99)

    assert recent.add(1)
    assert recent.oldest_first() == [2, 3, 1]
    recent.extend((4, 5))
    assert recent.oldest_first() == [1, 4, 5]


def test_many_more_than_are_remembered_keep_their_order() -> None:
    recent = RecentIds(16)
    expected: list[int] = []
    for one in range(1, 500):
        recent.add(one * 37 % 501)
        expected = [*expected, one * 37 % 501][-16:]
        assert recent.oldest_first() == expected
